/* A hash table from byte strings to ids, with open addressing; read-only once it is filled. Local; any thread may
 * read. */
#ifndef IO_TOKEN_WORDS_H
#define IO_TOKEN_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SH_NO_ID = -1 };

struct sh_word {
    const unsigned char *text; /* not copied */
    uint32_t bytes, id;
};

struct sh_words {
    struct sh_word *row; /* [mask + 1]; text NULL: the row is free */
    uint32_t mask, n;
};

/* Make an empty table with room for `n` words. */
void sh_words_init(struct sh_words *w, size_t n);
void sh_words_free(struct sh_words *w);

/* Add a word. Returns false if it is there already; it keeps its id then. */
bool sh_words_put(struct sh_words *w, const void *text, size_t bytes, uint32_t id);

/* Return the id of a word; SH_NO_ID: it is not there. */
int64_t sh_words_get(const struct sh_words *w, const void *text, size_t bytes);

/* Return up to eight bytes as one number, by two loads that may overlap: the processor would have to wait for a
 * memcpy() of n bytes. */
static inline uint64_t sh_words_few(const unsigned char *p, size_t n)
{
    uint32_t low, high;

    if (n < 4)
        return n ? p[0] | (uint64_t)p[n / 2] << 8 | (uint64_t)p[n - 1] << 16 : 0;
    memcpy(&low, p, 4);
    memcpy(&high, p + n - 4, 4);
    return low | (uint64_t)high << 32;
}

/* Hash eight bytes at a time; the last eight of a longer text may overlap the ones before. Pieces of text are short.
 * The upper bits are the better ones. */
static inline uint64_t sh_words_hash(const unsigned char *p, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15u, x;
    const unsigned char *last = p + n - (n < 8 ? n : 8);

    for (; p < last; p += 8) {
        memcpy(&x, p, 8);
        h = (h ^ x) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    x = sh_words_few(last, n < 8 ? n : 8);
    h = (h ^ x) * 0xff51afd7ed558ccdu;
    return h ^ h >> 29;
}

#endif
