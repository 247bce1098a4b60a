/* Element types of tensors and their conversions, which include/sherd/op.h has for plug-ins too, and one that rounds
 * stochastically. Local, no state. */
#ifndef SH_BASE_DTYPE_H
#define SH_BASE_DTYPE_H

#include "include/sherd/op.h"

#ifdef __CUDACC__
#define SH_DTYPE static inline __host__ __device__
#else
#define SH_DTYPE static inline
#endif

/* Round stochastically to one of the two neighbours in bf16. The probability of rounding away from 0 is the fraction of
 * the distance between them that bf16 cuts off; it is exact if the last 16 bits of `random` are uniformly distributed,
 * and the other bits are not used. So the mean over `random` is the number itself. Numbers of bf16 are unchanged, Inf
 * included; NaN stays NaN. Finite numbers stay finite, so those beyond the largest number of bf16 are rounded down. */
SH_DTYPE sh_bf16 sh_f32_to_bf16_stochastic(float f, uint32_t random)
{
    uint32_t u, size, rounded;
    memcpy(&u, &f, 4);
    size = u & 0x7fffffffu;
    rounded = size > 0x7f7f0000u ? u : u + (random & 0xffffu);
    return (sh_bf16)((size > 0x7f800000u ? rounded | 0x400000u : rounded) >> 16);
}

#endif
