#include "io/checkpoint/digest.h"

#include "kernels/cpu/math.h"
#include "src/base/hash.h"

#include <string.h>

int64_t sh_ckpt_blocks(int64_t elems)
{
    return (elems + SH_CKPT_BLOCK_ELEMS - 1) / SH_CKPT_BLOCK_ELEMS;
}

int64_t sh_ckpt_block_elems(int64_t elems, int64_t block)
{
    int64_t left = elems - block * SH_CKPT_BLOCK_ELEMS;
    return left < SH_CKPT_BLOCK_ELEMS ? left : SH_CKPT_BLOCK_ELEMS;
}

uint64_t sh_ckpt_digest_seed(int64_t step, int state, const char *name)
{
    return sh_mix64(sh_mix64(sh_hash64(name, strlen(name)) ^ (uint64_t)step) + (uint64_t)state);
}

/* The same finisher as sh_mix64, here so that the compiler can keep several elements in flight: a call an element would
 * make the digest slower than the disk. */
static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static const uint64_t K = 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: neighbouring multiples differ in many bits */

/* `place` belongs to the first element. Whole numbers: any order of the sum has the same bits. With AVX-512 the
 * products are one instruction for eight elements, which makes this twice as fast as one element at a time. */
SH_CLONES static uint64_t sum_elems(const float *data, int64_t elems, uint64_t place)
{
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum) linear(place : K)
    for (int64_t i = 0; i < elems; i++) {
        sum += mix(sh_f32_to_bits(data[i]) ^ place);
        place += K;
    }
    return sum;
}

uint64_t sh_ckpt_digest_part(uint64_t seed, int64_t block, const float *data, int64_t at, int64_t elems)
{
    return sum_elems(data, elems, (uint64_t)(at + 1) * K + sh_mix64(seed ^ (uint64_t)block));
}
