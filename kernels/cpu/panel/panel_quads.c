/* Panels of quads for Arm's BFMMLA (panel.h): how matrices are packed into them, and where their sums go. */
#include "sherd_config.h"

#include "kernels/cpu/panel/panel.h"

#ifdef SH_QUADS

#include "kernels/cpu/base/block.h"

#include <arm_neon.h>
#include <string.h>

enum { SIDE = SH_PANEL_SIDE, STEP = SH_PANEL_STEP, QUAD = 4 };

/* The sides are the stored rows: of two of them, eight inner elements are two quads. */
static void pack_sides(const sh_bf16 *from, int64_t ld, sh_bf16 *step)
{
    for (int64_t side = 0; side < SIDE; side += 2, from += 2 * ld)
        for (int64_t k = 0; k < SIDE; k += 2 * QUAD) {
            uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(from + k)),
                       b = vreinterpretq_u64_u16(vld1q_u16(from + ld + k));
            sh_bf16 *to = step + k * SIDE + side * QUAD;
            vst1q_u16(to, vreinterpretq_u16_u64(vzip1q_u64(a, b)));
            vst1q_u16(to + QUAD * SIDE, vreinterpretq_u16_u64(vzip2q_u64(a, b)));
        }
}

/* The inner dimension counts the stored rows, of which four are interleaved. */
static void pack_inner(const sh_bf16 *from, int64_t ld, sh_bf16 *step)
{
    for (int64_t k = 0; k < SIDE; k += QUAD, from += QUAD * ld)
        for (int64_t side = 0; side < SIDE; side += 8) {
            uint16x8x4_t rows = {{vld1q_u16(from + side), vld1q_u16(from + ld + side), vld1q_u16(from + 2 * ld + side),
                                  vld1q_u16(from + 3 * ld + side)}};
            vst4q_u16(step + k * SIDE + side * QUAD, rows);
        }
}

/* At the edges of a matrix: [SIDE][SIDE] = rows x cols stored elements, and zeros. */
static void fill(sh_bf16 *whole, const sh_bf16 *from, int64_t ld, int64_t rows, int64_t cols)
{
    memset(whole, 0, STEP * sizeof *whole);
    for (int64_t r = 0; r < rows; r++)
        memcpy(whole + r * SIDE, from + r * ld, (size_t)cols * sizeof *whole);
}

/* A step: the sides from `side` on, over the inner elements from k on. */
static void pack_step(const struct sh_panel_source *s, int64_t side, int64_t k, sh_bf16 *step)
{
    int64_t sides = sh_panel_least(s->sides - side, SIDE), depth = sh_panel_least(s->depth - k, SIDE), ld = s->step;
    const sh_bf16 *from = s->data + (s->inner_rows ? k * ld + side : side * ld + k);
    _Alignas(64) sh_bf16 whole[STEP];

    if (sides < SIDE || depth < SIDE) {
        fill(whole, from, ld, s->inner_rows ? depth : sides, s->inner_rows ? sides : depth);
        from = whole;
        ld = SIDE;
    }
    if (s->inner_rows)
        pack_inner(from, ld, step);
    else
        pack_sides(from, ld, step);
}

/* In the order of memory: along the stored rows. */
static void pack(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride)
{
    int64_t count = sh_panels(s->sides), steps = sh_panels(s->depth);

    for (int64_t n = 0; n < count * steps; n++) {
        int64_t panel = s->inner_rows ? n % count : n / steps, step = s->inner_rows ? n / count : n % steps;

        pack_step(s, panel * SIDE, step * SIDE, panels + panel * stride + step * STEP);
    }
}

void sh_panel_pack_rows(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride)
{
    pack(s, panels, stride);
}

void sh_panel_pack_cols(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride)
{
    pack(s, panels, stride);
}

/* The compiler makes NEON of these loops. */
void sh_panel_emit(const struct sh_matmul *g, const float *sums, int64_t row, int64_t col)
{
    struct sh_cpu_block b = {.rows = sh_panel_least(g->m - row, SIDE), .cols = sh_panel_least(g->n - col, SIDE)};
    int64_t at = row * g->ldc + col;
    _Alignas(64) float x[STEP];

    memcpy(x, sums, (size_t)(b.rows * SIDE) * sizeof *x);
    if (g->bias)
        sh_cpu_block_add_row(b, x, SIDE, sh_cpu_at(g->bias, g->in_dtype, col), g->in_dtype);
    if (g->addend)
        sh_cpu_block_add(b, x, SIDE, sh_cpu_at(g->addend, g->out_dtype, at), g->ldc, g->out_dtype);
    sh_cpu_block_store(b, sh_cpu_at(g->c, g->out_dtype, at), g->ldc, g->out_dtype, x, SIDE);
}

#endif
