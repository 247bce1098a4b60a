#include "sherd_config.h"

#include "kernels/cpu/attention/attention_wide.h"

#ifdef SH_WIDE

#include "kernels/cpu/base/block.h"
#include "src/base/isa.h"

#include <immintrin.h>
#include <string.h>

enum { SIDE = SH_ATTN_SIDE, HALF = SIDE / 2, ROWS = 8 };

/* bf16 results are rounded by the instruction that processors have with its products. */
bool sh_attn_wide_takes(enum sh_dtype dtype)
{
    return dtype != SH_F32 && sh_isa_has(SH_ISA_AVX512_BF16);
}

/* 8 x 32 sums: 16 registers, two for a row of B and one for an element of A. Ten loads for 16 products, of which a
 * processor does one for each of the former. A's strides are constants of each copy. */
static SH_WIDE inline __attribute__((always_inline)) void multiply(const float *a, int64_t row, int64_t step,
                                                                   const float *b, int64_t ldb, float *c, int64_t ldc,
                                                                   int64_t inner, bool add)
{
    __m512 lo[ROWS], hi[ROWS];

    _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)
    {
        lo[i] = add ? _mm512_loadu_ps(c + i * ldc) : _mm512_setzero_ps();
        hi[i] = add ? _mm512_loadu_ps(c + i * ldc + HALF) : _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < inner; k++, a += step, b += ldb) {
        __m512 left = _mm512_loadu_ps(b), right = _mm512_loadu_ps(b + HALF);
        _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)
        {
            __m512 x = _mm512_set1_ps(a[i * row]);
            lo[i] = _mm512_fmadd_ps(x, left, lo[i]);
            hi[i] = _mm512_fmadd_ps(x, right, hi[i]);
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)
    {
        _mm512_storeu_ps(c + i * ldc, lo[i]);
        _mm512_storeu_ps(c + i * ldc + HALF, hi[i]);
    }
}

/* All rows of A for one block of 32 columns, whose part of B then stays in the L1 cache. */
SH_WIDE void sh_attn_wide_multiply(const struct sh_attn_product *p)
{
    for (int64_t j = 0; j < p->cols; j += SIDE)
        for (int64_t i = 0; i < p->rows; i += ROWS) {
            float *c = p->c + i * p->ldc + j;
            if (p->turned)
                multiply(p->a + i, 1, p->lda, p->b + j, p->ldb, c, p->ldc, p->inner, p->add);
            else
                multiply(p->a + i * p->lda, p->lda, 1, p->b + j, p->ldb, c, p->ldc, p->inner, p->add);
        }
}

void sh_attn_wide_load(const struct sh_attn *a, const void *tensor, int64_t ld, int64_t row, int64_t exist, int64_t col,
                       int64_t rows, float *dst)
{
    int64_t wide = sh_attn_wide_dim(a), n = sh_panel_least(exist, rows);

    for (int64_t i = 0; i < n && wide > a->dim; i++)
        memset(dst + i * wide + a->dim, 0, (size_t)(wide - a->dim) * sizeof *dst);
    sh_cpu_block_load((struct sh_cpu_block){.rows = n, .cols = a->dim}, dst, wide,
                      sh_cpu_at(tensor, a->dtype, row * ld + col), ld, a->dtype);
    memset(dst + n * wide, 0, (size_t)((rows - n) * wide) * sizeof *dst);
}

SH_WIDE void sh_attn_wide_turn(const float *rows, int64_t dim, float *dst)
{
    for (int64_t d = 0; d < dim; d += HALF)
        for (int64_t h = 0; h < SIDE; h += HALF)
            sh_panel_turn(rows + h * dim + d, dim, dst + d * SIDE + h, SIDE);
}

#endif
