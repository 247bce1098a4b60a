/* How long a fuzzer runs: RUNS inputs if the command line says so, a few seconds in `make check`; with SHERD_LONG ten
 * million inputs, or ten minutes, whichever is less. And how one that reads texts makes them: from good ones. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include "src/base/hash.h"
#include "src/base/time.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fuzz {
    long runs, done;
    int64_t end; /* by sh_now_ns(); 0: none */
};

static uint64_t fuzz_state; /* of the random numbers */

static inline size_t random_below(size_t n)
{
    return (size_t)(sh_mix64(fuzz_state++) % n);
}

/* Arguments: [RUNS [SEED]]. */
static inline struct fuzz fuzz_begin(int argc, char **argv, long runs)
{
    struct fuzz f = {.runs = runs};

    fuzz_state = argc > 2 ? strtoull(argv[2], NULL, 10) << 32 : 1;
    if (argc > 1) {
        f.runs = atol(argv[1]);
    } else if (getenv("SHERD_LONG")) {
        f.runs = 10000000;
        f.end = sh_now_ns() + (int64_t)600 * 1000000000;
    }
    return f;
}

/* Call before each input. The clock is checked only now and then. */
static inline bool fuzz_more(struct fuzz *f)
{
    if (f->done == f->runs || (f->end && f->done % 16 == 0 && sh_now_ns() > f->end))
        return false;
    f->done++;
    return true;
}

enum { FUZZ_TEXT_BYTES = 4096, FUZZ_COPIED = 64 };

/* Good texts, and what is put into them. */
struct fuzz_texts {
    const char *name, *what; /* of the program and its inputs, for the last line */
    const char *const *seed, *const *piece;
    size_t n_seeds, n_pieces;
    const char *(*word)(void); /* in place of every third piece; NULL: none */
};

#define FUZZ_TEXTS(seeds, pieces)                                                \
    .seed = seeds, .piece = pieces, .n_seeds = sizeof(seeds) / sizeof(seeds)[0], \
    .n_pieces = sizeof(pieces) / sizeof(pieces)[0]

/* Replace `removed` bytes at `at` by `added` others, as far as they fit. */
static inline size_t fuzz_splice(char *text, size_t n, size_t at, size_t removed, const char *from, size_t added)
{
    if (removed > n - at)
        removed = n - at;
    if (n - removed + added > FUZZ_TEXT_BYTES)
        return n;
    memmove(text + at + added, text + at + removed, n - at - removed);
    memcpy(text + at, from, added);
    return n - removed + added;
}

/* Change a byte or a digit, remove some, repeat some, or, as often as all of these, put a piece in. */
static inline size_t fuzz_change(const struct fuzz_texts *t, char *text, size_t n)
{
    const char *piece = t->word && random_below(3) == 0 ? t->word() : t->piece[random_below(t->n_pieces)];
    const char byte = (char)random_below(256), digit = (char)('0' + random_below(10));
    size_t at = random_below(n + 1), from = random_below(n + 1), most = n - from < FUZZ_COPIED ? n - from : FUZZ_COPIED;
    char copied[FUZZ_COPIED];

    switch (random_below(8)) {
    case 0: return fuzz_splice(text, n, at, 1, &byte, 1);
    case 1: return fuzz_splice(text, n, at, 1, &digit, 1);
    case 2: return fuzz_splice(text, n, at, 1 + random_below(12), "", 0);
    case 3: memcpy(copied, text + from, most); return fuzz_splice(text, n, at, random_below(2) * most, copied, most);
    default: return fuzz_splice(text, n, at, random_below(2), piece, strlen(piece));
    }
}

/* Call `try` with good texts that were changed up to five times. Returns main()'s status. */
static inline int fuzz_texts(int argc, char **argv, long runs, const struct fuzz_texts *t,
                             int (*try)(const uint8_t *, size_t))
{
    struct fuzz f = fuzz_begin(argc, argv, runs);
    char text[FUZZ_TEXT_BYTES];

    while (fuzz_more(&f)) {
        const char *seed = t->seed[random_below(t->n_seeds)];
        size_t n = strlen(seed);

        if (n > sizeof text)
            abort();
        memcpy(text, seed, n);
        for (size_t k = random_below(6); k > 0; k--)
            n = fuzz_change(t, text, n);
        try((const uint8_t *)text, n);
    }
    printf("%s: %ld %s: ok\n", t->name, f.done, t->what);
    return 0;
}

#endif
