/* bf16 on CPUs without fast bf16 arithmetic, and f16: pieces of A and B are converted to f32 and multiplied by the
 * f32 engine, one piece of the inner dimension after another. Products are exact and sums in f32: no less accurate
 * than units of that type. */
#include "kernels/cpu/base/block.h"
#include "kernels/cpu/gemm/gemm_engine.h"

/* At a depth of 256 the two pieces (655 KB) stay in the L2 cache. */
enum { DEPTH = 256 };

static bool widen_usable(void)
{
    return sh_gemm_engine_for(SH_F32) != NULL;
}

/* Piece [begin, begin+depth) of the inner dimension of an operand with `outer` rows or columns; the stored order is
 * kept. inner_rows: the inner dimension counts the stored rows. Returns the piece's leading dimension. */
static int64_t widen(float *dst, const void *src, int64_t ld, bool inner_rows, int64_t outer, int64_t begin,
                     int64_t depth, enum sh_dtype dtype)
{
    struct sh_cpu_block b = {.rows = inner_rows ? depth : outer, .cols = inner_rows ? outer : depth};
    sh_cpu_block_load(b, dst, b.cols, sh_cpu_at(src, dtype, inner_rows ? begin * ld : begin), ld, dtype);
    return b.cols;
}

/* Two conversions and one product per piece; the sums stay in C, which is f32. */
static sh_rc widen_tile(const struct sh_gemm_tile *t, void *work, enum sh_dtype dtype)
{
    const struct sh_gemm_engine *f32 = sh_gemm_engine_for(SH_F32);
    /* Scratch holds one piece of A and one of B. */
    float *a = work, *b = a + SH_GEMM_TILE_M * DEPTH;

    struct sh_gemm_tile piece = *t;
    piece.a = a;
    piece.b = b;
    for (int64_t k = 0; k < t->k; k += DEPTH) {
        piece.k = t->k - k < DEPTH ? t->k - k : DEPTH;
        piece.lda = widen(a, t->a, t->lda, t->trans_a, t->m, k, piece.k, dtype);
        piece.ldb = widen(b, t->b, t->ldb, !t->trans_b, t->n, k, piece.k, dtype);
        piece.add = t->add || k > 0;
        SH_TRY(f32->tile(&piece, NULL));
    }
    return SH_OK;
}

static sh_rc widen_bf16(const struct sh_gemm_tile *t, void *work)
{
    return widen_tile(t, work, SH_BF16);
}

static sh_rc widen_f16(const struct sh_gemm_tile *t, void *work)
{
    return widen_tile(t, work, SH_F16);
}

enum { WORK_BYTES = (SH_GEMM_TILE_M + SH_GEMM_TILE_N) * DEPTH * (int)sizeof(float) };

const struct sh_gemm_engine sh_gemm_engine_widen = {
    .name = "bf16 widened to f32",
    .in_dtype = SH_BF16,
    .usable = widen_usable,
    .work_bytes = WORK_BYTES,
    .tile = widen_bf16,
};

const struct sh_gemm_engine sh_gemm_engine_widen_f16 = {
    .name = "f16 widened to f32",
    .in_dtype = SH_F16,
    .usable = widen_usable,
    .work_bytes = WORK_BYTES,
    .tile = widen_f16,
};
