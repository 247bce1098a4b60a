/* How long a fuzzer runs: RUNS inputs if the command line says so, a few seconds in `make check`; with SHERD_LONG ten
 * million inputs, or ten minutes, whichever is less. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include "src/base/time.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct fuzz {
    long runs, done;
    int64_t end;    /* by sh_now_ns(); 0: none */
    uint64_t state; /* initial state of the random numbers */
};

/* Arguments: [RUNS [SEED]]. */
static inline struct fuzz fuzz_begin(int argc, char **argv, long runs)
{
    struct fuzz f = {.runs = runs, .state = argc > 2 ? strtoull(argv[2], NULL, 10) << 32 : 1};

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

#endif
