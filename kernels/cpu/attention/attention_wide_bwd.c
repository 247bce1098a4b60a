/* Attention by AVX-512 in f32, backward. A task is one key-value head of one sequence with all its query heads, so dk
 * and dv have one owner and one order of summation; threads beyond B*K find no work. Queries pass in chunks of QUERIES
 * panels, keys in tiles of KEYS panels. Scores are recomputed from q, k and the saved lse. Floor: 10*D operations per
 * pair (query, key seen), and one exponential. */
#include "sherd_config.h"

#include "kernels/cpu/attention/attention_wide.h"

#ifdef SH_WIDE

#include "kernels/cpu/base/block.h"
#include "kernels/cpu/base/row.h"

#include <omp.h>
#include <string.h>

enum { SIDE = SH_ATTN_SIDE, QUERIES = 4, KEYS = 2, LINE = QUERIES * SIDE };

struct task {
    const struct sh_attn *a;
    int64_t b, kv_head, wide, keys; /* D in scratch; panels that hold T */
    /* The current chunk: its head, first query, panels of queries. */
    int64_t head, t, panels;
    struct sh_attn_queries seen[QUERIES];
    /* Scratch of one thread. */
    float *k, *v, *dk, *dv;     /* [keys][SIDE][wide] */
    float *q, *g;               /* [QUERIES][SIDE][wide]: queries, and gradients of the output */
    float *q_turned, *g_turned; /* [QUERIES][wide][SIDE]: the same, transposed */
    float *dq;                  /* [QUERIES][SIDE][wide] */
    float *p, *ds;              /* [KEYS][SIDE][LINE] scores, then weights; gradients of weights, then of scores */
    float *lse, *delta;         /* [LINE]; lse as an exponent of 2; delta: sum over D of do * o */
};

static int64_t scratch_bytes(int64_t keys, int64_t wide)
{
    int64_t head = keys * SIDE * wide, chunk = LINE * wide;
    return (4 * head + 5 * chunk + 2 * KEYS * SIDE * LINE + 2 * LINE) * (int64_t)sizeof(float);
}

/* The pieces are in the order of struct task. */
static void cut_scratch(struct task *w, void *p)
{
    int64_t head = w->keys * SIDE * w->wide, chunk = LINE * w->wide;
    w->k = p;
    w->v = w->k + head;
    w->dk = w->v + head;
    w->dv = w->dk + head;
    w->q = w->dv + head;
    w->g = w->q + chunk;
    w->q_turned = w->g + chunk;
    w->g_turned = w->q_turned + chunk;
    w->dq = w->g_turned + chunk;
    w->p = w->dq + chunk;
    w->ds = w->p + KEYS * SIDE * LINE;
    w->lse = w->ds + KEYS * SIDE * LINE;
    w->delta = w->lse + LINE;
}

/* For `rows` keys and the 32 queries of panel j: p holds scores and becomes weights, ds holds the gradients of weights
 * and becomes those of the unscaled scores. */
static SH_WIDE void differentiate(const struct task *w, int64_t j, float *p, float *ds, int64_t rows)
{
    __m512 by = _mm512_set1_ps(sh_attn_by(w->a->scale)), scale = _mm512_set1_ps(w->a->scale), lse[2], delta[2];

    for (int h = 0; h < 2; h++) {
        lse[h] = _mm512_loadu_ps(w->lse + j * SIDE + h * SH_WIDE_LANES);
        delta[h] = _mm512_loadu_ps(w->delta + j * SIDE + h * SH_WIDE_LANES);
    }
    for (int64_t i = 0; i < rows; i++, p += LINE, ds += LINE)
        for (int h = 0; h < 2; h++) {
            float *weights = p + h * SH_WIDE_LANES, *grads = ds + h * SH_WIDE_LANES;
            __m512 x = sh_wide_exp2(_mm512_fmsub_ps(_mm512_loadu_ps(weights), by, lse[h]));
            __m512 d = _mm512_sub_ps(_mm512_loadu_ps(grads), delta[h]);
            _mm512_storeu_ps(weights, x);
            _mm512_storeu_ps(grads, _mm512_mul_ps(_mm512_mul_ps(x, scale), d));
        }
}

/* Panel j of the chunk against the panels of keys in [k0, k1) that it sees; dq += ds k. */
static void take_queries(struct task *w, int64_t j, int64_t k0, int64_t k1)
{
    const struct sh_attn_queries *seen = &w->seen[j];
    int64_t lo = seen->least / SIDE > k0 ? seen->least / SIDE : k0, n = sh_panel_least(seen->t / SIDE + 1, k1) - lo;
    int64_t key = lo * SIDE * w->wide, at = (lo - k0) * SIDE * LINE + j * SIDE, query = j * SIDE * w->wide;
    if (n <= 0)
        return;

    struct sh_attn_product s = {.rows = n * SIDE,
                                .cols = SIDE,
                                .inner = w->a->dim,
                                .a = w->k + key,
                                .lda = w->wide,
                                .b = w->q_turned + query,
                                .ldb = SIDE,
                                .c = w->p + at,
                                .ldc = LINE};
    sh_attn_wide_multiply(&s);
    s.a = w->v + key;
    s.b = w->g_turned + query;
    s.c = w->ds + at;
    sh_attn_wide_multiply(&s);
    sh_attn_cap_bwd(w->a, w->p + at, w->ds + at, LINE, n * SIDE, SIDE, w->delta + j * SIDE, true);
    for (int64_t i = 0; i < n; i++)
        sh_attn_hide(w->p + at + i * SIDE * LINE, LINE, seen, (lo + i) * SIDE);
    differentiate(w, j, w->p + at, w->ds + at, n * SIDE);
    sh_attn_wide_multiply(&(struct sh_attn_product){.rows = SIDE,
                                                    .cols = w->wide,
                                                    .inner = n * SIDE,
                                                    .a = w->ds + at,
                                                    .lda = LINE,
                                                    .turned = true,
                                                    .b = w->k + key,
                                                    .ldb = w->wide,
                                                    .c = w->dq + query,
                                                    .ldc = w->wide,
                                                    .add = true});
}

/* Panel k of the keys, the i-th of its tile, against the panels of queries that see it: dv += p' do and dk += ds' q.
 * First keys never decrease from one query to the next, so these panels are neighbours. */
static void take_panel(struct task *w, int64_t k, int64_t i)
{
    int64_t lo = k > w->t / SIDE ? k - w->t / SIDE : 0, hi = lo, at = i * SIDE * LINE + lo * SIDE;
    while (hi < w->panels && w->seen[hi].least / SIDE <= k)
        hi++;
    if (hi == lo)
        return;

    struct sh_attn_product sum = {.rows = SIDE,
                                  .cols = w->wide,
                                  .inner = (hi - lo) * SIDE,
                                  .a = w->p + at,
                                  .lda = LINE,
                                  .b = w->g + lo * SIDE * w->wide,
                                  .ldb = w->wide,
                                  .c = w->dv + k * SIDE * w->wide,
                                  .ldc = w->wide,
                                  .add = true};
    sh_attn_wide_multiply(&sum);
    sum.a = w->ds + at;
    sum.b = w->q + lo * SIDE * w->wide;
    sum.c = w->dk + k * SIDE * w->wide;
    sh_attn_wide_multiply(&sum);
}

/* Widen the queries of a chunk and their gradients. The output passes through the room for dq. */
static void open_chunk(struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t ld = a->heads * a->dim, row = sh_attn_row(a, w->b, w->t), exist = sh_attn_end(a, w->t) - w->t;
    int64_t rows = w->panels * SIDE, col = w->head * a->dim;
    const float *lse = sh_attn_lse_at(a, w->b, w->head, w->t);

    sh_attn_wide_load(a, a->q, a->q_ld, row, exist, sh_attn_q_col(a, w->head), rows, w->q);
    sh_attn_wide_load(a, a->dout, ld, row, exist, col, rows, w->g);
    sh_attn_wide_load(a, a->o, ld, row, exist, col, rows, w->dq);
    for (int64_t i = 0; i < rows; i++) {
        w->lse[i] = i < exist ? sh_attn_by(lse[i]) : 0;
        w->delta[i] = sh_cpu_row_dot(w->g + i * w->wide, w->dq + i * w->wide, w->wide);
    }
    memset(w->dq, 0, (size_t)(rows * w->wide) * sizeof(float));
    for (int64_t j = 0; j < w->panels; j++) {
        sh_attn_wide_turn(w->q + j * SIDE * w->wide, w->wide, w->q_turned + j * SIDE * w->wide);
        sh_attn_wide_turn(w->g + j * SIDE * w->wide, w->wide, w->g_turned + j * SIDE * w->wide);
        w->seen[j] = sh_attn_queries_of(a, w->b, w->t + j * SIDE);
    }
}

/* Write rows of sums to a gradient [..,ld], from row `row` and column `col` on. */
static void put(const struct task *w, void *gradient, int64_t ld, int64_t row, int64_t rows, int64_t col,
                const float *sums)
{
    const struct sh_attn *a = w->a;
    void *dst = sh_cpu_at(gradient, a->dtype, row * ld + col);
    sh_cpu_block_store((struct sh_cpu_block){.rows = rows, .cols = a->dim}, dst, ld, a->dtype, sums, w->wide);
}

/* Keys that the chunk sees, in tiles; those after its last query are never seen. */
static void take_chunk(struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t first = a->seq, left = sh_attn_end(a, w->t) - w->t;
    w->panels = sh_panel_least(sh_panels(left), QUERIES);
    open_chunk(w);
    for (int64_t j = 0; j < w->panels; j++)
        first = sh_panel_least(w->seen[j].least, first);
    int64_t end = w->t / SIDE + w->panels;
    for (int64_t k0 = first / SIDE; k0 < end; k0 += KEYS) {
        int64_t k1 = sh_panel_least(k0 + KEYS, end);
        for (int64_t j = 0; j < w->panels; j++)
            take_queries(w, j, k0, k1);
        for (int64_t k = k0; k < k1; k++)
            take_panel(w, k, k - k0);
    }
    put(w, a->dq, a->q_ld, sh_attn_row(a, w->b, w->t), sh_panel_least(LINE, left), sh_attn_q_col(a, w->head), w->dq);
}

/* dk and dv are sums over all query heads of the group and all chunks, in this order, whichever thread runs the
 * task. */
static void take_kv_head(struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t group = a->heads / a->kv_heads, k_col = sh_attn_k_col(a, w->kv_head), v_col = sh_attn_v_col(a, w->kv_head);
    int64_t row = w->b * a->seq, rows = w->keys * SIDE;
    size_t bytes = (size_t)(rows * w->wide) * sizeof(float);

    sh_attn_wide_load(a, a->kv, a->kv_ld, row, a->seq, k_col, rows, w->k);
    sh_attn_wide_load(a, a->kv, a->kv_ld, row, a->seq, v_col, rows, w->v);
    memset(w->dk, 0, bytes);
    memset(w->dv, 0, bytes);
    for (w->head = w->kv_head * group; w->head < (w->kv_head + 1) * group; w->head++)
        for (int64_t i = 0; i < sh_attn_blocks(a, LINE); i++) {
            w->t = sh_attn_block_at(a, i, LINE);
            take_chunk(w);
        }
    put(w, a->dkv, a->kv_ld, row, a->seq, k_col, w->dk);
    put(w, a->dkv, a->kv_ld, row, a->seq, v_col, w->dv);
}

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    return threads * scratch_bytes(sh_panels(sh_attn_keys(call)), sh_panels(call->attr->attn.head_dim) * SIDE);
}

static sh_rc run(const struct sh_op_call *call)
{
    struct sh_attn a = sh_attn_of(call);
    SH_REQUIRE(call->work_bytes >= work_bytes(call, omp_get_max_threads()));
#pragma omp parallel
    {
        struct task w = {.a = &a, .wide = sh_attn_wide_dim(&a), .keys = sh_panels(a.seq)};
        cut_scratch(&w, (char *)call->work + work_bytes(call, 1) * omp_get_thread_num());
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < a.batch * a.kv_heads; i++) {
            w.b = i / a.kv_heads;
            w.kv_head = i % a.kv_heads;
            take_kv_head(&w);
        }
    }
    return SH_OK;
}

const struct sh_attn_engine sh_attn_wide_bwd = {.takes = sh_attn_wide_takes, .work_bytes = work_bytes, .run = run};

#endif
