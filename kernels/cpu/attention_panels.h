/* Attention in bf16 by packed panels: what forward and backward share. Scores stand the other way round than in
 * attention.h: a tile is 32 keys (rows) by 32 queries (columns), so that what belongs to a query (its maximum, its sum,
 * lse, delta) is a lane of a vector and no row is ever reduced, and so that two rows of weights side by side are the
 * pairs which the next product reads as columns. Scores, softmax and all sums are f32; weights and gradients of scores
 * are rounded to bf16 where a product reads them.
 *
 * A block is 32 x 32 floats, row-major, dense; a panel is that of panel.h. Internal to kernels/cpu; local, no state. */
#ifndef SH_KERNELS_CPU_ATTENTION_PANELS_H
#define SH_KERNELS_CPU_ATTENTION_PANELS_H

#include "kernels/cpu/panel.h"
#include "kernels/cpu/attention.h"

enum { SH_ATTN_SIDE = SH_PANEL_SIDE, SH_ATTN_BLOCK = SH_PANEL_STEP };

bool sh_attn_panels_takes(enum sh_dtype dtype);

/* Rows of a head in a tensor of bf16. */
struct sh_attn_matrix {
    const sh_bf16 *data;
    int64_t ld, rows, dim;
};

/* Panels of 32 rows each, dim deep; the next one sh_panels(dim) steps on.
 * Panels of 32 columns each, rows deep; the next one `steps` steps on. */
typedef void (*sh_attn_pack)(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride);
void sh_attn_pack_rows(struct sh_attn_matrix m, sh_attn_pack pack, sh_bf16 *panels);
void sh_attn_pack_cols(struct sh_attn_matrix m, sh_attn_pack pack, sh_bf16 *panels, int64_t steps);

/* Up to 32 queries from t on, and the keys that they see: query t+j those of [first[j], t+j]. A query past the end
 * sees none. */
struct sh_attn_queries {
    int64_t t;
    int32_t first[SH_ATTN_SIDE], least, most; /* the least and the most of first */
};
struct sh_attn_queries sh_attn_queries_of(const struct sh_attn *a, int64_t b, int64_t t);

/* Scores of keys from `key` on become -Inf where the query does not see the key. */
void sh_attn_hide(float *block, const struct sh_attn_queries *q, int64_t key);

#ifdef SH_WIDE
#include <immintrin.h>

/* Two rows of 32 as pair `p` of a step of columns. Unpacking works within quarters of a vector: each of its two results
 * has pairs of both halves of the columns. */
static SH_WIDE inline void sh_attn_put_pair(__m512i even, __m512i odd, sh_bf16 *step, int64_t p)
{
    const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    __m512i lo = _mm512_unpacklo_epi16(even, odd), hi = _mm512_unpackhi_epi16(even, odd);

    _mm512_storeu_si512(step + p * SH_ATTN_SIDE, _mm512_permutex2var_epi64(lo, first, hi));
    _mm512_storeu_si512(step + SH_ATTN_BLOCK / 2 + p * SH_ATTN_SIDE, _mm512_permutex2var_epi64(lo, second, hi));
}
#endif

/* dst [rows,cols] of bf16 = the block, of which so much exists; turned: the block's rows are dst's columns, and row i of
 * dst is multiplied by by[i], unless that is NULL. */
void sh_attn_put(const float *block, sh_bf16 *dst, int64_t ld, int64_t rows, int64_t cols);
void sh_attn_put_turned(const float *block, const float *by, sh_bf16 *dst, int64_t ld, int64_t rows, int64_t cols);

#endif
