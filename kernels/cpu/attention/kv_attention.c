/* Attention over a cache of keys and values. A task is one key-value head of a sequence and up to SH_ATTN_Q rows of
 * queries that use it: the queries of one token in all query heads of the group, then those of the next token. So a
 * step of one token reads each key once for all heads that share it. Keys are walked in blocks with a running row
 * maximum and sum, as in attention.c. Floor: the bytes of keys and values up to the positions, once; with many tokens
 * 4*D operations per pair (query, key seen). */
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/base/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/row.h"

#include <math.h>
#include <omp.h>
#include <string.h>

struct cached {
    struct sh_attn a; /* shapes; its qkv */
    const struct sh_op_call *call;
    const void *kv;            /* [B,S,2KD] */
    const int32_t *at, *count; /* [B,T], [B] */
    int64_t positions, kv_ld;  /* S, 2KD */
    int64_t group;             /* query heads per key-value head */
};

/* One block of rows: row i is query head `kv_head * group + (first + i) % group` of token (first + i) / group. */
struct rows {
    int64_t b, kv_head, first, n;
};

static int64_t token_of(const struct cached *c, const struct rows *r, int64_t i)
{
    return r->b * c->a.seq + (r->first + i) / c->group;
}

static int64_t head_of(const struct cached *c, const struct rows *r, int64_t i)
{
    return r->kv_head * c->group + (r->first + i) % c->group;
}

/* Row i sees keys [first_of(), keys_of()). */
static int64_t keys_of(const struct cached *c, const struct rows *r, int64_t i)
{
    return c->at[token_of(c, r, i)] + 1;
}

static int64_t first_of(const struct cached *c, const struct rows *r, int64_t i)
{
    int64_t window = c->call->attr->attn.window, keys = keys_of(c, r, i);

    return window && keys > window ? keys - window : 0;
}

/* Read the queries of the block into contiguous f32. */
static void read_queries(const struct cached *c, const struct rows *r, float *q)
{
    for (int64_t i = 0; i < r->n; i++)
        sh_cpu_block_load(
            (struct sh_cpu_block){1, c->a.dim}, q + i * c->a.dim, c->a.dim,
            sh_cpu_at(c->a.q, c->a.dtype, token_of(c, r, i) * c->a.q_ld + sh_attn_q_col(&c->a, head_of(c, r, i))),
            c->a.q_ld, c->a.dtype);
}

static int64_t clamp(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

/* The keys of a tile that row i sees; the tile starts at key k0 and has nk keys. */
static struct sh_attn_span span_of(const struct cached *c, const struct rows *r, int64_t i, int64_t k0, int64_t nk)
{
    return (struct sh_attn_span){.lo = clamp(first_of(c, r, i) - k0, nk), .hi = clamp(keys_of(c, r, i) - k0, nk)};
}

/* The block's rows against keys [k0, k0+nk). */
static sh_rc take_tile(const struct cached *c, const struct rows *r, struct sh_attn_scratch *w, int64_t k0, int64_t nk)
{
    const struct sh_attn *a = &c->a;
    int64_t row = r->b * c->positions + k0;
    struct sh_attn_view q = {.data = w->q, .ld = a->dim};
    struct sh_attn_view k = sh_attn_read(a, c->kv, c->kv_ld, row, nk, r->kv_head * a->dim, w->k);
    struct sh_attn_view v = sh_attn_read(a, c->kv, c->kv_ld, row, nk, (a->kv_heads + r->kv_head) * a->dim, w->v);
    struct sh_attn_tile tile = {.nq = r->n, .nk = nk, .s = w->s};

    SH_TRY(sh_attn_scores(a, tile, q, k));
    sh_attn_cap(a, w->s, SH_ATTN_K, r->n, nk);
    for (int64_t i = 0; i < r->n; i++)
        sh_attn_take_row(&c->a, w, i, span_of(c, r, i, k0, nk), nk);
    return sh_attn_to_rows(a, tile, v, w->o);
}

/* Where the output of row i goes. */
static void *out_of(const struct cached *c, const struct rows *r, int64_t i)
{
    return sh_cpu_at(c->call->out[0].data, c->a.dtype, (token_of(c, r, i) * c->a.heads + head_of(c, r, i)) * c->a.dim);
}

/* Where the logarithm of row i's sum goes; NULL: nowhere. */
static float *lse_of(const struct cached *c, const struct rows *r, int64_t i)
{
    int64_t t = (r->first + i) / c->group;
    float *lse = c->call->out[1].data;

    return lse ? lse + (r->b * c->a.heads + head_of(c, r, i)) * c->a.seq + t : NULL;
}

/* Divide rows by their sums and round once. */
static void put_rows(const struct cached *c, const struct rows *r, const struct sh_attn_scratch *w)
{
    for (int64_t i = 0; i < r->n; i++) {
        sh_cpu_row_scale(w->o + i * c->a.dim, c->a.dim, 1.0f / w->sum[i]);
        sh_cpu_block_store((struct sh_cpu_block){1, c->a.dim}, out_of(c, r, i), c->a.dim, c->a.dtype,
                           w->o + i * c->a.dim, c->a.dim);
        if (lse_of(c, r, i))
            *lse_of(c, r, i) = w->max[i] + logf(w->sum[i]);
    }
}

/* Keys before the first and after the last that any row sees are skipped. */
static sh_rc attend_rows(const struct cached *c, const struct rows *r, struct sh_attn_scratch *w)
{
    int64_t begin = first_of(c, r, 0), end = 0;

    for (int64_t i = 0; i < r->n; i++) {
        begin = first_of(c, r, i) < begin ? first_of(c, r, i) : begin;
        end = keys_of(c, r, i) > end ? keys_of(c, r, i) : end;
        w->max[i] = -INFINITY;
        w->sum[i] = 0;
    }
    memset(w->o, 0, (size_t)(r->n * c->a.dim) * sizeof(float));
    read_queries(c, r, w->q);
    for (int64_t k0 = begin; k0 < end; k0 += SH_ATTN_K)
        SH_TRY(take_tile(c, r, w, k0, end - k0 < SH_ATTN_K ? end - k0 : SH_ATTN_K));
    put_rows(c, r, w);
    return SH_OK;
}

/* Rows [first, first + n) of a block. The block starts with the rows of valid tokens; the others follow. */
static sh_rc run_block(const struct cached *c, struct rows r, struct sh_attn_scratch *w)
{
    int64_t counted = c->count[r.b] * c->group - r.first, all = r.n;

    r.n = counted < 0 ? 0 : counted < all ? counted : all;
    if (r.n)
        SH_TRY(attend_rows(c, &r, w));
    for (int64_t i = r.n; i < all; i++) {
        memset(out_of(c, &r, i), 0, (size_t)(c->a.dim * sh_dtype_bytes(c->a.dtype)));
        if (lse_of(c, &r, i))
            *lse_of(c, &r, i) = -INFINITY;
    }
    return SH_OK;
}

static struct cached cached_of(const struct sh_op_call *call)
{
    const struct sh_operand *kv = &call->in[1];
    struct sh_attn a = sh_attn_of(call);

    return (struct cached){.a = a,
                           .call = call,
                           .kv = kv->data,
                           .at = call->in[2].data,
                           .count = call->in[3].data,
                           .positions = kv->dim[1],
                           .kv_ld = kv->dim[2],
                           .group = a.heads / a.kv_heads};
}

int64_t sh_cpu_attention_cache_work_bytes(const struct sh_op_call *call, int threads)
{
    return threads * sh_cpu_round64(sh_attn_scratch_elems(call->attr->attn.head_dim) * (int64_t)sizeof(float));
}

sh_rc sh_cpu_attention_cache(const struct sh_op_call *call)
{
    struct cached c = cached_of(call);
    int64_t one_thread = sh_cpu_attention_cache_work_bytes(call, 1);
    int64_t all = c.a.seq * c.group, blocks = (all + SH_ATTN_Q - 1) / SH_ATTN_Q, heads = c.a.batch * c.a.kv_heads;
    struct sh_gemm_failure failure = {0};

    SH_REQUIRE(call->work_bytes >= one_thread * omp_get_max_threads());
#pragma omp parallel
    {
        sh_gemm_serial();
        char *mine = (char *)call->work + one_thread * omp_get_thread_num();
        struct sh_attn_scratch w = sh_attn_scratch_cut((float *)(void *)mine, c.a.dim);
        /* The last blocks see the most keys, so they go first. */
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < blocks * heads; i++) {
            int64_t first = (blocks - 1 - i / heads) * SH_ATTN_Q, head = i % heads;
            struct rows r = {.b = head / c.a.kv_heads,
                             .kv_head = head % c.a.kv_heads,
                             .first = first,
                             .n = all - first < SH_ATTN_Q ? all - first : SH_ATTN_Q};
            sh_gemm_note(&failure, run_block(&c, r, &w));
        }
    }
    return sh_gemm_failed(&failure);
}
