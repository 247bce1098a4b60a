/* The last step of a product of panels: bias, addend, rounding, and stores past the caches. */
#include "sherd_config.h"

#include "kernels/cpu/panel/panel.h"

#include "kernels/cpu/base/block.h"

enum { SIDE = SH_PANEL_SIDE, HALF = SIDE / 2 };

#ifdef SH_WIDE

#include <immintrin.h>

/* Streamed stores become visible to other threads only after a fence. */
SH_WIDE void sh_panel_fence(void)
{
    _mm_sfence();
}

/* Widen 16 elements to f32. A bf16 is the upper half of a float, so a shift is exact. */
static SH_WIDE inline __m512 widen(const void *p, enum sh_dtype dtype, __mmask16 mask)
{
    if (dtype == SH_F32)
        return _mm512_maskz_loadu_ps(mask, p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
}

/* Up to 16 sums of a row, from column `col` on, with bias and addend added. */
static SH_WIDE inline __m512 finish(const struct sh_matmul *g, const float *sums, int64_t row, int64_t col,
                                    __mmask16 mask)
{
    __m512 x = _mm512_load_ps(sums);

    if (g->bias)
        x = _mm512_add_ps(x, widen(sh_cpu_at(g->bias, g->in_dtype, col), g->in_dtype, mask));
    if (g->addend)
        x = _mm512_add_ps(x, widen(sh_cpu_at(g->addend, g->out_dtype, row * g->ldc + col), g->out_dtype, mask));
    return x;
}

/* Whether to store past the caches, without reading the line first: only for whole lines that are not in the caches
 * already, and only for a C that would be evicted before it is read again. */
static bool streams(const struct sh_matmul *g, int64_t row, int64_t col, int64_t squares)
{
    enum { LARGE = 1 << 20 };
    int64_t bytes = sh_dtype_bytes(g->out_dtype), rows = g->c_rows > g->m ? g->c_rows : g->m;
    uintptr_t at = (uintptr_t)sh_cpu_at(g->c, g->out_dtype, row * g->ldc + col);

    return g->addend != g->c && rows * g->n * bytes >= LARGE && at % 64 == 0 && g->ldc * bytes % 64 == 0 &&
           g->n - col >= squares * SIDE;
}

/* Whole squares only: no masks, and lo and hi of a row are one or two full lines. Row by row, as memory is written best. */
static SH_WIDE void stream(const struct sh_matmul *g, const float *sums, int64_t row, int64_t col, int64_t squares)
{
    for (int64_t r = row; r < sh_panel_least(g->m, row + SIDE); r++, sums += SIDE)
        for (int64_t i = 0; i < squares; i++) {
            const float *square = sums + i * SH_PANEL_STEP;
            int64_t at = col + i * SIDE;
            __m512 lo = finish(g, square, r, at, 0xffff), hi = finish(g, square + HALF, r, at + HALF, 0xffff);
            void *c = sh_cpu_at(g->c, g->out_dtype, r * g->ldc + at);
            if (g->out_dtype == SH_F32) {
                _mm512_stream_ps(c, lo);
                _mm512_stream_ps((float *)c + HALF, hi);
            } else {
                _mm512_stream_si512(c, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
            }
        }
}

static SH_WIDE inline void store(const struct sh_matmul *g, __m512 x, int64_t row, int64_t col, __mmask16 mask)
{
    void *c = sh_cpu_at(g->c, g->out_dtype, row * g->ldc + col);

    if (g->out_dtype == SH_F32)
        _mm512_mask_storeu_ps(c, mask, x);
    else
        _mm256_mask_storeu_epi16(c, mask, (__m256i)_mm512_cvtneps_pbh(x));
}

/* Whether whole squares are rounded once with what they are added to, and nothing else: the usual case of an addend. */
static bool only_adds(const struct sh_matmul *g, int64_t col, int64_t squares)
{
    return g->out_dtype == SH_BF16 && g->addend && !g->bias && col + squares * SIDE <= g->n;
}

/* Row by row, as memory is read best; the next row's lines are asked for. */
static SH_WIDE void add_squares(const struct sh_matmul *g, const float *sums, int64_t row, int64_t col, int64_t squares)
{
    for (int64_t r = row; r < sh_panel_least(g->m, row + SIDE); r++, sums += SIDE) {
        sh_bf16 *c = (sh_bf16 *)g->c + r * g->ldc + col;
        const sh_bf16 *addend = (const sh_bf16 *)g->addend + r * g->ldc + col;
        for (int64_t i = 0; i < squares; i++, c += SIDE, addend += SIDE) {
            const float *square = sums + i * SH_PANEL_STEP;
            __builtin_prefetch(addend + g->ldc, 0, 2);
            __m512 lo = _mm512_add_ps(_mm512_load_ps(square), sh_wide_load(addend, 0xffff));
            __m512 hi = _mm512_add_ps(_mm512_load_ps(square + HALF), sh_wide_load(addend + HALF, 0xffff));
            _mm512_storeu_si512(c, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
        }
    }
}

/* Store the sums of one square to C, with bias and addend, in C's type. At the edges masks leave out what is past C. */
SH_WIDE void sh_panel_emit(const struct sh_matmul *g, const float *sums, int64_t row, int64_t col)
{
    int64_t rows = sh_panel_least(g->m - row, SIDE), cols = sh_panel_least(g->n - col, SIDE);
    __mmask32 mask = cols == SIDE ? 0xffffffffu : (1u << cols) - 1;

    if (streams(g, row, col, 1)) {
        stream(g, sums, row, col, 1);
        return;
    }
    if (only_adds(g, col, 1)) {
        add_squares(g, sums, row, col, 1);
        return;
    }
    for (int64_t r = row; r < row + rows; r++, sums += SIDE) {
        /* Two halves of 16, since a vector holds 16 floats. */
        for (int64_t h = 0; h < SIDE; h += HALF) {
            __mmask16 half = (__mmask16)(mask >> h);
            store(g, finish(g, sums + h, r, col + h, half), r, col + h, half);
        }
    }
}

void sh_panel_emit_band(const struct sh_matmul *g, const float *sums, int64_t row, int64_t col, int64_t squares)
{
    if (streams(g, row, col, squares)) {
        stream(g, sums, row, col, squares);
        return;
    }
    if (only_adds(g, col, squares)) {
        add_squares(g, sums, row, col, squares);
        return;
    }
    for (int64_t i = 0; i < squares; i++)
        sh_panel_emit(g, sums + i * SH_PANEL_STEP, row, col + i * SIDE);
}

#endif

#ifdef SH_PANELS
/* Called before the product, so that the addend is in the cache when the sums are ready. */
void sh_panel_prefetch_addend(const struct sh_matmul *g, int64_t row, int64_t col)
{
    if (!g->addend || row >= g->m || col >= g->n)
        return;
    for (int64_t r = row; r < sh_panel_least(g->m, row + SIDE); r++)
        sh_panel_prefetch(sh_cpu_at(g->addend, g->out_dtype, r * g->ldc + col), SIDE * sh_dtype_bytes(g->out_dtype));
}
#endif
