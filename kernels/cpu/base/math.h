/* Elementary functions that a compiler can vectorise: no branch, no table, no call. For the inner loops of
 * kernels/cpu.
 *
 * NaN gives NaN and +-Inf give the limits. Nothing here breaks under -fassociative-math: if regrouping a sum would
 * lose the digits that matter, something separates its parts. All local, no state. */
#ifndef SH_KERNELS_CPU_MATH_H
#define SH_KERNELS_CPU_MATH_H

#include "src/base/clones.h"
#include "src/base/number/dtype.h"

#include <math.h>

/* e^x within 1.3 ulp for -87.33 <= x <= 88.37, where it and its intermediate steps are normal numbers; 0 below, Inf
 * above. x = n ln 2 + r: adding 1.5 * 2^23 leaves the rounded n in the low bits. n ln 2 is subtracted in two parts,
 * the first of which is exact since 0.693359375 = 355/512. The limit on h never takes effect where the result is
 * used; it is there because a compiler may not regroup the two subtractions across it, which would cost 60 ulp. e^r
 * is a polynomial of degree 6 (minimax on |r| <= 0.3475, relative error 4e-9) and 2^n an exponent. */
static inline float sh_expf(float x)
{
    const float round = 12582912.0f;
    uint32_t bits = sh_f32_to_bits(x * 1.44269504f + round) - 0x4b400000u;
    float n = (float)(int32_t)bits;
    float h = x - n * 0.693359375f;
    h = h > 1.0f ? 1.0f : h;
    float r = h + n * 2.12194440e-4f;
    float q = 0.49999994f + r * (0.16666520f + r * (0.041668404f + r * (0.0083688991f + r * 0.0013814222f)));
    float p = 1.0f + (r + r * r * q);
    float y = p * sh_bits_to_f32((bits + 127u) << 23);

    y = x < -87.33f ? 0.0f : y;
    return x > 88.37f ? INFINITY : y;
}

/* tanh(x) within 4 ulp: near 0 by its series, whose next term is below 2^-26 there; elsewhere by e^(-2|x|). */
static inline float sh_tanhf(float x)
{
    float a = fabsf(x), z = a * a, e = sh_expf(-2.0f * a);
    float p = 2.0f / 15 + z * (-17.0f / 315 + z * (62.0f / 2835 + z * (-1382.0f / 155925)));

    return copysignf(a < 0.35f ? a + a * z * (-1.0f / 3 + z * p) : (1.0f - e) / (1.0f + e), x);
}

/* 1 / (1 + e^-x) */
static inline float sh_sigmoidf(float x)
{
    return 1.0f / (1.0f + sh_expf(-x));
}

#endif
