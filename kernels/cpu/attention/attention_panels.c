/* Attention by packed panels, forward. A task is 8 or 16 panels of queries of one head. Keys pass in tiles of
 * KEYS panels, which are packed once per task, with a running maximum and sum per query (online softmax). Tasks share
 * nothing that they write. Measured at D=64, GFLOP/s of the floor's operations per core at T=256 and T=1024: 290 and
 * 400 on a Xeon with AMX; 135 and 165 on a Zen 4, 63 and 77 % of the rate of a large product there. */
#include "sherd_config.h"

#include "kernels/cpu/attention/attention_panels.h"

#ifdef SH_WIDE

#include <float.h>
#include <omp.h>

enum { SIDE = SH_ATTN_SIDE, STEP = SH_PANEL_STEP, BLOCK = SH_ATTN_BLOCK, KEYS = 8 };
/* Panels of queries of a task: twice as many halve the packing of keys, if enough tasks are left for the threads. */
enum { QUERIES = 8, MOST = 16, LONG = 4096 };

struct task {
    const struct sh_attn *a;
    int64_t b, head, t, panels, depth, queries; /* the task: first query, panels of queries; steps that hold D; QUERIES
                                                    or MOST */
    struct sh_attn_queries seen[MOST];
    bool begun[MOST]; /* the panel has seen keys: o holds sums */
    /* Scratch of one thread. */
    sh_bf16 *q, *k;    /* [queries][depth] columns, [KEYS][depth] rows */
    sh_bf16 *v, *p[2]; /* [depth][KEYS] rows: V transposed; [KEYS] columns: weights of two panels of queries */
    float *o;          /* [queries][depth] blocks: the output, transposed, not yet divided by the sums */
    float *s[2];       /* [KEYS] blocks: scores of two panels of queries */
    float *shrink[2];  /* [SIDE] */
    float *max, *sum;  /* [queries][SIDE] as in sh_attn_soften_begin() */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t queries_of(int64_t rows)
{
    return rows >= LONG ? MOST : QUERIES;
}

static int64_t scratch_bytes(int64_t depth, int64_t queries)
{
    int64_t steps = (queries + 2 * KEYS) * depth + 2 * KEYS, blocks = queries * depth + 2 * KEYS;
    int64_t rows = 2 * queries + 2;
    return steps * STEP * (int64_t)sizeof(sh_bf16) + (blocks * BLOCK + rows * SIDE) * (int64_t)sizeof(float);
}

/* The pieces are in the order of struct task; each is a multiple of 64 bytes. */
static void cut_scratch(struct task *w, void *p)
{
    w->q = p;
    w->k = w->q + w->queries * w->depth * STEP;
    w->v = w->k + KEYS * w->depth * STEP;
    w->p[0] = w->v + KEYS * w->depth * STEP;
    w->p[1] = w->p[0] + KEYS * STEP;
    w->o = (float *)(void *)(w->p[1] + KEYS * STEP);
    w->s[0] = w->o + w->queries * w->depth * BLOCK;
    w->s[1] = w->s[0] + KEYS * BLOCK;
    w->shrink[0] = w->s[1] + KEYS * BLOCK;
    w->shrink[1] = w->shrink[0] + SIDE;
    w->max = w->shrink[1] + SIDE;
    w->sum = w->max + w->queries * SIDE;
}

/* block [SIDE][SIDE] times by [SIDE]: a column is a query. */
static SH_WIDE void scale_columns(float *restrict block, const float *restrict by)
{
    for (int i = 0; i < SIDE; i++, block += SIDE)
        for (int j = 0; j < SIDE; j++)
            block[j] *= by[j];
}

/* The panels of keys in [k0, k1) that panel j of the queries sees: n from lo on. */
struct part {
    int64_t lo, n;
};

static struct part part_of(const struct task *w, int64_t j, int64_t k0, int64_t k1)
{
    if (j < 0 || j >= w->panels)
        return (struct part){0};
    int64_t lo = w->seen[j].least / SIDE > k0 ? w->seen[j].least / SIDE : k0;
    int64_t n = least(w->seen[j].t / SIDE + 1, k1) - lo;
    return (struct part){.lo = lo, .n = n < 0 ? 0 : n};
}

/* Scores of panel j with the i-th panel of keys of its part. */
static void score(struct task *w, int64_t j, struct part part, int64_t k0, int64_t i)
{
    if (i >= part.n)
        return;
    float *s = w->s[j % 2] + i * BLOCK;
    sh_panel_multiply(w->k + (part.lo - k0 + i) * w->depth * STEP, w->q + j * w->depth * STEP, s, w->depth, false);
    sh_attn_cap(w->a, s, SIDE, SIDE, SIDE);
    sh_attn_hide(s, SIDE, &w->seen[j], (part.lo + i) * SIDE);
}

/* The d-th 32 elements of panel j's output += weights times values. */
static SH_WIDE void gather(struct task *w, int64_t j, struct part part, int64_t k0, int64_t d)
{
    float *o = w->o + (j * w->depth + d) * BLOCK;
    if (!part.n || d >= w->depth)
        return;
    if (w->begun[j])
        scale_columns(o, w->shrink[j % 2]);
    sh_panel_multiply(w->v + (d * KEYS + part.lo - k0) * STEP, w->p[j % 2], o, part.n, w->begun[j]);
}

/* All panels of queries against the panels of keys [k0, k1). The scores of the next panel and the output of the last
 * one are computed among the exponentials of this one: products by tiles take their time beside the vectors' work. */
static SH_WIDE void take_tile(struct task *w, int64_t k0, int64_t k1)
{
    int64_t most = w->depth > KEYS ? w->depth : KEYS;

    for (int64_t j = -1; j <= w->panels; j++) {
        struct part last = part_of(w, j - 1, k0, k1), now = part_of(w, j, k0, k1), next = part_of(w, j + 1, k0, k1);
        struct sh_attn_softening soft;
        float *s = w->s[j & 1];
        if (now.n)
            soft = sh_attn_soften_begin(s, now.n, w->a->scale, w->max + j * SIDE, w->sum + j * SIDE, w->shrink[j & 1]);
        for (int64_t i = 0; i < most; i++) {
            score(w, j + 1, next, k0, i);
            gather(w, j - 1, last, k0, i);
            if (i < now.n)
                sh_attn_soften_block(&soft, s + i * BLOCK, w->p[j & 1] + i * STEP);
        }
        if (now.n)
            sh_attn_soften_end(&soft, w->sum + j * SIDE);
        if (last.n)
            w->begun[j - 1] = true;
    }
}

/* Keys or values [row, row + rows) of the task's sequence, from a column on. */
static struct sh_attn_matrix keys_of(const struct task *w, int64_t row, int64_t rows, int64_t col)
{
    const struct sh_attn *a = w->a;
    return (struct sh_attn_matrix){.data = (const sh_bf16 *)a->kv + (w->b * a->seq + row) * a->kv_ld + col,
                                   .ld = a->kv_ld,
                                   .rows = least(rows, a->seq - row),
                                   .dim = a->dim};
}

/* The task's queries. */
static struct sh_attn_matrix queries(const struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t at = sh_attn_row(a, w->b, w->t) * a->q_ld + sh_attn_q_col(a, w->head);
    return (struct sh_attn_matrix){.data = (const sh_bf16 *)a->q + at,
                                   .ld = a->q_ld,
                                   .rows = least(w->queries * SIDE, sh_attn_end(a, w->t) - w->t),
                                   .dim = a->dim};
}

/* Pack the queries once; they meet all keys, each at least its own. Maxima start at the lowest float. */
static void open_task(struct task *w)
{
    const struct sh_attn *a = w->a;
    sh_attn_pack_rows(queries(w), sh_panel_pack_cols, w->q);
    for (int64_t j = 0; j < w->panels; j++) {
        w->seen[j] = sh_attn_queries_of(a, w->b, w->t + j * SIDE);
        w->begun[j] = false;
    }
    for (int64_t j = 0; j < w->panels * SIDE; j++) {
        w->max[j] = -FLT_MAX; /* not -Inf: queries that see nothing are rescaled by exp(0) */
        w->sum[j] = 0;
    }
}

/* The output is transposed, D by queries; it is divided by the sums and transposed back when it is stored. */
static SH_WIDE void close_task(struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t n = least(w->panels * SIDE, sh_attn_end(a, w->t) - w->t), ld = a->heads * a->dim;
    float *lse = sh_attn_lse_at(a, w->b, w->head, w->t);
    sh_bf16 *o = (sh_bf16 *)a->o + sh_attn_row(a, w->b, w->t) * ld + w->head * a->dim;

    for (int64_t i = 0; i < n; i++) {
        lse[i] = sh_attn_lse(w->max[i], w->sum[i]);
        w->sum[i] = 1.0f / w->sum[i];
    }
    for (int64_t i = 0, j = 0; i < n; i += SIDE, j++)
        for (int64_t d = 0; d < w->depth; d++)
            sh_attn_put_turned(w->o + (j * w->depth + d) * BLOCK, w->sum + j * SIDE, o + i * ld + d * SIDE, ld, n - i,
                               a->dim - d * SIDE);
}

/* Keys from the first that any query sees up to the last query, KEYS panels at a time. */
static void attend(struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t kv_head = w->head / (a->heads / a->kv_heads), first = a->seq;
    w->panels = least(sh_panels(sh_attn_end(a, w->t) - w->t), w->queries);
    open_task(w);
    for (int64_t j = 0; j < w->panels; j++)
        /* With documents, panels of queries see different first keys; the task starts at the earliest. */
        first = least(w->seen[j].least, first);
    int64_t end = w->t / SIDE + w->panels;
    for (int64_t k0 = first / SIDE; k0 < end; k0 += KEYS) {
        int64_t k1 = least(k0 + KEYS, end), rows = (k1 - k0) * SIDE;
        sh_attn_pack_rows(keys_of(w, k0 * SIDE, rows, sh_attn_k_col(a, kv_head)), sh_panel_pack_rows, w->k);
        sh_attn_pack_cols(keys_of(w, k0 * SIDE, rows, sh_attn_v_col(a, kv_head)), sh_panel_pack_rows, w->v, KEYS);
        take_tile(w, k0, k1);
    }
    close_task(w);
}

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    return threads * scratch_bytes(sh_panels(call->attr->attn.head_dim), queries_of(call->in[0].dim[1]));
}

static sh_rc run(const struct sh_op_call *call)
{
    struct sh_attn a = sh_attn_of(call);
    int64_t rows = queries_of(a.rows) * SIDE, tasks = sh_attn_blocks(&a, rows), heads = a.batch * a.heads;
    SH_REQUIRE(call->work_bytes >= work_bytes(call, omp_get_max_threads()));
#pragma omp parallel
    {
        struct task w = {.a = &a, .depth = sh_panels(a.dim), .queries = queries_of(a.rows)};
        cut_scratch(&w, (char *)call->work + work_bytes(call, 1) * omp_get_thread_num());
        sh_panel_begin();
        /* The last queries see the most keys, so they go first: no thread is then left alone with them at the end. */
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < tasks * heads; i++) {
            w.t = sh_attn_block_at(&a, tasks - 1 - i / heads, rows);
            w.b = i % heads / a.heads;
            w.head = i % a.heads;
            attend(&w);
        }
        sh_panel_end();
    }
    return SH_OK;
}

const struct sh_attn_engine sh_attn_panels = {.takes = sh_attn_panels_takes, .work_bytes = work_bytes, .run = run};

#endif
