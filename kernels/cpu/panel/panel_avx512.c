/* Products of pairs of bf16 by AVX-512 (avx512_bf16): 2 x 16 x 2 operations per cycle if the processor issues one
 * 512-bit vector operation per cycle. Floor, measured on a core of a Zen 4 at 3.65 GHz: 233 GFLOP/s by vdpbf16ps
 * alone, with or without a broadcast operand. Products of panels run at 230 if they are 8 steps deep and come from
 * the L2 cache, at 217 if they are 2. Registers for 12 rows instead of 8 gain nothing. */
#include "sherd_config.h"

#include "kernels/cpu/panel/panel.h"

#ifdef SH_WIDE

#include "src/base/isa.h"

#include <immintrin.h>
#include <string.h>

enum { SIDE = SH_PANEL_SIDE, HALF = SIDE / 2, TILE = SH_PANEL_STEP / 2, PAIRS = SIDE / 2, ROWS = 8 };

/* On the Intel CPUs that were measured these products take twice as long as f32 products (panel_wide.c). */
static bool usable(void)
{
    return sh_isa_has(SH_ISA_AVX512_BF16) && __builtin_cpu_is("amd");
}

/* Two inner elements of a row, repeated for 16 columns. */
static SH_WIDE inline __m512bh broadcast(const sh_bf16 *pair)
{
    int32_t bits;
    memcpy(&bits, pair, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

static SH_WIDE inline __m512bh load(const sh_bf16 *pairs)
{
    return (__m512bh)_mm512_load_si512(pairs);
}

/* ROWS rows of sums: 16 registers for them, two for the pairs of the columns, and one for the pair of a row. */
static SH_WIDE void multiply_rows(const sh_bf16 *rows, const sh_bf16 *cols, float *sums, int64_t steps, bool add)
{
    __m512 lo[ROWS], hi[ROWS];

    _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)
    {
        lo[i] = add ? _mm512_load_ps(sums + i * SIDE) : _mm512_setzero_ps();
        hi[i] = add ? _mm512_load_ps(sums + i * SIDE + HALF) : _mm512_setzero_ps();
    }
    for (; steps > 0; steps--, rows += SH_PANEL_STEP, cols += SH_PANEL_STEP) {
        _Pragma("GCC unroll 16") for (int p = 0; p < PAIRS; p++)
        {
            __m512bh left = load(cols + p * SIDE), right = load(cols + TILE + p * SIDE);
            _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)
            {
                __m512bh pair = broadcast(rows + i * SIDE + 2 * p);
                lo[i] = _mm512_dpbf16_ps(lo[i], left, pair);
                hi[i] = _mm512_dpbf16_ps(hi[i], right, pair);
            }
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)
    {
        _mm512_store_ps(sums + i * SIDE, lo[i]);
        _mm512_store_ps(sums + i * SIDE + HALF, hi[i]);
    }
}

static SH_WIDE void multiply(const void *rows, const void *cols, float *sums, int64_t steps, bool add, int64_t live)
{
    for (int i = 0; i < live; i += ROWS)
        multiply_rows((const sh_bf16 *)rows + i * SIDE, cols, sums + i * SIDE, steps, add);
}

/* For 1 MiB of L2: slices of 8 panels are no faster, and 2,304 columns would not divide between two threads. */
const struct sh_panel_unit sh_panel_avx512 = {
    .name = "AVX-512 bf16", .usable = usable, .multiply = multiply, .slice = 4};

#endif
