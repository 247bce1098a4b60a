/* Determines which set each sample of a mix comes from. Local, no state. */
#ifndef IO_DATA_MIX_H
#define IO_DATA_MIX_H

#include "src/base/err.h"

#include <stdint.h>

enum { SH_MIX_BLOCK = 4096, SH_MIX_SETS = 64 };

struct sh_mix {
    int n;
    char *path[SH_MIX_SETS];
    int share[SH_MIX_SETS]; /* samples of each set in a block; their sum is SH_MIX_BLOCK */
};

/* One block of samples: place p holds sample number `rank` among the block's samples of `set`. */
struct sh_mix_block {
    int64_t number; /* -1: none */
    uint16_t set[SH_MIX_BLOCK], rank[SH_MIX_BLOCK];
};

/* Parse "path=weight,path=weight": weights above 0, with any sum. Shares are rounded by largest remainder; among equal
 * remainders the first set wins. Errors: SH_E_USAGE: text of another form, too many sets, a path given twice, a weight
 * so small that its set would get no sample. */
sh_rc sh_mix_parse(const char *text, struct sh_mix *out);
void sh_mix_free(struct sh_mix *m);

/* Compute the order of block `number` from the seed. Does nothing if `b` is that block already. */
void sh_mix_order(const struct sh_mix *m, uint64_t seed, int64_t number, struct sh_mix_block *b);

#endif
