/* Attention, forward. A task is one block of queries of one head; it walks its keys once with a running row maximum
 * and sum (online softmax). Tasks share nothing that they write. Floor: 4*D operations per pair (query, key seen).
 * The tiles on the diagonal are computed whole, so T=256 does 1.25 times that, T=1024 1.06 times. Measured at D=64 on
 * a Zen 5 core: 103 GFLOP/s of the floor's operations at T=256, 137 at T=1024; small products alone run at 220. */
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/base/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/row.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Queries [t, t+nq) of a head against keys [k0, k0+nk). */
static sh_rc take_tile(const struct sh_attn *a, struct sh_attn_scratch *w, struct sh_attn_view q, int64_t b,
                       int64_t kv_head, int64_t t, int64_t nq, int64_t k0, int64_t nk)
{
    int64_t row = b * a->seq + k0;
    struct sh_attn_view k = sh_attn_read(a, a->kv, a->kv_ld, row, nk, sh_attn_k_col(a, kv_head), w->k);
    struct sh_attn_view v = sh_attn_read(a, a->kv, a->kv_ld, row, nk, sh_attn_v_col(a, kv_head), w->v);

    struct sh_attn_tile tile = {.nq = nq, .nk = nk, .s = w->s};
    SH_TRY(sh_attn_scores(a, tile, q, k));
    sh_attn_cap(a, w->s, SH_ATTN_K, nq, nk);
    for (int64_t i = 0; i < nq; i++)
        sh_attn_take_row(a, w, i, sh_attn_span_of(a, b, t + i, k0, nk), nk);
    return sh_attn_to_rows(a, tile, v, w->o);
}

/* Divide the block's rows by their sums and round once. lse [B,H,T] is kept for the backward. */
static void put_block(const struct sh_attn *a, const struct sh_attn_scratch *w, int64_t b, int64_t head, int64_t t,
                      int64_t nq)
{
    float *lse = sh_attn_lse_at(a, b, head, t);
    for (int64_t i = 0; i < nq; i++) {
        sh_cpu_row_scale(w->o + i * a->dim, a->dim, 1.0f / w->sum[i]);
        lse[i] = w->max[i] + logf(w->sum[i]);
    }
    int64_t ld = a->heads * a->dim;
    void *o = sh_cpu_at(a->o, a->dtype, sh_attn_row(a, b, t) * ld + head * a->dim);
    sh_cpu_block_store((struct sh_cpu_block){.rows = nq, .cols = a->dim}, o, ld, a->dtype, w->o, a->dim);
}

/* Queries [t, t + nq) of one head. Keys before the start of the first document and after the last query are skipped. */
static sh_rc attend_block(const struct sh_attn *a, struct sh_attn_scratch *w, int64_t b, int64_t head, int64_t t)
{
    int64_t left = sh_attn_end(a, t) - t, nq = left < SH_ATTN_Q ? left : SH_ATTN_Q, end = t + nq;
    int64_t kv_head = head / (a->heads / a->kv_heads);
    struct sh_attn_view q = sh_attn_read(a, a->q, a->q_ld, sh_attn_row(a, b, t), nq, sh_attn_q_col(a, head), w->q);

    memset(w->o, 0, (size_t)(nq * a->dim) * sizeof(float));
    for (int64_t i = 0; i < nq; i++) {
        w->max[i] = -INFINITY;
        w->sum[i] = 0;
    }
    for (int64_t k0 = sh_attn_first_key_of(a, b, t, nq); k0 < end; k0 += SH_ATTN_K)
        SH_TRY(take_tile(a, w, q, b, kv_head, t, nq, k0, end - k0 < SH_ATTN_K ? end - k0 : SH_ATTN_K));
    put_block(a, w, b, head, t, nq);
    return SH_OK;
}

/* Each thread's part starts on a cache line. */
static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    return threads * sh_cpu_round64(sh_attn_scratch_elems(call->attr->attn.head_dim) * (int64_t)sizeof(float));
}

static sh_rc run(const struct sh_op_call *call)
{
    struct sh_attn a = sh_attn_of(call);
    int64_t one_thread = work_bytes(call, 1);
    SH_REQUIRE(call->work_bytes >= one_thread * omp_get_max_threads());

    int64_t blocks = sh_attn_blocks(&a, SH_ATTN_Q), heads = a.batch * a.heads;
    struct sh_gemm_failure failure = {0};
#pragma omp parallel
    {
        sh_gemm_serial();
        char *mine = (char *)call->work + one_thread * omp_get_thread_num();
        struct sh_attn_scratch w = sh_attn_scratch_cut((float *)(void *)mine, a.dim);
        /* The last blocks see the most keys, so they go first: no thread is then left alone with one at the end. */
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < blocks * heads; i++) {
            int64_t t = sh_attn_block_at(&a, blocks - 1 - i / heads, SH_ATTN_Q), head = i % heads;
            sh_gemm_note(&failure, attend_block(&a, &w, head / a.heads, head % a.heads, t));
        }
    }
    return sh_gemm_failed(&failure);
}

static bool takes(enum sh_dtype dtype)
{
    (void)dtype;
    return true;
}

const struct sh_attn_engine sh_attn_f32 = {.takes = takes, .work_bytes = work_bytes, .run = run};
