/* This file must not get the special flags of some files (Makefile.am): those let the compiler regroup sums. */
#include "src/base/number/exact.h"

#include "src/base/clones.h"

#include <math.h>
#include <string.h>

/* Digit 0 counts units of 2^-352. 64 blocks are squared before their sums are added: 4096 floats fit in the L1
 * cache. */
enum { LOWEST = -352, BITS = 32, LANES = 8, BLOCKS = 64 };

/* The square of a float is exact in a double, so it does not matter whether a compiler fuses the multiplication and the
 * addition. Eight parallel sums suit vector units; missing elements of a last block count as zeros. */
static inline __attribute__((always_inline)) double block_sum(const float *a, int n)
{
    double lane[LANES] = {0};

    if (n == SH_EXACT_BLOCK)
        for (int i = 0; i < SH_EXACT_BLOCK; i += LANES)
            for (int k = 0; k < LANES; k++)
                lane[k] += (double)a[i + k] * (double)a[i + k];
    else
        for (int i = 0; i < n; i++)
            lane[i % LANES] += (double)a[i] * (double)a[i];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* value >= 0. Its 53 bits, shifted into position, span up to three digits. */
static void add_value(struct sh_exact *sum, double value)
{
    uint64_t bits, mantissa, low, high;
    int exponent, shift;
    uint64_t *digit;

    memcpy(&bits, &value, sizeof bits);
    exponent = (int)(bits >> 52 & 0x7ff);
    /* Inf and NaN have no digits; they are summed separately, and a single one makes the whole sum not finite. */
    if (exponent == 0x7ff) {
        sum->not_finite += value;
        return;
    }
    if (bits == 0)
        return;
    mantissa = (bits & 0xfffffffffffffu) | 0x10000000000000u;
    /* 1075 = 1023 + 52: the bias, and the 52 bits below the leading one. Block sums are never denormal, since the
     * smallest square of a float is 2^-298. */
    shift = exponent - 1075 - LOWEST; /* of the mantissa's last bit */
    digit = &sum->digit[shift / BITS];
    low = (mantissa & 0xffffffffu) << shift % BITS;
    high = (mantissa >> BITS) << shift % BITS;
    digit[0] += low & 0xffffffffu;
    digit[1] += (low >> BITS) + (high & 0xffffffffu);
    digit[2] += high >> BITS;
}

/* sum [ceil(n / 64)]; only the last block may be short. */
SH_CLONES static void block_sums(double *sum, const float *a, int64_t n)
{
    for (int64_t at = 0; at < n; at += SH_EXACT_BLOCK)
        sum[at / SH_EXACT_BLOCK] = block_sum(a + at, n - at < SH_EXACT_BLOCK ? (int)(n - at) : SH_EXACT_BLOCK);
}

/* First the vectorised loops, then those over integers. */
void sh_exact_add_squares(struct sh_exact *sum, const float *a, int64_t n)
{
    enum { STRIDE = BLOCKS * SH_EXACT_BLOCK };
    double of[BLOCKS];

    for (int64_t at = 0; at < n; at += STRIDE) {
        int64_t here = n - at < STRIDE ? n - at : STRIDE;

        block_sums(of, a + at, here);
        for (int64_t i = 0; i * SH_EXACT_BLOCK < here; i++)
            add_value(sum, of[i]);
    }
}

/* Digits have 32 spare bits above their value, so carries may wait until sh_exact_put(). */
void sh_exact_add(struct sh_exact *sum, const struct sh_exact *more)
{
    for (int i = 0; i < SH_EXACT_DIGITS + 2; i++)
        sum->digit[i] += more->digit[i];
    sum->not_finite += more->not_finite;
}

/* The last digit has no upper neighbour, but sums in range leave it far below 2^32. */
static void carry(struct sh_exact *sum)
{
    for (int i = 0; i + 1 < SH_EXACT_DIGITS; i++) {
        sum->digit[i + 1] += sum->digit[i] >> BITS;
        sum->digit[i] &= 0xffffffffu;
    }
}

/* After a collective each digit is below 2^52, which a double holds exactly. */
void sh_exact_get(struct sh_exact *sum, const double *elems)
{
    *sum = (struct sh_exact){.not_finite = elems[SH_EXACT_DIGITS]};
    for (int i = 0; i < SH_EXACT_DIGITS; i++)
        sum->digit[i] = (uint64_t)elems[i];
}

void sh_exact_put(struct sh_exact *sum, double *elems)
{
    carry(sum);
    for (int i = 0; i < SH_EXACT_DIGITS; i++)
        elems[i] = (double)sum->digit[i];
    elems[SH_EXACT_DIGITS] = sum->not_finite;
}

/* The first 64 significant bits round like all bits would; the last of them also stands for everything below it. */
double sh_exact_round(struct sh_exact *sum)
{
    uint64_t top, next, head;
    int i = SH_EXACT_DIGITS - 1, free_bits;

    carry(sum);
    if (sum->not_finite != 0)
        return sum->not_finite;
    while (i > 0 && !sum->digit[i])
        i--;
    /* At most one digit: 32 bits, which a double holds exactly. */
    if (!i)
        return ldexp((double)sum->digit[0], LOWEST);
    top = sum->digit[i] << BITS | sum->digit[i - 1];
    next = i > 1 ? sum->digit[i - 2] : 0;
    free_bits = __builtin_clzll(top);
    head = free_bits ? top << free_bits | next >> (BITS - free_bits) : top;
    /* Bits below the 64 matter only as "not zero": they break a tie, whatever their value. */
    next = next << free_bits & 0xffffffffu;
    for (int below = i - 3; below >= 0; below--)
        next |= sum->digit[below];
    return ldexp((double)(head | (next != 0)), (i - 1) * BITS + LOWEST - free_bits);
}
