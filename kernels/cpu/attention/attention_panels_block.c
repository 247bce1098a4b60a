#include "sherd_config.h"

#include "kernels/cpu/attention/attention_panels.h"

#ifdef SH_WIDE

#include <float.h>
#include <immintrin.h>
#include <math.h>

enum { SIDE = SH_ATTN_SIDE, HALF = SIDE / 2, BLOCK = SH_ATTN_BLOCK };

bool sh_attn_panels_takes(enum sh_dtype dtype)
{
    return dtype == SH_BF16 && sh_panel_unit();
}

/* Rows become panels; D is the inner dimension. */
void sh_attn_pack_rows(struct sh_attn_matrix m, sh_attn_pack pack, sh_bf16 *panels)
{
    pack(&(struct sh_panel_source){.data = m.data, .step = m.ld, .sides = m.rows, .depth = m.dim}, panels,
         sh_panels(m.dim) * SH_PANEL_STEP);
}

/* D becomes the side, rows become the inner dimension, for products over the keys. */
void sh_attn_pack_cols(struct sh_attn_matrix m, sh_attn_pack pack, sh_bf16 *panels, int64_t steps)
{
    pack(&(struct sh_panel_source){.data = m.data, .step = m.ld, .inner_rows = true, .sides = m.dim, .depth = m.rows},
         panels, steps * SH_PANEL_STEP);
}

/* What 32 queries see: their first keys, and the minimum and maximum of these. Queries past the end see nothing. */
struct sh_attn_queries sh_attn_queries_of(const struct sh_attn *a, int64_t b, int64_t t)
{
    struct sh_attn_queries q = {.t = t, .least = INT32_MAX};
    for (int64_t j = 0; j < SIDE; j++) {
        int32_t first = t + j < sh_attn_end(a, t) ? (int32_t)sh_attn_first_key(a, b, t + j) : INT32_MAX;
        q.first[j] = first;
        q.least = first < q.least ? first : q.least;
        q.most = first > q.most ? first : q.most;
    }
    return q;
}

/* Set scores of keys that a query must not see to -Inf. The early return is the usual case: a block below the
 * diagonal and inside one document. */
SH_WIDE void sh_attn_hide(float *block, int64_t ld, const struct sh_attn_queries *q, int64_t key)
{
    if (key >= q->most && key + SIDE - 1 <= q->t)
        return;
    for (int32_t i = 0; i < SIDE; i++, block += ld) {
        int32_t k = (int32_t)key + i, ahead = (int32_t)(key - q->t) + i;
        for (int32_t j = 0; j < SIDE; j++)
            block[j] = k >= q->first[j] && ahead <= j ? block[j] : -INFINITY;
    }
}

/* 2^(row of scores * by - now), added to total */
static SH_WIDE inline void weigh(const float *row, __m512 by, const __m512 now[2], __m512 total[2], __m512 e[2])
{
    for (int h = 0; h < 2; h++) {
        e[h] = sh_wide_exp2(_mm512_fmsub_ps(_mm512_loadu_ps(row + h * SH_WIDE_LANES), by, now[h]));
        total[h] = _mm512_add_ps(total[h], e[h]);
    }
}

/* Two rows of weights, rounded to a pair if `step` is given. */
static SH_WIDE inline void put_weights(const __m512 even[2], const __m512 odd[2], float *rows, sh_bf16 *step, int64_t r)
{
    if (step) {
        sh_attn_put_pair((__m512i)_mm512_cvtne2ps_pbh(even[1], even[0]), (__m512i)_mm512_cvtne2ps_pbh(odd[1], odd[0]),
                         step, r / 2);
        return;
    }
    for (int h = 0; h < 2; h++) {
        _mm512_storeu_ps(rows + h * SH_WIDE_LANES, even[h]);
        _mm512_storeu_ps(rows + SIDE + h * SH_WIDE_LANES, odd[h]);
    }
}

SH_WIDE struct sh_attn_softening sh_attn_soften_begin(const float *s, int64_t steps, float scale, float *max,
                                                      const float *sum, float *shrink)
{
    struct sh_attn_softening soft = {.by = _mm512_set1_ps(sh_attn_by(scale))};
    __m512 top[2];

    for (int h = 0; h < 2; h++)
        top[h] = _mm512_set1_ps(-FLT_MAX);
    for (int64_t i = 0; i < steps * BLOCK; i += SIDE)
        for (int h = 0; h < 2; h++) /* ignores NaN, which shows in the exponentials */
            top[h] = _mm512_max_ps(_mm512_loadu_ps(s + i + h * SH_WIDE_LANES), top[h]);
    for (int h = 0; h < 2; h++) {
        __m512 old = _mm512_loadu_ps(max + h * SH_WIDE_LANES), less;
        soft.now[h] = _mm512_max_ps(_mm512_mul_ps(top[h], soft.by), old);
        less = sh_wide_exp2(_mm512_sub_ps(old, soft.now[h]));
        soft.total[h] = _mm512_mul_ps(_mm512_loadu_ps(sum + h * SH_WIDE_LANES), less);
        _mm512_storeu_ps(max + h * SH_WIDE_LANES, soft.now[h]);
        _mm512_storeu_ps(shrink + h * SH_WIDE_LANES, less);
    }
    return soft;
}

SH_WIDE void sh_attn_soften_block(struct sh_attn_softening *soft, float *s, sh_bf16 *p)
{
    __m512 total[2] = {soft->total[0], soft->total[1]}, even[2], odd[2];

    for (int64_t r = 0; r < SIDE; r += 2) {
        weigh(s + r * SIDE, soft->by, soft->now, total, even); /* in this order: both add to the total */
        weigh(s + (r + 1) * SIDE, soft->by, soft->now, total, odd);
        put_weights(even, odd, s + r * SIDE, p, r);
    }
    soft->total[0] = total[0];
    soft->total[1] = total[1];
}

SH_WIDE void sh_attn_soften_end(const struct sh_attn_softening *soft, float *sum)
{
    for (int h = 0; h < 2; h++)
        _mm512_storeu_ps(sum + h * SH_WIDE_LANES, soft->total[h]);
}

/* dst [n] = 16 floats times `by`, rounded. */
static SH_WIDE inline void put_half(const float *src, float by, sh_bf16 *dst, int64_t n)
{
    __mmask16 mask = (__mmask16)(n >= HALF ? 0xffffu : n <= 0 ? 0 : (1u << n) - 1);
    sh_wide_store(dst, _mm512_mul_ps(_mm512_loadu_ps(src), _mm512_set1_ps(by)), mask);
}

/* To dst [rows][ld], at most 32 x 32. */
SH_WIDE void sh_attn_put(const float *block, sh_bf16 *dst, int64_t ld, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < sh_panel_least(rows, SIDE); i++)
        for (int64_t h = 0; h < SIDE; h += HALF)
            put_half(block + i * SIDE + h, 1, dst + i * ld + h, cols - h);
}

SH_WIDE void sh_attn_put_turned(const float *block, const float *by, sh_bf16 *dst, int64_t ld, int64_t rows,
                                int64_t cols)
{
    _Alignas(64) float turned[BLOCK];

    for (int64_t i = 0; i < SIDE; i += HALF)
        for (int64_t h = 0; h < SIDE; h += HALF)
            sh_panel_turn(block + i * SIDE + h, SIDE, turned + h * SIDE + i, SIDE);
    for (int64_t i = 0; i < sh_panel_least(rows, SIDE); i++)
        for (int64_t h = 0; h < SIDE; h += HALF)
            put_half(turned + i * SIDE + h, by ? by[i] : 1, dst + i * ld + h, cols - h);
}

#endif
