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

enum { SIDE = SH_PANEL_SIDE, HALF = SIDE / 2, TILE = SH_PANEL_STEP / 2, PAIRS = SIDE / 2, ROWS = 8, MOST = 16 };
/* Inner elements of stored rows that are brought near at a time, and a row of them: an odd number of lines. */
enum { CHUNK = 8 * SIDE, APART = CHUNK + SIDE };

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

/* Rows in pairs of inner elements: `below` from one row to the next, `step` from one step to the next, of which `pairs` are
 * multiplied. Meanwhile as many rows from `next` on, `stored` apart, are asked for, unless it is NULL. */
struct rows {
    const sh_bf16 *at, *next;
    int64_t below, step, stored;
    int pairs;
};

/* `n` rows of sums, of 32 columns or of 16: at most 16 registers for them, two for the pairs of the columns, and one for
 * the pair of a row. */
static SH_WIDE inline __attribute__((always_inline)) void
multiply_rows(struct rows r, const sh_bf16 *cols, float *sums, int64_t steps, bool add, const int n, const bool wide)
{
    __m512 lo[MOST], hi[MOST];

    _Pragma("GCC unroll 16") for (int i = 0; i < n; i++)
    {
        lo[i] = add ? _mm512_load_ps(sums + i * SIDE) : _mm512_setzero_ps();
        hi[i] = add && wide ? _mm512_load_ps(sums + i * SIDE + HALF) : _mm512_setzero_ps();
    }
    for (int64_t k = 0; steps > 0; steps--, k += SIDE, r.at += r.step, cols += SH_PANEL_STEP) {
        _Pragma("GCC unroll 16") for (int p = 0; p < r.pairs; p++)
        {
            if (r.next && p < n)
                __builtin_prefetch(r.next + p * r.stored + k, 0, 2);
            __m512bh left = load(cols + p * SIDE), right = wide ? load(cols + TILE + p * SIDE) : left;
            _Pragma("GCC unroll 16") for (int i = 0; i < n; i++)
            {
                __m512bh pair = broadcast(r.at + i * r.below + 2 * p);
                lo[i] = _mm512_dpbf16_ps(lo[i], left, pair);
                if (wide)
                    hi[i] = _mm512_dpbf16_ps(hi[i], right, pair);
            }
        }
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < n; i++)
    {
        _mm512_store_ps(sums + i * SIDE, lo[i]);
        if (wide)
            _mm512_store_ps(sums + i * SIDE + HALF, hi[i]);
    }
}

static SH_WIDE void multiply(const void *rows, const void *cols, float *sums, int64_t steps, bool add, int64_t live)
{
    for (int i = 0; i < live; i += ROWS) {
        struct rows r = {.at = (const sh_bf16 *)rows + i * SIDE, .below = SIDE, .step = SH_PANEL_STEP, .pairs = PAIRS};
        multiply_rows(r, cols, sums + i * SIDE, steps, add, ROWS, true);
    }
}

static SH_WIDE void multiply_half(const sh_bf16 *rows, const sh_bf16 *cols, float *sums)
{
    for (int i = 0; i < SIDE; i += ROWS) {
        struct rows r = {.at = rows + i * SIDE, .below = SIDE, .pairs = PAIRS / 2};
        multiply_rows(r, cols, sums + i * SIDE, 1, false, ROWS, true);
    }
}

/* 32 rows of `inner` elements, side by side. */
static SH_WIDE void bring(const sh_bf16 *rows, int64_t ld, int64_t inner, sh_bf16 *near)
{
    for (int i = 0; i < SIDE; i++, rows += ld, near += APART)
        for (int64_t k = 0; k < inner; k += SIDE)
            _mm512_store_si512(near + k, _mm512_loadu_si512(rows + k));
}

/* Rows are often a multiple of 4 KiB apart, so that no more than 8 of their lines are in the L1 cache at a time, and each
 * line is read 16 times. After the last elements of these rows come the first ones of the 32 rows below. */
static SH_WIDE void multiply_stored(const sh_bf16 *rows, int64_t ld, const sh_bf16 *cols, float *sums, int64_t steps,
                                    bool add, int64_t live)
{
    _Alignas(64) sh_bf16 near[SIDE * APART];
    const sh_bf16 *below = rows + SIDE * ld;
    const int n = live > HALF ? ROWS : MOST;

    for (int64_t s = 0; s < steps; s += CHUNK / SIDE, rows += CHUNK, cols += CHUNK * SIDE) {
        int64_t here = sh_panel_least(steps - s, CHUNK / SIDE);
        struct rows r = {.below = APART, .step = SIDE, .stored = ld, .pairs = PAIRS};
        bring(rows, ld, here * SIDE, near);
        for (int i = 0; i < SIDE; i += n) {
            r.at = near + i * APART;
            r.next = (s + here < steps ? rows + CHUNK : below) + i * ld;
            if (live > HALF)
                multiply_rows(r, cols, sums + i * SIDE, here, add || s, ROWS, true);
            else
                multiply_rows(r, cols, sums + i * SIDE, here, add || s, MOST, false);
        }
    }
}

/* For 1 MiB of L2: slices of 8 panels are no faster, and 2,304 columns would not divide between two threads. */
const struct sh_panel_unit sh_panel_avx512 = {.name = "AVX-512 bf16",
                                              .usable = usable,
                                              .multiply = multiply,
                                              .multiply_stored = multiply_stored,
                                              .multiply_half = multiply_half,
                                              .asks = true,
                                              .slice = 4};

#endif
