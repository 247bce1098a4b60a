/* The set of pairs of characters that are neighbours in some word: no merge crosses the place between two characters
 * that are not such a pair. The set may report a pair that it does not have, but never the reverse: one cut fewer
 * changes no id. Any thread may read. */
#ifndef IO_TOKEN_PAIRS_H
#define IO_TOKEN_PAIRS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sh_pairs {
    unsigned char ascii[128 * 128]; /* exact */
    unsigned shift;                 /* turns a hash of 32 bits into the number of a bit */
    uint32_t *bit;                  /* all other pairs, by hash; NULL: the set has them all */
};

/* Create an empty set with room for `n` pairs; n = 0: it has all pairs with a character beyond ASCII. */
struct sh_pairs *sh_pairs_create(size_t n);
void sh_pairs_destroy(struct sh_pairs *p); /* NULL is fine */

static inline uint32_t sh_pairs_bit(const struct sh_pairs *p, uint32_t a, uint32_t b)
{
    return (uint32_t)(a * 0x9e3779b1u ^ b * 0x85ebca77u) * 0xc2b2ae3du >> p->shift;
}

void sh_pairs_put(struct sh_pairs *p, uint32_t a, uint32_t b);

static inline bool sh_pairs_have(const struct sh_pairs *p, uint32_t a, uint32_t b)
{
    if ((a | b) < 128)
        return p->ascii[a * 128 + b];
    if (!p->bit)
        return true;
    uint32_t at = sh_pairs_bit(p, a, b);
    return p->bit[at >> 5] >> (at & 31) & 1;
}

#endif
