/* Counter-based random numbers: number i of a stream is a pure function of (key, i), so every rank can make its own
 * part of a tensor, in any order, and the values do not depend on the mesh. No state; all functions are local.
 *
 * Source: Philox4x32-10, Salmon, Moraes, Dror and Shaw, SC11 (doi:10.1145/2063384.2063405). */
#ifndef SH_BASE_RNG_H
#define SH_BASE_RNG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One block: 128 random bits for a 64-bit key and a 128-bit counter. Low words come first in key, counter and out. */
void sh_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]);

/* The key of a named stream of a run, for example that of the initial values of one tensor. */
uint64_t sh_rng_key(uint64_t seed, const char *name);

/* The same in two steps: a number for the name, then the key for that number. */
uint64_t sh_rng_name(const char *name);
uint64_t sh_rng_key_of(uint64_t seed, uint64_t name);

/* Some elements of a stream: `count` runs of n neighbours, the first from element `first` on, and each `stride` behind
 * the one before. */
struct sh_rng_runs {
    int64_t first, n, stride, count;
};

/* Fill with elements [first, first + n) of the stream `key`, nearly normally distributed with mean 0 and standard
 * deviation `std`.
 *   out  out  [n] f32, host; out[j] depends only on (key, first + j, std)
 *
 * A deviate is the sum S of the eight 16-bit halves of one Philox block, less its mean 8 * 65535 / 2 = 262140, times
 * one float. S is an exact integer and the product is one IEEE multiplication. There is no logarithm or cosine, whose
 * last bits differ between libraries, so CPU and GPU give the same bits. S has variance 8 * (2^32 - 1) / 12, which the
 * factor removes exactly (up to the rounding of a float). The deviates lie within +-4.9 std, and have 524281 levels and
 * an excess kurtosis of -0.15. */
void sh_rng_fill_normal(uint64_t key, int64_t first, int64_t n, float std, float *out);

/* The same for numbers uniformly distributed within +-bound: 2^32 levels, symmetric. */
void sh_rng_fill_uniform(uint64_t key, int64_t first, int64_t n, float bound, float *out);

/* The float that multiplies S (sh_philox_centred_sum() of philox.h). */
float sh_rng_normal_scale(float std);

#ifdef __cplusplus
}
#endif

#endif
