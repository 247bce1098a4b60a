/* Attention by AVX-512 in f32, forward. A task is QUERIES panels of 32 queries of one head. The keys pass in tiles of
 * KEYS panels, which are widened once per task, with a running maximum and sum per query (online softmax). Tasks share
 * nothing that they write. Floor: 4*D operations per pair (query, key seen), and one exponential. Measured
 * beside the rate of a large float32 product on a Xeon without AMX: 84 % of it at T=256, 98 % at T=8192. */
#include "sherd_config.h"

#include "kernels/cpu/attention/attention_wide.h"

#ifdef SH_WIDE

#include "kernels/cpu/base/block.h"
#include "kernels/cpu/base/row.h"

#include <float.h>
#include <math.h>
#include <omp.h>

enum { SIDE = SH_ATTN_SIDE, QUERIES = 8, KEYS = 4 };

struct task {
    const struct sh_attn *a;
    int64_t b, head, t, panels, wide; /* the task: first query, panels of queries; D in scratch */
    struct sh_attn_queries seen[QUERIES];
    bool begun[QUERIES]; /* the panel has seen keys: o holds sums */
    /* Scratch of one thread. */
    float *q;         /* [QUERIES][wide][SIDE] transposed */
    float *k, *v;     /* [KEYS][SIDE][wide] */
    float *o;         /* [QUERIES][SIDE][wide] not yet divided by the sums */
    float *s;         /* [KEYS][SIDE][SIDE] scores, then weights, of one panel of queries: a row for each key */
    float *max, *sum; /* [QUERIES][SIDE] as in sh_attn_soften_begin() */
};

static int64_t scratch_bytes(int64_t wide)
{
    return ((2 * QUERIES + 2 * KEYS) * SIDE * wide + KEYS * SH_ATTN_BLOCK + 2 * QUERIES * SIDE) *
           (int64_t)sizeof(float);
}

/* The pieces are in the order of struct task; each is a multiple of 64 bytes. */
static void cut_scratch(struct task *w, void *p)
{
    w->q = p;
    w->k = w->q + QUERIES * SIDE * w->wide;
    w->v = w->k + KEYS * SIDE * w->wide;
    w->o = w->v + KEYS * SIDE * w->wide;
    w->s = w->o + QUERIES * SIDE * w->wide;
    w->max = w->s + KEYS * SH_ATTN_BLOCK;
    w->sum = w->max + QUERIES * SIDE;
}

/* Panel j of the queries against the panels of keys in [k0, k1) that it sees. */
static SH_WIDE void take_keys(struct task *w, int64_t j, int64_t k0, int64_t k1)
{
    const struct sh_attn_queries *seen = &w->seen[j];
    int64_t lo = seen->least / SIDE > k0 ? seen->least / SIDE : k0, n = sh_panel_least(seen->t / SIDE + 1, k1) - lo;
    int64_t first = (lo - k0) * SIDE * w->wide;
    float shrink[SIDE], *o = w->o + j * SIDE * w->wide;
    if (n <= 0)
        return;

    sh_attn_wide_multiply(&(struct sh_attn_product){.rows = n * SIDE,
                                                    .cols = SIDE,
                                                    .inner = w->a->dim,
                                                    .a = w->k + first,
                                                    .lda = w->wide,
                                                    .b = w->q + j * SIDE * w->wide,
                                                    .ldb = SIDE,
                                                    .c = w->s,
                                                    .ldc = SIDE});
    sh_attn_cap(w->a, w->s, SIDE, n * SIDE, SIDE);
    for (int64_t i = 0; i < n; i++)
        sh_attn_hide(w->s + i * SH_ATTN_BLOCK, SIDE, seen, (lo + i) * SIDE);
    struct sh_attn_softening soft =
        sh_attn_soften_begin(w->s, n, w->a->scale, w->max + j * SIDE, w->sum + j * SIDE, shrink);
    for (int64_t i = 0; i < n; i++)
        sh_attn_soften_block(&soft, w->s + i * SH_ATTN_BLOCK, NULL);
    sh_attn_soften_end(&soft, w->sum + j * SIDE);
    for (int64_t i = 0; i < SIDE && w->begun[j]; i++)
        sh_cpu_row_scale(o + i * w->wide, w->wide, shrink[i]);
    sh_attn_wide_multiply(&(struct sh_attn_product){.rows = SIDE,
                                                    .cols = w->wide,
                                                    .inner = n * SIDE,
                                                    .a = w->s,
                                                    .lda = SIDE,
                                                    .turned = true,
                                                    .b = w->v + first,
                                                    .ldb = w->wide,
                                                    .c = o,
                                                    .ldc = w->wide,
                                                    .add = w->begun[j]});
    w->begun[j] = true;
}

/* Widen the queries once; they meet all keys, each at least its own. Maxima start at the lowest float. */
static void open_task(struct task *w)
{
    const struct sh_attn *a = w->a;
    for (int64_t j = 0; j < w->panels; j++) {
        int64_t t = w->t + j * SIDE, row = sh_attn_row(a, w->b, t);
        /* By way of the room for the output. */
        sh_attn_wide_load(a, a->q, a->q_ld, row, sh_attn_end(a, t) - t, sh_attn_q_col(a, w->head), SIDE, w->o);
        sh_attn_wide_turn(w->o, w->wide, w->q + j * SIDE * w->wide);
        w->seen[j] = sh_attn_queries_of(a, w->b, t);
        w->begun[j] = false;
    }
    for (int64_t j = 0; j < w->panels * SIDE; j++) {
        w->max[j] = -FLT_MAX; /* not -Inf: queries that see nothing are rescaled by exp(0) */
        w->sum[j] = 0;
    }
}

static void close_task(struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t n = sh_panel_least(w->panels * SIDE, sh_attn_end(a, w->t) - w->t), ld = a->heads * a->dim;
    float *lse = sh_attn_lse_at(a, w->b, w->head, w->t);
    void *o = sh_cpu_at(a->o, a->dtype, sh_attn_row(a, w->b, w->t) * ld + w->head * a->dim);

    for (int64_t i = 0; i < n; i++) {
        lse[i] = sh_attn_lse(w->max[i], w->sum[i]);
        sh_cpu_row_scale(w->o + i * w->wide, a->dim, 1.0f / w->sum[i]);
    }
    sh_cpu_block_store((struct sh_cpu_block){.rows = n, .cols = a->dim}, o, ld, a->dtype, w->o, w->wide);
}

/* Keys from the first that any query sees up to the last query, KEYS panels at a time. */
static void attend(struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t kv_head = w->head / (a->heads / a->kv_heads), first = a->seq;
    w->panels = sh_panel_least(sh_panels(sh_attn_end(a, w->t) - w->t), QUERIES);
    open_task(w);
    for (int64_t j = 0; j < w->panels; j++)
        first = sh_panel_least(w->seen[j].least, first);
    int64_t end = w->t / SIDE + w->panels;
    for (int64_t k0 = first / SIDE; k0 < end; k0 += KEYS) {
        int64_t k1 = sh_panel_least(k0 + KEYS, end), t = k0 * SIDE, rows = (k1 - k0) * SIDE, row = w->b * a->seq + t;
        sh_attn_wide_load(a, a->kv, a->kv_ld, row, a->seq - t, sh_attn_k_col(a, kv_head), rows, w->k);
        sh_attn_wide_load(a, a->kv, a->kv_ld, row, a->seq - t, sh_attn_v_col(a, kv_head), rows, w->v);
        for (int64_t j = 0; j < w->panels; j++)
            take_keys(w, j, k0, k1);
    }
    close_task(w);
}

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    return threads * scratch_bytes(sh_panels(call->attr->attn.head_dim) * SIDE);
}

static sh_rc run(const struct sh_op_call *call)
{
    struct sh_attn a = sh_attn_of(call);
    int64_t tasks = sh_attn_blocks(&a, QUERIES * SIDE), heads = a.batch * a.heads;
    SH_REQUIRE(call->work_bytes >= work_bytes(call, omp_get_max_threads()));
#pragma omp parallel
    {
        struct task w = {.a = &a, .wide = sh_attn_wide_dim(&a)};
        cut_scratch(&w, (char *)call->work + work_bytes(call, 1) * omp_get_thread_num());
        /* The last queries see the most keys, so they go first: no thread is then left alone with them at the end. */
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < tasks * heads; i++) {
            w.t = sh_attn_block_at(&a, tasks - 1 - i / heads, QUERIES * SIDE);
            w.b = i % heads / a.heads;
            w.head = i % a.heads;
            attend(&w);
        }
    }
    return SH_OK;
}

const struct sh_attn_engine sh_attn_wide = {.takes = sh_attn_wide_takes, .work_bytes = work_bytes, .run = run};

#endif
