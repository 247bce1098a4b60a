/* Moves floats between one array and two: 8 bytes per element. In the L1 cache, split runs at 33 GB/s of f32, join at
 * 62. */
#include "src/base/number/floats.h"

#include "src/base/clones.h"

/* Compiled for several vector widths; the loader picks the one that the CPU has. */
SH_CLONES static void join(float *to, const sh_bf16 *high, const int16_t *low, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        to[i] = sh_floats_join(high[i], low[i]);
}

SH_CLONES static void split(sh_bf16 *high, int16_t *low, const float *from, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sh_floats_split(from[i], &high[i], &low[i]);
}

SH_CLONES static void widen(float *to, const sh_bf16 *high, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        to[i] = sh_floats_join(high[i], 0);
}

/* The upper halves alone. */
SH_CLONES static void narrow(sh_bf16 *high, const float *from, int64_t n)
{
    int16_t low;

#pragma omp simd private(low)
    for (int64_t i = 0; i < n; i++)
        sh_floats_split(from[i], &high[i], &low);
}

/* to [n] f32. Whole floats need one memcpy; halves are joined from 2 bytes each; blocks are unpacked,
 * and codes widened. */
void sh_floats_get(struct sh_floats from, int64_t n, float *to)
{
    if (from.whole)
        memcpy(to, from.whole, (size_t)n * sizeof *to);
    else if (from.low)
        join(to, from.high, from.low, n);
    else if (from.packed)
        sh_nf4_unpack(from.packed, n / SH_NF4_ELEMS, to);
    else if (from.coded)
        sh_code8_get(from.coded, from.law, n, to);
    else
        widen(to, from.high, n);
}

void sh_floats_put(struct sh_floats to, int64_t n, const float *from)
{
    if (to.whole)
        memcpy(to.whole, from, (size_t)n * sizeof *from);
    else if (to.low)
        split(to.high, to.low, from, n);
    else if (to.packed)
        sh_nf4_pack(from, n / SH_NF4_ELEMS, to.packed);
    else if (to.coded)
        sh_code8_put(to.coded, to.law, n, from);
    else
        narrow(to.high, from, n);
}
