/* Which set each sample of a mix is from. Local, no state. */
#ifndef IO_DATA_MIX_H
#define IO_DATA_MIX_H

#include "src/base/err.h"

#include <stdint.h>

enum { SH_MIX_BLOCK = 4096, SH_MIX_SETS = 64 };

struct sh_mix {
    int n;
    char *path[SH_MIX_SETS];
    int share[SH_MIX_SETS]; /* samples of a block; their sum is SH_MIX_BLOCK */
};

/* One block of samples: place p is sample `rank` of the block's samples of `set`. */
struct sh_mix_block {
    int64_t number; /* -1: none */
    uint16_t set[SH_MIX_BLOCK], rank[SH_MIX_BLOCK];
};

/* "path=weight,path=weight": weights above 0, of any sum. Shares are rounded by largest remainder, of equal ones the first.
 * Errors: SH_E_USAGE: no such text, too many sets, a path twice, a weight so small that no sample would be from its set. */
sh_rc sh_mix_parse(const char *text, struct sh_mix *out);
void sh_mix_free(struct sh_mix *m);

/* The order of block `number`, from the seed. Does nothing where `b` is that block. */
void sh_mix_order(const struct sh_mix *m, uint64_t seed, int64_t number, struct sh_mix_block *b);

#endif
