/* Attention in bf16 by packed panels: shared by forward and backward. Scores are transposed relative to attention.h:
 * a tile is 32 keys (rows) by 32 queries (columns). Everything that belongs to a query (its maximum, its sum, lse,
 * delta) is thus one lane of a vector and no row is ever reduced, and two adjacent rows of weights are the pairs that
 * the next product reads as columns. Scores, softmax and all sums are f32; weights and gradients of scores are
 * rounded to bf16 when a product reads them.
 *
 * A block is 32 x 32 floats, row-major, dense; for panels see panel.h. Internal to kernels/cpu; local, no state. */
#ifndef SH_ATTENTION_ATTENTION_PANELS_H
#define SH_ATTENTION_ATTENTION_PANELS_H

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/panel/panel.h"

#include <math.h>

enum { SH_ATTN_SIDE = SH_PANEL_SIDE, SH_ATTN_BLOCK = SH_PANEL_STEP };

bool sh_attn_panels_takes(enum sh_dtype dtype);

/* Rows of a head in a tensor of bf16. */
struct sh_attn_matrix {
    const sh_bf16 *data;
    int64_t ld, rows, dim;
};

/* Rows: panels of 32 rows each, dim deep; the next panel is sh_panels(dim) steps further on. Columns: panels of 32
 * columns each, rows deep; the next panel is `steps` steps further on. */
typedef void (*sh_attn_pack)(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride);
void sh_attn_pack_rows(struct sh_attn_matrix m, sh_attn_pack pack, sh_bf16 *panels);
void sh_attn_pack_cols(struct sh_attn_matrix m, sh_attn_pack pack, sh_bf16 *panels, int64_t steps);

/* Up to 32 queries from t on, and the keys that they see: query t+j sees [first[j], t+j]. A query past the end sees
 * none. */
struct sh_attn_queries {
    int64_t t;
    int32_t first[SH_ATTN_SIDE], least, most; /* the minimum and maximum of first */
};
struct sh_attn_queries sh_attn_queries_of(const struct sh_attn *a, int64_t b, int64_t t);

/* Set to -Inf the scores of keys from `key` on that their query does not see; ld: distance between the block's rows. */
void sh_attn_hide(float *block, int64_t ld, const struct sh_attn_queries *q, int64_t key);

/* Exponents are of 2: e^(scale x) = 2^(x by), which saves a multiplication for each. */
static inline float sh_attn_by(float scale)
{
    return scale * 1.44269504f;
}

/* The logarithm of the sum of the exponentials, from what sh_attn_soften() keeps. */
static inline float sh_attn_lse(float max, float sum)
{
    return max * 0.69314718f + logf(sum);
}

#ifdef SH_WIDE
#include <immintrin.h>

/* Turn the scores of some blocks of keys and 32 queries into weights, 2^(score * by - max): begin with all blocks, then
 * each block, in place as f32 or, if p is given, as a step of columns in bf16; then end. max and sum [32] are those of
 * the weights so far, which `shrink` rescales to the new maximum. */
struct sh_attn_softening {
    __m512 by, now[2], total[2];
};
struct sh_attn_softening sh_attn_soften_begin(const float *s, int64_t steps, float scale, float *max, const float *sum,
                                              float *shrink);
void sh_attn_soften_block(struct sh_attn_softening *soft, float *s, sh_bf16 *p);
void sh_attn_soften_end(const struct sh_attn_softening *soft, float *sum);

/* Store two rows of 32 as pair `p` of a step of columns. Unpacking works within quarters of a vector: each of its two
 * results has pairs from both halves of the columns. */
static SH_WIDE inline void sh_attn_put_pair(__m512i even, __m512i odd, sh_bf16 *step, int64_t p)
{
    const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    __m512i lo = _mm512_unpacklo_epi16(even, odd), hi = _mm512_unpackhi_epi16(even, odd);

    _mm512_storeu_si512(step + p * SH_ATTN_SIDE, _mm512_permutex2var_epi64(lo, first, hi));
    _mm512_storeu_si512(step + SH_ATTN_BLOCK / 2 + p * SH_ATTN_SIDE, _mm512_permutex2var_epi64(lo, second, hi));
}
#endif

/* dst [rows,cols] of bf16 = that part of the block. turned: the block's rows are dst's columns, and row i of dst is
 * multiplied by by[i], unless `by` is NULL. */
void sh_attn_put(const float *block, sh_bf16 *dst, int64_t ld, int64_t rows, int64_t cols);
void sh_attn_put_turned(const float *block, const float *by, sh_bf16 *dst, int64_t ld, int64_t rows, int64_t cols);

#endif
