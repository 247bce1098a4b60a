/* A hash table with open addressing and linear probing. Rows are small and contiguous; ids and texts are in a separate
 * store to which they are only appended. When the table is half full, or the store is full, everything is dropped at
 * once: that is cheaper than keeping track of what was used last. */
#include "src/text/token/cache.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 1 << 19, MOST = ROWS / 2, STORE_WORDS = 4 << 20 }; /* 8 MiB of rows, at most 16 MiB of ids and text */

/* A row is 16 bytes; its ids and its text are contiguous in the store: ids first, then the text in whole words. */
struct row {
    uint32_t check; /* upper half of the hash */
    uint32_t at;    /* in the store, in words */
    uint32_t first; /* its first id: most pieces are one word */
    uint16_t bytes; /* 0: free */
    uint16_t n;
};

struct sh_cache {
    uint32_t *store; /* [STORE_WORDS] */
    uint32_t used, rows;
    struct row row[ROWS];
};

/* Reserves 24 MiB of address space; pages are allocated as they fill. */
struct sh_cache *sh_cache_create(void)
{
    struct sh_cache *c = sh_calloc(1, sizeof *c);

    c->store = sh_calloc(STORE_WORDS, sizeof *c->store);
    return c;
}

void sh_cache_destroy(struct sh_cache *c)
{
    if (c)
        free(c->store);
    free(c);
}

/* memcmp() without a call for a few bytes, which is what most pieces are: compares two words that may overlap. */
static inline bool same_bytes(const void *a, const void *b, size_t n)
{
    const unsigned char *p = a, *q = b;
    uint64_t x, y, z, w;
    uint32_t i, j, k, l;

    if (n > 16)
        return memcmp(a, b, n) == 0;
    if (n >= 8) {
        memcpy(&x, p, 8);
        memcpy(&y, q, 8);
        memcpy(&z, p + n - 8, 8);
        memcpy(&w, q + n - 8, 8);
        return x == y && z == w;
    }
    if (n >= 4) {
        memcpy(&i, p, 4);
        memcpy(&j, q, 4);
        memcpy(&k, p + n - 4, 4);
        memcpy(&l, q + n - 4, 4);
        return i == j && k == l;
    }
    return p[0] == q[0] && p[n / 2] == q[n / 2] && p[n - 1] == q[n - 1];
}

void sh_cache_fetch(const struct sh_cache *c, uint64_t later, uint64_t soon)
{
    __builtin_prefetch(&c->row[later & (ROWS - 1)]);
    __builtin_prefetch(c->store + c->row[soon & (ROWS - 1)].at);
}

bool sh_cache_get(const struct sh_cache *c, uint64_t hash, const unsigned char *piece, size_t bytes, struct sh_ids *out)
{
    uint32_t check = (uint32_t)(hash >> 32);

    for (uint32_t i = hash & (ROWS - 1); c->row[i].bytes; i = (i + 1) & (ROWS - 1)) {
        const struct row *r = &c->row[i];
        if (r->check != check || r->bytes != bytes || !same_bytes(c->store + r->at + r->n, piece, bytes))
            continue;
        /* One more than needed, since first is written even when a piece has no ids. */
        uint32_t *to = sh_ids_room(out, r->n + 1);
        to[0] = r->first;
        for (uint32_t k = 1; k < r->n; k++)
            to[k] = c->store[r->at + k];
        out->n += r->n;
        return true;
    }
    return false;
}

void sh_cache_put(struct sh_cache *c, uint64_t hash, const unsigned char *piece, size_t bytes, const uint32_t *ids,
                  size_t n)
{
    uint32_t words = (uint32_t)(n + (bytes + 3) / 4), i = hash & (ROWS - 1);

    /* Clear the rows only: the store is overwritten from its start. */
    if (c->rows == MOST || c->used + words > STORE_WORDS) {
        memset(c->row, 0, sizeof c->row);
        c->rows = c->used = 0;
    }
    while (c->row[i].bytes)
        i = (i + 1) & (ROWS - 1);
    if (n)
        memcpy(c->store + c->used, ids, n * sizeof *ids);
    /* The text fills whole words; the bytes after it are never compared. */
    memcpy(c->store + c->used + n, piece, bytes);
    c->row[i] = (struct row){(uint32_t)(hash >> 32), c->used, n ? ids[0] : 0, (uint16_t)bytes, (uint16_t)n};
    c->used += words;
    c->rows++;
}
