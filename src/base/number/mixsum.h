/* A sum over floats that is certain to change if one of them changes, and that can be computed in parts:
 *
 *     sum = sum over i of mix(bits(i) ^ (place + i * SH_MIXSUM_STEP))   mod 2^64
 *
 * mix is the finisher of SplitMix64, a bijection. `place` belongs to element 0; it makes swapped elements change the
 * sum too. These are integers, so any order of summation gives the same bits, on any device. The digests of checkpoints
 * are such sums (doc/checkpoint-format.md).
 *
 * Local, no failure. sh_mixsum_elem() is valid C, C++ and CUDA; the loops are for host memory (src/base/number/mixsum.c).
 * Other devices have theirs in their kernel table (op.h, mixsum). */
#ifndef SH_BASE_MIXSUM_H
#define SH_BASE_MIXSUM_H

#include "src/base/number/floats.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 2^64 / golden ratio: neighbouring multiples differ in many bits */
#define SH_MIXSUM_STEP UINT64_C(0x9e3779b97f4a7c15)

enum { SH_MIXSUM_PART = 1 << 16 }; /* elements that a device sums in one piece */

/* Written out here instead of a call of sh_mix64(), so that a compiler keeps several elements in flight. */
SH_FLOATS uint64_t sh_mixsum_elem(uint32_t bits, uint64_t place)
{
    uint64_t x = bits ^ place;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The sum of n floats: whole, in halves, or upper halves alone; not packed. */
uint64_t sh_mixsum(struct sh_floats data, int64_t n, uint64_t place);

/* The same for `from`, which is copied to `to` in the same pass, around the caches like sh_mem_copy_away(); both have
 * the same layout. The sum is over what was read from `from`.
 * Cost: 4 n bytes read and as many written; 2 n for upper halves, which a compiler's loop sums. With AVX-512 the
 * arithmetic fits into that time (15 cycles for 64 bytes): 1.1 to 1.2 times a memcpy on one core. Without it, the call
 * takes about twice as long as a memcpy on one core, and less if more cores share the memory bandwidth. */
uint64_t sh_mixsum_copy(struct sh_floats to, struct sh_floats from, int64_t n, uint64_t place);

#ifdef __cplusplus
}
#endif

#endif
