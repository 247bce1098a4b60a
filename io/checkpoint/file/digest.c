#include "io/checkpoint/file/digest.h"

#include "src/base/number/mixsum.h"
#include "src/base/hash.h"

#include <string.h>

int64_t sh_ckpt_blocks(int64_t elems)
{
    return (elems + SH_CKPT_BLOCK_ELEMS - 1) / SH_CKPT_BLOCK_ELEMS;
}

/* The last block of a tensor may be short. Example: a tensor of 1500000 elements has
 * blocks of 1048576 and 451424. */
int64_t sh_ckpt_block_elems(int64_t elems, int64_t block)
{
    int64_t left = elems - block * SH_CKPT_BLOCK_ELEMS;
    return left < SH_CKPT_BLOCK_ELEMS ? left : SH_CKPT_BLOCK_ELEMS;
}

/* Mixes the step, state and tensor of a block into its sum, so that data of another one never has the right digest. */
uint64_t sh_ckpt_digest_seed(int64_t step, int state, const char *name)
{
    return sh_mix64(sh_mix64(sh_hash64(name, strlen(name)) ^ (uint64_t)step) + (uint64_t)state);
}

/* Adds the place in the block, so that equal parts at other places have different sums. The sum of a block can be
 * computed from parts, in any order and by several ranks. */
uint64_t sh_ckpt_digest_place(uint64_t seed, int64_t block, int64_t at)
{
    return (uint64_t)(at + 1) * SH_MIXSUM_STEP + sh_mix64(seed ^ (uint64_t)block);
}

uint64_t sh_ckpt_digest_floats(uint64_t seed, int64_t block, struct sh_floats data, int64_t at, int64_t elems)
{
    return sh_mixsum(data, elems, sh_ckpt_digest_place(seed, block, at));
}

uint64_t sh_ckpt_digest_part(uint64_t seed, int64_t block, const float *data, int64_t at, int64_t elems)
{
    struct sh_floats whole = {.whole = (float *)(uintptr_t)data};
    return sh_ckpt_digest_floats(seed, block, whole, at, elems);
}
