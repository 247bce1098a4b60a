/* Products in bf16 by the tile unit (AMX), where the libraries leave a third to a half of it unused: they pack both sides
 * again and again, or store each partial sum.
 *
 * A block of at most BLOCK rows, columns and inner elements is packed once by all threads and multiplied as patches of
 * PATCH x PATCH, or smaller ones where threads would idle. While a patch takes its depth in stretches of DEPTH, a panel of columns stays in the L1 cache (16 KiB), the
 * patch's rows and sums in L2. A sum takes its inner elements in ascending order whatever thread works on it, so that the
 * number of threads changes no bit.
 * Floor: 2*m*n*k operations at 2 x 16 x 16 x 32 in 16 cycles; the caches give half of that (see doc/performance.md). */
#include "sherd_config.h"

#include "kernels/cpu/amx.h"

#ifdef SH_AMX

#include "kernels/cpu/block.h"
#include "kernels/cpu/gemm_engine.h"

#include <immintrin.h>
#include <omp.h>

enum { SIDE = SH_AMX_SIDE, STEP = SH_AMX_STEP, BLOCK = 1024, DEPTH = 256, PATCH = 512, TILE = STEP / 2 };
enum { PANEL = BLOCK * SIDE }; /* elements of the deepest panel */

/* What is multiplied now: rows [row, row + m), columns [col, col + n), inner elements [in, in + k) of the product. */
struct block {
    const struct sh_gemm *g;
    int64_t row, col, in, m, n, k;
    sh_bf16 *a, *b; /* panels of BLOCK / SIDE rows and columns, PANEL elements apart */
    float *sums;    /* [BLOCK / SIDE][BLOCK / SIDE][SIDE][SIDE] */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t panels(int64_t n)
{
    return div_up(n, SIDE);
}

/* All eight tiles: 16 rows of 64 bytes. Static, since GCC 12 believes that loading it reads eight bytes, and drops what is
 * written to the others. */
static const struct {
    uint8_t palette, start, rest[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} all_tiles = {.palette = 1,
               .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

static SH_AMX void set_tiles(void)
{
    _tile_loadconfig(&all_tiles);
}

static SH_AMX void drop_tiles(void)
{
    _tile_release();
}

/* sums [SIDE,SIDE] (+)= panel of rows x panel of columns, `steps` steps deep. */
static SH_AMX void multiply(const sh_bf16 *a, const sh_bf16 *b, float *sums, int64_t steps, bool add)
{
    enum { HALF = SIDE / 2, BYTES = SIDE * 4 };

    if (add) {
        _tile_loadd(0, sums, BYTES);
        _tile_loadd(1, sums + HALF, BYTES);
        _tile_loadd(2, sums + HALF * SIDE, BYTES);
        _tile_loadd(3, sums + HALF * SIDE + HALF, BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (; steps > 0; steps--, a += STEP, b += STEP) {
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, BYTES);
    _tile_stored(1, sums + HALF, BYTES);
    _tile_stored(2, sums + HALF * SIDE, BYTES);
    _tile_stored(3, sums + HALF * SIDE + HALF, BYTES);
}

static float *sums_at(const struct block *b, int64_t i, int64_t j)
{
    return b->sums + (i * (BLOCK / SIDE) + j) * STEP;
}

static void pack_rows(const struct block *b, int64_t i)
{
    const struct sh_gemm *g = b->g;
    int64_t row = b->row + i * SIDE;
    struct sh_amx_source s = {
        .data = (const sh_bf16 *)g->a + (g->trans_a ? b->in * g->lda + row : row * g->lda + b->in),
        .step = g->lda, .inner_rows = g->trans_a, .sides = least(b->m - i * SIDE, SIDE), .depth = b->k};
    sh_amx_pack_rows(&s, b->a + i * PANEL);
}

static void pack_cols(const struct block *b, int64_t j)
{
    const struct sh_gemm *g = b->g;
    int64_t col = b->col + j * SIDE;
    struct sh_amx_source s = {
        .data = (const sh_bf16 *)g->b + (g->trans_b ? col * g->ldb + b->in : b->in * g->ldb + col),
        .step = g->ldb, .inner_rows = !g->trans_b, .sides = least(b->n - j * SIDE, SIDE), .depth = b->k};
    sh_amx_pack_cols(&s, b->b + j * PANEL);
}

static SH_AMX inline __m512 widen(const void *p, enum sh_dtype dtype, __mmask16 mask)
{
    if (dtype == SH_F32)
        return _mm512_maskz_loadu_ps(mask, p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
}

/* Up to 16 sums of a row, from column `col` on, into C. */
static SH_AMX inline void emit(const struct sh_gemm *g, __m512 x, int64_t row, int64_t col, __mmask16 mask)
{
    int64_t at = row * g->ldc + col;
    void *c = sh_cpu_at(g->c, g->out_dtype, at);

    if (g->bias)
        x = _mm512_add_ps(x, widen(sh_cpu_at(g->bias, g->in_dtype, col), g->in_dtype, mask));
    if (g->addend)
        x = _mm512_add_ps(x, widen(sh_cpu_at(g->addend, g->out_dtype, at), g->out_dtype, mask));
    if (g->out_dtype == SH_F32)
        _mm512_mask_storeu_ps(c, mask, x);
    else
        _mm256_mask_storeu_epi16(c, mask, (__m256i)_mm512_cvtneps_pbh(x));
}

static SH_AMX void emit_tile(const struct block *b, int64_t i, int64_t j)
{
    enum { HALF = SIDE / 2 };
    const float *sums = sums_at(b, i, j);
    int64_t rows = least(b->m - i * SIDE, SIDE), cols = least(b->n - j * SIDE, SIDE);
    __mmask32 mask = cols == SIDE ? 0xffffffffu : (1u << cols) - 1;

    for (int64_t r = 0; r < rows; r++, sums += SIDE)
        for (int h = 0; h < 2; h++)
            emit(b->g, _mm512_load_ps(sums + h * HALF), b->row + i * SIDE + r, b->col + j * SIDE + h * HALF,
                 (__mmask16)(mask >> h * HALF));
}

/* Panels [i0, i1) of rows x [j0, j1) of columns. */
static void multiply_patch(const struct block *b, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    bool last = b->in + b->k == b->g->k;

    for (int64_t k = 0; k < b->k; k += DEPTH)
        for (int64_t j = j0; j < j1; j++)
            for (int64_t i = i0; i < i1; i++)
                multiply(b->a + i * PANEL + k * SIDE, b->b + j * PANEL + k * SIDE, sums_at(b, i, j),
                         panels(least(b->k - k, DEPTH)), b->in + k > 0);
    for (int64_t i = i0; i < i1 && last; i++)
        for (int64_t j = j0; j < j1; j++)
            emit_tile(b, i, j);
}

/* Panels on a side of a patch: each thread is to have two patches at least, down to a quarter of the usual side. */
static int64_t span_of(int64_t rows, int64_t cols)
{
    int64_t span = PATCH / SIDE;

    while (span > PATCH / SIDE / 4 && div_up(rows, span) * div_up(cols, span) < 2 * omp_get_num_threads())
        span /= 2;
    return span;
}

/* Within a parallel region: its threads share the work. */
static void multiply_block(const struct block *b)
{
    int64_t rows = panels(b->m), cols = panels(b->n), span = span_of(rows, cols);
    int64_t down = div_up(rows, span), across = div_up(cols, span);

#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows + cols; i++) {
        if (i < rows)
            pack_rows(b, i);
        else
            pack_cols(b, i - rows);
    }
#pragma omp for schedule(dynamic)
    for (int64_t p = 0; p < down * across; p++) {
        int64_t i = p % down * span, j = p / down * span;
        multiply_patch(b, i, least(i + span, rows), j, least(j + span, cols));
    }
}

static void run_blocks(struct block b)
{
    const struct sh_gemm *g = b.g;

    for (b.col = 0; b.col < g->n; b.col += BLOCK)
        for (b.row = 0; b.row < g->m; b.row += BLOCK)
            for (b.in = 0; b.in < g->k; b.in += BLOCK) {
                b.m = least(g->m - b.row, BLOCK);
                b.n = least(g->n - b.col, BLOCK);
                b.k = least(g->k - b.in, BLOCK);
                multiply_block(&b);
            }
}

static sh_rc amx_product(const struct sh_gemm *g, void *work)
{
    struct block b = {.g = g, .a = work};
    b.b = b.a + BLOCK / SIDE * PANEL;
    b.sums = (float *)(void *)(b.b + BLOCK / SIDE * PANEL);
#pragma omp parallel
    {
        set_tiles();
        run_blocks(b);
        drop_tiles();
    }
    return SH_OK;
}

const struct sh_gemm_engine sh_gemm_engine_amx = {
    .name = "AMX bf16",
    .in_dtype = SH_BF16,
    .usable = sh_amx_usable,
    .shared_bytes = 2 * BLOCK * BLOCK * (int64_t)sizeof(sh_bf16) + BLOCK * BLOCK * (int64_t)sizeof(float),
    .product = amx_product,
};

#endif
