/* Philox4x32, and the sum of its bits from which src/base/number/rng.h makes deviates. A CPU and a GPU compute the same, in
 * C, C++ and CUDA. Pure functions. Source: see rng.h. */
#ifndef SH_BASE_PHILOX_H
#define SH_BASE_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define SH_PHILOX static inline __host__ __device__
#else
#define SH_PHILOX static inline
#endif

SH_PHILOX void sh_philox_round(uint32_t c[4], const uint32_t k[2])
{
    uint64_t p0 = (uint64_t)0xd2511f53u * c[0];
    uint64_t p1 = (uint64_t)0xcd9e8d57u * c[2];
    uint32_t c1 = c[1], c3 = c[3];
    c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k[0];
    c[1] = (uint32_t)p1;
    c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k[1];
    c[3] = (uint32_t)p0;
}

/* Advances the key between two rounds. */
SH_PHILOX void sh_philox_next_key(uint32_t k[2])
{
    k[0] += 0x9e3779b9u;
    k[1] += 0xbb67ae85u;
}

/* One block of so many rounds: 128 random bits for a 64-bit key and a 128-bit counter. Low words come first in key, counter
 * and out. Seven rounds are the fewest that pass all tests of BigCrush (table 2 of the source); ten are the usual number. */
SH_PHILOX void sh_philox_block_of(int rounds, uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4])
{
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    out[0] = (uint32_t)counter_lo;
    out[1] = (uint32_t)(counter_lo >> 32);
    out[2] = (uint32_t)counter_hi;
    out[3] = (uint32_t)(counter_hi >> 32);
    for (int r = 0; r < rounds; r++) {
        sh_philox_round(out, k);
        sh_philox_next_key(k);
    }
}

/* Philox4x32-10. */
SH_PHILOX void sh_philox_block(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4])
{
    sh_philox_block_of(10, key, counter_hi, counter_lo, out);
}

/* The sum of the eight halves of block i of the key, less its mean. */
SH_PHILOX int32_t sh_philox_centred_sum(uint64_t key, uint64_t i)
{
    uint32_t block[4];
    int32_t sum = 0;
    sh_philox_block(key, 0, i, block);
    for (int w = 0; w < 4; w++)
        sum += (int32_t)(block[w] & 0xffffu) + (int32_t)(block[w] >> 16);
    return sum - 262140;
}

#endif
