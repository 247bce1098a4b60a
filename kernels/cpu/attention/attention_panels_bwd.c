/* Attention by packed panels, backward. A task is one key-value head of one sequence with all its query heads, so dk
 * and dv have one owner and one order of summation; threads beyond B*K find no work. Queries pass in chunks of
 * QUERIES panels, keys in tiles of KEYS panels. Scores are recomputed from q, k and the saved lse. Measured at D=64,
 * GFLOP/s of the floor's operations per core at T=256 and T=1024: 400 and 600 on a Xeon with AMX; 133 and 177 on a
 * Zen 4, 62 and 82 % of the rate of a large product there. */
#include "sherd_config.h"

#include "kernels/cpu/attention/attention_panels.h"

#ifdef SH_WIDE

#include "kernels/cpu/base/wide.h"

#include <omp.h>
#include <string.h>

enum { SIDE = SH_ATTN_SIDE, STEP = SH_PANEL_STEP, BLOCK = SH_ATTN_BLOCK, QUERIES = 4, KEYS = 4 };

struct task {
    const struct sh_attn *a;
    int64_t b, kv_head, depth, keys; /* steps that hold D; panels that hold T */
    /* The current chunk: its head, first query, panels of queries. */
    int64_t head, t, panels;
    struct sh_attn_queries seen[QUERIES];
    /* Scratch of one thread. */
    sh_bf16 *k, *v, *k_turned; /* [keys][depth] rows, twice; [depth][keys] rows */
    float *dk, *dv;            /* [keys][depth] blocks */
    sh_bf16 *q, *g;            /* [QUERIES][depth] columns: queries, and gradients of the output */
    sh_bf16 *q_in, *g_in;      /* [depth][QUERIES] columns: the same, with the rows as the inner dimension */
    float *dq;                 /* [QUERIES][depth] blocks, transposed */
    float *s[2], *ds[2];       /* one block each: scores; gradients of weights; of two panels of queries */
    sh_bf16 *p_rows, *ds_rows; /* [QUERIES] rows, of one panel of keys */
    sh_bf16 *ds_cols;          /* [QUERIES][KEYS] columns */
    float *lse, *delta;        /* [QUERIES][SIDE]; delta: sum over D of do * o */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Scratch of one thread; `keys` panels hold the whole sequence, so it grows with T. */
static int64_t scratch_bytes(int64_t keys, int64_t depth)
{
    int64_t steps = 3 * keys * depth + 4 * QUERIES * depth + (2 + KEYS) * QUERIES;
    int64_t blocks = 2 * keys * depth + QUERIES * depth + 4;
    return steps * STEP * (int64_t)sizeof(sh_bf16) + (blocks * BLOCK + 2 * QUERIES * SIDE) * (int64_t)sizeof(float);
}

/* The pieces are in the order of struct task. */
static void cut_scratch(struct task *w, void *p)
{
    int64_t head = w->keys * w->depth * STEP, chunk = QUERIES * w->depth * STEP;
    w->k = p;
    w->v = w->k + head;
    w->k_turned = w->v + head;
    w->q = w->k_turned + head;
    w->g = w->q + chunk;
    w->q_in = w->g + chunk;
    w->g_in = w->q_in + chunk;
    w->p_rows = w->g_in + chunk;
    w->ds_rows = w->p_rows + QUERIES * STEP;
    w->ds_cols = w->ds_rows + QUERIES * STEP;
    w->dk = (float *)(void *)(w->ds_cols + QUERIES * KEYS * STEP);
    w->dv = w->dk + w->keys * w->depth * BLOCK;
    w->dq = w->dv + w->keys * w->depth * BLOCK;
    w->s[0] = w->dq + QUERIES * w->depth * BLOCK;
    w->s[1] = w->s[0] + BLOCK;
    w->ds[0] = w->s[1] + BLOCK;
    w->ds[1] = w->ds[0] + BLOCK;
    w->lse = w->ds[1] + BLOCK;
    w->delta = w->lse + QUERIES * SIDE;
}

/* The values of 32 queries, the same for every key: scale, for exponents of 2 too, lse as such an exponent, delta. */
struct columns {
    __m512 by, scale, lse[2], delta[2];
};

static SH_WIDE struct columns columns_of(const struct task *w, int64_t j)
{
    struct columns c = {.by = _mm512_set1_ps(sh_attn_by(w->a->scale)), .scale = _mm512_set1_ps(w->a->scale)};

    for (int h = 0; h < 2; h++) {
        c.lse[h] = _mm512_loadu_ps(w->lse + j * SIDE + h * SH_WIDE_LANES);
        c.delta[h] = _mm512_loadu_ps(w->delta + j * SIDE + h * SH_WIDE_LANES);
    }
    return c;
}

/* One key: from a row of scores s and a row of gradients of weights ds, make a row of weights and a row of gradients
 * of the unscaled scores; the latter is also returned. */
static SH_WIDE inline __m512i gradients(const struct columns *c, const float *s, const float *ds, sh_bf16 *weights,
                                        sh_bf16 *grads)
{
    __m512 p[2], d[2];
    __m512i rounded;

    for (int h = 0; h < 2; h++) {
        p[h] = sh_wide_exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + h * SH_WIDE_LANES), c->by, c->lse[h]));
        d[h] = _mm512_sub_ps(_mm512_loadu_ps(ds + h * SH_WIDE_LANES), c->delta[h]);
        d[h] = _mm512_mul_ps(_mm512_mul_ps(p[h], c->scale), d[h]);
    }
    rounded = (__m512i)_mm512_cvtne2ps_pbh(d[1], d[0]);
    _mm512_storeu_si512(weights, (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]));
    _mm512_storeu_si512(grads, rounded);
    return rounded;
}

/* Panel j of the chunk times panel k of the keys: scores, and gradients of weights. */
static void multiply_block(struct task *w, int64_t j, int64_t k)
{
    int64_t keys = k * w->depth * STEP, queries = j * w->depth * STEP;
    sh_panel_multiply(w->k + keys, w->q + queries, w->s[j & 1], w->depth, false);
    sh_panel_multiply(w->v + keys, w->g + queries, w->ds[j & 1], w->depth, false);
}

/* Weights and gradients of scores of that block; panel k is the i-th of its tile. */
static SH_WIDE void differentiate(struct task *w, int64_t j, int64_t k, int64_t i)
{
    const struct columns c = columns_of(w, j);
    sh_bf16 *p = w->p_rows + j * STEP, *out = w->ds_rows + j * STEP;
    float *s = w->s[j & 1], *ds = w->ds[j & 1];

    sh_attn_cap_bwd(w->a, s, ds, SIDE, SIDE, SIDE, w->delta + j * SIDE, true);
    sh_attn_hide(s, SIDE, &w->seen[j], k * SIDE);
    for (int64_t r = 0; r < STEP; r += 2 * SIDE) {
        __m512i even = gradients(&c, s + r, ds + r, p + r, out + r);
        __m512i odd = gradients(&c, s + r + SIDE, ds + r + SIDE, p + r + SIDE, out + r + SIDE);
        sh_attn_put_pair(even, odd, w->ds_cols + (j * KEYS + i) * STEP, r / (2 * SIDE));
    }
}

/* The panels of queries that see panel k of the keys: dv += p' do and dk += ds' q. First keys never decrease from one
 * query to the next, so these panels are neighbours. The products of the next panel start before the vectors' work on
 * this one: tiles take their time beside it. */
static void take_panel(struct task *w, int64_t k, int64_t i)
{
    int64_t lo = k > w->t / SIDE ? k - w->t / SIDE : 0, hi = lo;
    while (hi < w->panels && w->seen[hi].least / SIDE <= k)
        hi++;
    if (lo == hi)
        return;

    multiply_block(w, lo, k);
    for (int64_t j = lo; j < hi; j++) {
        if (j + 1 < hi)
            multiply_block(w, j + 1, k);
        differentiate(w, j, k, i);
    }
    for (int64_t d = 0; d < w->depth; d++) {
        int64_t at = (k * w->depth + d) * BLOCK, in = (d * QUERIES + lo) * STEP;
        sh_panel_multiply(w->p_rows + lo * STEP, w->g_in + in, w->dv + at, hi - lo, true);
        sh_panel_multiply(w->ds_rows + lo * STEP, w->q_in + in, w->dk + at, hi - lo, true);
    }
}

/* Panels [k0, k1) of the keys; dq += ds k. */
static void take_tile(struct task *w, int64_t k0, int64_t k1)
{
    for (int64_t k = k0; k < k1; k++)
        take_panel(w, k, k - k0);
    for (int64_t j = 0; j < w->panels; j++) {
        int64_t seen = w->seen[j].least / SIDE, lo = seen > k0 ? seen : k0, steps = least(k1, w->t / SIDE + j + 1) - lo;
        for (int64_t d = 0; d < w->depth && steps > 0; d++)
            sh_panel_multiply(w->k_turned + (d * w->keys + lo) * STEP, w->ds_cols + (j * KEYS + lo - k0) * STEP,
                              w->dq + (j * w->depth + d) * BLOCK, steps, true);
    }
}

/* In f32, in one order: lane by lane, then the lanes. */
static SH_WIDE float dot(const sh_bf16 *x, const sh_bf16 *y, int64_t n)
{
    __m512 sum = _mm512_setzero_ps();

    for (int64_t i = 0; i < n; i += SH_WIDE_LANES) {
        __mmask16 lanes = sh_wide_first(n - i);
        sum = _mm512_fmadd_ps(sh_wide_load(x + i, lanes), sh_wide_load(y + i, lanes), sum);
    }
    return _mm512_reduce_add_ps(sum);
}

/* n rows of a tensor [..,ld] from `row` on, at column `col`. */
static struct sh_attn_matrix rows_of(const struct task *w, const void *tensor, int64_t ld, int64_t row, int64_t n,
                                     int64_t col)
{
    return (struct sh_attn_matrix){
        .data = (const sh_bf16 *)tensor + row * ld + col, .ld = ld, .rows = n, .dim = w->a->dim};
}

/* Pack the queries of a chunk in four ways: q and do, each with D and with the rows as inner dimension. delta is
 * computed in f32, once per row. */
static void open_chunk(struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t ld = a->heads * a->dim, n = least(QUERIES * SIDE, sh_attn_end(a, w->t) - w->t);
    int64_t row = sh_attn_row(a, w->b, w->t);
    struct sh_attn_matrix q = rows_of(w, a->q, a->q_ld, row, n, sh_attn_q_col(a, w->head));
    struct sh_attn_matrix g = rows_of(w, a->dout, ld, row, n, w->head * a->dim);
    struct sh_attn_matrix o = rows_of(w, a->o, ld, row, n, w->head * a->dim);
    const float *lse = sh_attn_lse_at(a, w->b, w->head, w->t);

    sh_attn_pack_rows(q, sh_panel_pack_cols, w->q);
    sh_attn_pack_rows(g, sh_panel_pack_cols, w->g);
    sh_attn_pack_cols(q, sh_panel_pack_cols, w->q_in, QUERIES);
    sh_attn_pack_cols(g, sh_panel_pack_cols, w->g_in, QUERIES);
    memset(w->dq, 0, (size_t)(w->panels * w->depth * BLOCK) * sizeof(float));
    for (int64_t j = 0; j < w->panels; j++)
        w->seen[j] = sh_attn_queries_of(a, w->b, w->t + j * SIDE);
    for (int64_t i = 0; i < w->panels * SIDE; i++) {
        bool exists = i < g.rows;
        w->lse[i] = exists ? sh_attn_by(lse[i]) : 0;
        w->delta[i] = exists ? dot(g.data + i * ld, o.data + i * ld, a->dim) : 0;
    }
}

static void put_chunk(const struct task *w)
{
    const struct sh_attn *a = w->a;
    for (int64_t j = 0; j < w->panels; j++)
        for (int64_t d = 0; d < w->depth; d++) {
            int64_t t = w->t + j * SIDE, at = sh_attn_row(a, w->b, t) * a->q_ld + sh_attn_q_col(a, w->head);
            sh_attn_put_turned(w->dq + (j * w->depth + d) * BLOCK, NULL, (sh_bf16 *)a->dq + at + d * SIDE, a->q_ld,
                               sh_attn_end(a, t) - t, a->dim - d * SIDE);
        }
}

/* Keys that the chunk sees, in tiles. */
static void take_chunk(struct task *w)
{
    int64_t first = w->a->seq;
    w->panels = least(sh_panels(sh_attn_end(w->a, w->t) - w->t), QUERIES);
    open_chunk(w);
    for (int64_t j = 0; j < w->panels; j++)
        first = least(w->seen[j].least, first);
    int64_t end = w->t / SIDE + w->panels;
    for (int64_t k0 = first / SIDE; k0 < end; k0 += KEYS)
        /* Keys after the last query of the chunk are never seen. */
        take_tile(w, k0, least(k0 + KEYS, end));
    put_chunk(w);
}

/* Write sums, [keys][depth] blocks, to column `col` of the gradient. */
static void put_keys(const struct task *w, const float *sums, int64_t col)
{
    const struct sh_attn *a = w->a;
    for (int64_t t = 0; t < a->seq; t += SIDE)
        for (int64_t d = 0; d < w->depth; d++, sums += BLOCK)
            sh_attn_put(sums, (sh_bf16 *)a->dkv + (w->b * a->seq + t) * a->kv_ld + col + d * SIDE, a->kv_ld, a->seq - t,
                        a->dim - d * SIDE);
}

/* dk and dv are sums over all query heads of the group and all chunks, in this order, whichever thread runs the
 * task. */
static void take_kv_head(struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t group = a->heads / a->kv_heads, k_col = sh_attn_k_col(a, w->kv_head), v_col = sh_attn_v_col(a, w->kv_head);
    struct sh_attn_matrix k = rows_of(w, a->kv, a->kv_ld, w->b * a->seq, a->seq, k_col);
    size_t bytes = (size_t)(w->keys * w->depth * BLOCK) * sizeof(float);

    sh_attn_pack_rows(k, sh_panel_pack_rows, w->k);
    sh_attn_pack_cols(k, sh_panel_pack_rows, w->k_turned, w->keys);
    sh_attn_pack_rows(rows_of(w, a->kv, a->kv_ld, w->b * a->seq, a->seq, v_col), sh_panel_pack_rows, w->v);
    memset(w->dk, 0, bytes);
    memset(w->dv, 0, bytes);
    for (w->head = w->kv_head * group; w->head < (w->kv_head + 1) * group; w->head++)
        for (int64_t i = 0; i < sh_attn_blocks(a, QUERIES * SIDE); i++) {
            w->t = sh_attn_block_at(a, i, QUERIES * SIDE);
            take_chunk(w);
        }
    put_keys(w, w->dk, k_col);
    put_keys(w, w->dv, v_col);
}

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    return threads * scratch_bytes(sh_panels(sh_attn_keys(call)), sh_panels(call->attr->attn.head_dim));
}

static sh_rc run(const struct sh_op_call *call)
{
    struct sh_attn a = sh_attn_of(call);
    SH_REQUIRE(call->work_bytes >= work_bytes(call, omp_get_max_threads()));
#pragma omp parallel
    {
        struct task w = {.a = &a, .depth = sh_panels(a.dim), .keys = sh_panels(a.seq)};
        cut_scratch(&w, (char *)call->work + work_bytes(call, 1) * omp_get_thread_num());
        sh_panel_begin();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < a.batch * a.kv_heads; i++) {
            w.b = i / a.kv_heads;
            w.kv_head = i % a.kv_heads;
            take_kv_head(&w);
        }
        sh_panel_end();
    }
    return SH_OK;
}

const struct sh_attn_engine sh_attn_panels_bwd = {.takes = sh_attn_panels_takes, .work_bytes = work_bytes, .run = run};

#endif
