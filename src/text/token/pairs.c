/* One bit per pair, in a table with sixteen bits per pair: small enough to stay in the processor's cache; one in
 * sixteen of the other pairs is mistaken for a member of the set. */
#include "src/text/token/pairs.h"

#include "src/base/mem.h"

#include <stdlib.h>

enum { FEWEST = 10, MOST = 23 }; /* 2^n bits: 128 bytes to 1 MiB */

struct sh_pairs *sh_pairs_create(size_t n)
{
    struct sh_pairs *p = sh_calloc(1, sizeof *p);
    unsigned size = FEWEST;

    while (size < MOST && (size_t)1 << size < 16 * n)
        size++;
    p->shift = 32 - size;
    p->bit = n ? sh_calloc((size_t)1 << (size - 5), sizeof *p->bit) : NULL;
    return p;
}

void sh_pairs_destroy(struct sh_pairs *p)
{
    if (p)
        free(p->bit);
    free(p);
}

void sh_pairs_put(struct sh_pairs *p, uint32_t a, uint32_t b)
{
    uint32_t at = sh_pairs_bit(p, a, b);

    if ((a | b) < 128)
        p->ascii[a * 128 + b] = 1;
    else if (p->bit)
        p->bit[at >> 5] |= 1u << (at & 31);
}
