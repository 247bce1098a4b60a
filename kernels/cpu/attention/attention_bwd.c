/* Attention, backward. A task is one key-value head of one sequence with all its query heads, so dk and dv have one
 * owner and one order of summation; threads beyond B*K find no work. Scores are recomputed from q, k and the saved
 * lse. Floor: 10*D operations per pair (query, key seen); five products per tile. Measured at D=64 on a Zen 5 core:
 * 125 GFLOP/s of the floor's operations at T=256, 167 at T=1024. */
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/base/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/row.h"

#include <omp.h>
#include <string.h>

struct task {
    const struct sh_attn *a;
    int64_t b, kv_head;
    struct sh_attn_view k, v; /* [T,D] */
    /* Scratch of one thread. */
    float *kf, *vf;      /* [T,D]: copies of bf16 keys and values */
    float *dk, *dv;      /* [T,D] */
    float *qf, *gf, *of; /* [Q,D]: copies of bf16 queries, output gradients, outputs */
    float *dq;           /* [Q,D] */
    float *s, *ds;       /* [Q,K] probabilities; gradients of scores */
    float *delta;        /* [Q]: sum over D of do * o */
};

/* One block of queries of one head. */
struct block {
    int64_t head, t, nq;
    struct sh_attn_view q, g; /* queries and output gradients, [nq,D] */
    const float *lse;         /* [nq] */
};

/* Floats per thread: all keys, values and their gradients, and one block of queries. */
static int64_t scratch_elems(int64_t seq, int64_t dim)
{
    return 4 * seq * dim + 4 * SH_ATTN_Q * dim + 2 * SH_ATTN_Q * SH_ATTN_K + SH_ATTN_Q;
}

/* The pieces are in the order of struct task. */
static void cut_scratch(struct task *w, float *p, int64_t seq, int64_t dim)
{
    w->kf = p;
    w->vf = w->kf + seq * dim;
    w->dk = w->vf + seq * dim;
    w->dv = w->dk + seq * dim;
    w->qf = w->dv + seq * dim;
    w->gf = w->qf + SH_ATTN_Q * dim;
    w->of = w->gf + SH_ATTN_Q * dim;
    w->dq = w->of + SH_ATTN_Q * dim;
    w->s = w->dq + SH_ATTN_Q * dim;
    w->ds = w->s + SH_ATTN_Q * SH_ATTN_K;
    w->delta = w->ds + SH_ATTN_Q * SH_ATTN_K;
}

/* ds [n] holds the gradient of the probabilities p and is overwritten with the gradient of the unscaled scores. */
SH_CLONES static void score_gradient(float *ds, const float *p, int64_t n, float delta, float scale)
{
    for (int64_t j = 0; j < n; j++)
        ds[j] = p[j] * (ds[j] - delta) * scale;
}

/* Write src [rows,D] to a column of a gradient [..,ld], rounded if that is 16 bits. */
static void put(const struct sh_attn *a, void *gradient, int64_t ld, int64_t row, int64_t rows, int64_t col,
                const float *src)
{
    void *dst = sh_cpu_at(gradient, a->dtype, row * ld + col);
    sh_cpu_block_store((struct sh_cpu_block){.rows = rows, .cols = a->dim}, dst, ld, a->dtype, src, a->dim);
}

/* The tile's scores in s, and in ds the gradients of its probabilities. */
static sh_rc multiply_tile(struct task *w, const struct block *q, int64_t k0, int64_t nk)
{
    const struct sh_attn *a = w->a;
    struct sh_attn_tile s = {.nq = q->nq, .nk = nk, .s = w->s}, ds = {.nq = q->nq, .nk = nk, .s = w->ds};
    SH_TRY(sh_attn_scores(a, s, q->q, sh_attn_rows(w->k, k0)));
    SH_TRY(sh_attn_scores(a, ds, q->g, sh_attn_rows(w->v, k0)));
    sh_attn_cap_bwd(a, w->s, w->ds, SH_ATTN_K, q->nq, nk, w->delta, false);
    return SH_OK;
}

/* Turn the scores in s into probabilities; dv += p' do. */
static sh_rc probabilities(struct task *w, const struct block *q, int64_t k0, int64_t nk)
{
    const struct sh_attn *a = w->a;
    struct sh_attn_tile p = {.nq = q->nq, .nk = nk, .s = w->s};
    for (int64_t i = 0; i < q->nq; i++) {
        struct sh_attn_span seen = sh_attn_span_of(a, w->b, q->t + i, k0, nk);
        (void)sh_attn_exp_row(w->s + i * SH_ATTN_K, nk, seen, a->scale, q->lse[i]);
    }
    return sh_attn_to_cols(a, p, q->g, w->dv + k0 * a->dim);
}

/* Turn ds into the gradients of the tile's scores; dq += ds k and dk += ds' q. */
static sh_rc gradients(struct task *w, const struct block *q, int64_t k0, int64_t nk)
{
    const struct sh_attn *a = w->a;
    struct sh_attn_tile ds = {.nq = q->nq, .nk = nk, .s = w->ds};
    for (int64_t i = 0; i < q->nq; i++)
        score_gradient(w->ds + i * SH_ATTN_K, w->s + i * SH_ATTN_K, nk, w->delta[i], a->scale);
    SH_TRY(sh_attn_to_rows(a, ds, sh_attn_rows(w->k, k0), w->dq));
    return sh_attn_to_cols(a, ds, q->q, w->dk + k0 * a->dim);
}

/* Read q, do and o of the block, and compute delta; for f32 these are views and nothing is copied. */
static struct block open_block(struct task *w, int64_t head, int64_t t)
{
    const struct sh_attn *a = w->a;
    int64_t row = sh_attn_row(a, w->b, t), ld = a->heads * a->dim, left = sh_attn_end(a, t) - t;
    struct block q = {.head = head, .t = t, .nq = left < SH_ATTN_Q ? left : SH_ATTN_Q};
    q.q = sh_attn_read(a, a->q, a->q_ld, row, q.nq, sh_attn_q_col(a, head), w->qf);
    q.g = sh_attn_read(a, a->dout, ld, row, q.nq, head * a->dim, w->gf);
    q.lse = sh_attn_lse_at(a, w->b, head, t);

    struct sh_attn_view o = sh_attn_read(a, a->o, ld, row, q.nq, head * a->dim, w->of);
    for (int64_t i = 0; i < q.nq; i++)
        w->delta[i] = sh_cpu_row_dot(q.g.data + i * q.g.ld, o.data + i * o.ld, a->dim);
    return q;
}

/* dq of a block is complete after its keys; dk and dv accumulate further. */
static sh_rc block_backward(struct task *w, int64_t head, int64_t t)
{
    const struct sh_attn *a = w->a;
    struct block q = open_block(w, head, t);
    int64_t end = t + q.nq;

    memset(w->dq, 0, (size_t)(q.nq * a->dim) * sizeof(float));
    for (int64_t k0 = sh_attn_first_key_of(a, w->b, t, q.nq); k0 < end; k0 += SH_ATTN_K) {
        int64_t nk = end - k0 < SH_ATTN_K ? end - k0 : SH_ATTN_K;
        SH_TRY(multiply_tile(w, &q, k0, nk));
        SH_TRY(probabilities(w, &q, k0, nk));
        SH_TRY(gradients(w, &q, k0, nk));
    }
    put(a, a->dq, a->q_ld, sh_attn_row(a, w->b, t), q.nq, sh_attn_q_col(a, head), w->dq);
    return SH_OK;
}

static sh_rc kv_head_backward(struct task *w)
{
    const struct sh_attn *a = w->a;
    int64_t group = a->heads / a->kv_heads, row = w->b * a->seq;
    w->k = sh_attn_read(a, a->kv, a->kv_ld, row, a->seq, sh_attn_k_col(a, w->kv_head), w->kf);
    w->v = sh_attn_read(a, a->kv, a->kv_ld, row, a->seq, sh_attn_v_col(a, w->kv_head), w->vf);

    memset(w->dk, 0, (size_t)(a->seq * a->dim) * sizeof(float));
    memset(w->dv, 0, (size_t)(a->seq * a->dim) * sizeof(float));
    for (int64_t head = w->kv_head * group; head < (w->kv_head + 1) * group; head++)
        for (int64_t i = 0; i < sh_attn_blocks(a, SH_ATTN_Q); i++)
            SH_TRY(block_backward(w, head, sh_attn_block_at(a, i, SH_ATTN_Q)));
    put(a, a->dkv, a->kv_ld, row, a->seq, sh_attn_k_col(a, w->kv_head), w->dk);
    put(a, a->dkv, a->kv_ld, row, a->seq, sh_attn_v_col(a, w->kv_head), w->dv);
    return SH_OK;
}

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    return threads *
           sh_cpu_round64(scratch_elems(sh_attn_keys(call), call->attr->attn.head_dim) * (int64_t)sizeof(float));
}

static sh_rc run(const struct sh_op_call *call)
{
    struct sh_attn a = sh_attn_of(call);
    int64_t one_thread = work_bytes(call, 1);
    SH_REQUIRE(call->work_bytes >= one_thread * omp_get_max_threads());

    struct sh_gemm_failure failure = {0};
#pragma omp parallel
    {
        sh_gemm_serial();
        struct task w = {.a = &a};
        char *mine = (char *)call->work + one_thread * omp_get_thread_num();
        cut_scratch(&w, (float *)(void *)mine, a.seq, a.dim);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < a.batch * a.kv_heads; i++) {
            w.b = i / a.kv_heads;
            w.kv_head = i % a.kv_heads;
            sh_gemm_note(&failure, kv_head_backward(&w));
        }
    }
    return sh_gemm_failed(&failure);
}

static bool takes(enum sh_dtype dtype)
{
    (void)dtype;
    return true;
}

const struct sh_attn_engine sh_attn_f32_bwd = {.takes = takes, .work_bytes = work_bytes, .run = run};
