/* Products of bf16 by f32's multiply-adds of AVX-512, for processors on which they are faster than those of pairs of bf16:
 * panels are widened when they are packed. Both kinds of panels are [inner elements][SIDE] f32. Floor, measured on a core
 * of an Intel Xeon at 2.8 GHz: 178 GFLOP/s by vfmadd alone, 89 by vdpbf16ps. */
#include "sherd_config.h"

#include "kernels/cpu/panel/panel.h"

#ifdef SH_WIDE

#include "src/base/isa.h"

#include <immintrin.h>

enum { SIDE = SH_PANEL_SIDE, HALF = SIDE / 2, ROWS = 8 };

static bool usable(void)
{
    return sh_isa_has(SH_ISA_AVX512_BF16);
}

/* ROWS rows of sums, in 16 registers. */
static SH_WIDE void multiply_rows(const float *rows, const float *cols, float *sums, int64_t depth, bool add)
{
    __m512 lo[ROWS], hi[ROWS];

    _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)
    {
        lo[i] = add ? _mm512_load_ps(sums + i * SIDE) : _mm512_setzero_ps();
        hi[i] = add ? _mm512_load_ps(sums + i * SIDE + HALF) : _mm512_setzero_ps();
    }
    for (; depth > 0; depth--, rows += SIDE, cols += SIDE) {
        __m512 left = _mm512_load_ps(cols), right = _mm512_load_ps(cols + HALF);
        _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)
        {
            __m512 row = _mm512_set1_ps(rows[i]);
            lo[i] = _mm512_fmadd_ps(row, left, lo[i]);
            hi[i] = _mm512_fmadd_ps(row, right, hi[i]);
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
        multiply_rows((const float *)rows + i, cols, sums + i * SIDE, steps * SIDE, add);
}

/* For 2 MiB of L2: slices of 4 panels are 2 to 5 % slower where the inner dimension is deep. */
const struct sh_panel_unit sh_panel_wide = {
    .name = "AVX-512 f32", .usable = usable, .multiply = multiply, .slice = 8, .wide = true};

#endif
