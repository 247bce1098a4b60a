/* Digests of tensor data: a sum per block of 2^20 elements, whoever computes which part of it.
 *
 *   digest(block) = sum over its elements i of mix(bits(i) ^ ((i - first of block + 1) * K + seed))   mod 2^64
 *
 * mix is a bijection, so a change of one element always changes the sum; the place inside the block is mixed in, so
 * swapped elements are detected; the seed depends on step, state, tensor and block, so a block from elsewhere or from
 * an older file is detected. Sums of parts of a block add up to the sum of the block: ranks add theirs. The digest
 * protects against damage, not against malice. Local, no state. */
#ifndef IO_CHECKPOINT_DIGEST_H
#define IO_CHECKPOINT_DIGEST_H

#include "src/base/number/floats.h"

#include <stdint.h>

enum { SH_CKPT_BLOCK_ELEMS = 1 << 20 };

/* Blocks of a tensor of `elems` elements; the last one may be shorter. */
int64_t sh_ckpt_blocks(int64_t elems);

/* The seed of all blocks of one tensor in one state. */
uint64_t sh_ckpt_digest_seed(int64_t step, int state, const char *name);

/* Elements of block `block` of a tensor of `elems` elements. */
int64_t sh_ckpt_block_elems(int64_t elems, int64_t block);

/* The `place` (src/base/number/mixsum.h) of element `at` of a block, with which any device can compute the sums. */
uint64_t sh_ckpt_digest_place(uint64_t seed, int64_t block, int64_t at);

/* The sum of `elems` elements of one block, starting at its element `at`; from 0 to its end: the block's digest. The
 * data is in host memory. */
uint64_t sh_ckpt_digest_part(uint64_t seed, int64_t block, const float *data, int64_t at, int64_t elems);
uint64_t sh_ckpt_digest_floats(uint64_t seed, int64_t block, struct sh_floats data, int64_t at, int64_t elems);

#endif
