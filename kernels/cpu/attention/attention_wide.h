/* Attention by AVX-512 in f32, for any compute type: shared by forward and backward. Operands are widened into dense
 * rows of scratch, and every product is of one form: elements of one side, broadcast, times rows of the other. As in
 * attention_panels.h scores are transposed, a row for each key and a lane for each query, so that no row is ever
 * reduced; but weights stay in f32 where they are computed, and the next product broadcasts them from there. Internal
 * to kernels/cpu; local, no state. */
#ifndef SH_ATTENTION_ATTENTION_WIDE_H
#define SH_ATTENTION_ATTENTION_WIDE_H

#include "kernels/cpu/attention/attention_panels.h"

bool sh_attn_wide_takes(enum sh_dtype dtype);

/* C [rows,cols] (+)= A B over `inner`. B and C are row-major, and cols is a multiple of 32, rows of 8. A is [rows,inner]
 * row-major or, if `turned`, [inner,rows]. */
struct sh_attn_product {
    int64_t rows, cols, inner;
    const float *a;
    int64_t lda;
    bool turned;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    bool add;
};
void sh_attn_wide_multiply(const struct sh_attn_product *p);

/* D rounded up to whole vectors: the distance between rows in scratch. */
static inline int64_t sh_attn_wide_dim(const struct sh_attn *a)
{
    return sh_panels(a->dim) * SH_ATTN_SIDE;
}

/* dst [rows, wide dim] f32 = rows of a tensor [.., ld] from `row` on, at column `col`. Rows from `exist` on, and columns
 * from D on, are zero. */
void sh_attn_wide_load(const struct sh_attn *a, const void *tensor, int64_t ld, int64_t row, int64_t exist, int64_t col,
                       int64_t rows, float *dst);

/* dst [wide dim][32] = 32 rows of scratch, transposed. */
void sh_attn_wide_turn(const float *rows, int64_t dim, float *dst);

#endif
