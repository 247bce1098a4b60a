#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/base/block.h"
#include "kernels/cpu/base/row.h"

#include <math.h>
#include <string.h>

/* The operands of a kind, by their places; -1: it has none. With kv == q both are one packed tensor. */
struct places {
    int q, kv, docs, dout, o, lse; /* inputs; of a forward o and lse are outputs */
};

static struct places places_of(enum sh_op_kind kind)
{
    switch (kind) {
    case SH_OP_ATTENTION_BWD: return (struct places){.q = 1, .kv = 1, .docs = 4, .dout = 0, .o = 2, .lse = 3};
    case SH_OP_ATTENTION_ROWS: return (struct places){.q = 0, .kv = 1, .docs = 2, .dout = -1};
    case SH_OP_ATTENTION_ROWS_BWD: return (struct places){.q = 1, .kv = 2, .docs = 5, .dout = 0, .o = 3, .lse = 4};
    case SH_OP_ATTENTION_CACHE: return (struct places){.q = 0, .kv = 0, .docs = -1, .dout = -1};
    default: return (struct places){.q = 0, .kv = 0, .docs = 1, .dout = -1};
    }
}

int64_t sh_attn_keys(const struct sh_op_call *call)
{
    return call->in[places_of(call->kind).kv].dim[1];
}

struct sh_attn sh_attn_of(const struct sh_op_call *call)
{
    const struct sh_op_attr *attr = call->attr;
    struct places at = places_of(call->kind);
    const struct sh_operand *q = &call->in[at.q], *kv = &call->in[at.kv];
    bool packed = at.q == at.kv, backward = at.dout >= 0;

    return (struct sh_attn){
        .batch = kv->dim[0],
        .seq = kv->dim[1],
        .heads = attr->attn.heads,
        .kv_heads = attr->attn.kv_heads,
        .dim = attr->attn.head_dim,
        .window = attr->attn.window,
        .runs = packed ? 1 : attr->attn.runs,
        .rows = q->dim[1],
        .first = {packed ? 0 : attr->attn.first[0], packed ? 0 : attr->attn.first[1]},
        .q_ld = q->dim[2],
        .kv_ld = kv->dim[2],
        .kv_head = packed ? attr->attn.heads : 0,
        .dtype = q->dtype,
        .scale = attr->attn.scale,
        .cap = attr->attn.cap,
        .q = q->data,
        .kv = kv->data,
        .o = backward ? call->in[at.o].data : call->out[0].data,
        .lse = backward ? call->in[at.lse].data : call->out[1].data,
        .dout = backward ? call->in[at.dout].data : NULL,
        .dq = call->out[0].data,
        .dkv = call->out[packed ? 0 : 1].data,
        .docs = at.docs < 0 ? NULL : call->in[at.docs].data,
        .f32 = sh_gemm_engine_for(SH_F32),
    };
}

/* f32 data is viewed in place; 16 bits are converted into scratch. */
struct sh_attn_view sh_attn_read(const struct sh_attn *a, const void *tensor, int64_t ld, int64_t row, int64_t rows,
                                 int64_t col, float *scratch)
{
    const void *at = sh_cpu_at(tensor, a->dtype, row * ld + col);
    if (a->dtype == SH_F32)
        return (struct sh_attn_view){.data = at, .ld = ld};
    sh_cpu_block_load((struct sh_cpu_block){.rows = rows, .cols = a->dim}, scratch, a->dim, at, ld, a->dtype);
    return (struct sh_attn_view){.data = scratch, .ld = a->dim};
}

/* It never decreases from one query to the next, with documents and with windows. */
int64_t sh_attn_first_key(const struct sh_attn *a, int64_t b, int64_t t)
{
    int64_t first = a->docs ? a->docs[sh_attn_row(a, b, t)] : 0, near = a->window ? t - a->window + 1 : 0;

    return near > first ? near : first;
}

/* The smallest first key of several queries: documents may start within the block. */
int64_t sh_attn_first_key_of(const struct sh_attn *a, int64_t b, int64_t t, int64_t rows)
{
    int64_t first = t;
    for (int64_t i = t; i < t + rows; i++) {
        int64_t key = sh_attn_first_key(a, b, i);
        first = key < first ? key : first;
    }
    return first;
}

static int64_t clamp(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

struct sh_attn_span sh_attn_span_of(const struct sh_attn *a, int64_t b, int64_t t, int64_t k0, int64_t nk)
{
    return (struct sh_attn_span){.lo = clamp(sh_attn_first_key(a, b, t) - k0, nk), .hi = clamp(t + 1 - k0, nk)};
}

/* s [nq,nk] = x y', one small product. */
sh_rc sh_attn_scores(const struct sh_attn *a, struct sh_attn_tile t, struct sh_attn_view x, struct sh_attn_view y)
{
    /* clang-format off */
    struct sh_gemm_tile g = {
        .m = t.nq, .n = t.nk, .k = a->dim,
        .a = x.data, .lda = x.ld,
        .b = y.data, .ldb = y.ld, .trans_b = true,
        .c = t.s, .ldc = SH_ATTN_K,
    };
    /* clang-format on */
    return a->f32->tile(&g, NULL);
}

/* sums [nq,D] += s y. */
sh_rc sh_attn_to_rows(const struct sh_attn *a, struct sh_attn_tile t, struct sh_attn_view y, float *sums)
{
    /* clang-format off */
    struct sh_gemm_tile g = {
        .m = t.nq, .n = a->dim, .k = t.nk,
        .a = t.s, .lda = SH_ATTN_K,
        .b = y.data, .ldb = y.ld,
        .c = sums, .ldc = a->dim, .add = true,
    };
    /* clang-format on */
    return a->f32->tile(&g, NULL);
}

/* sums [nk,D] += s' x. */
sh_rc sh_attn_to_cols(const struct sh_attn *a, struct sh_attn_tile t, struct sh_attn_view x, float *sums)
{
    /* clang-format off */
    struct sh_gemm_tile g = {
        .m = t.nk, .n = a->dim, .k = t.nq,
        .a = t.s, .lda = SH_ATTN_K, .trans_a = true,
        .b = x.data, .ldb = x.ld,
        .c = sums, .ldc = a->dim, .add = true,
    };
    /* clang-format on */
    return a->f32->tile(&g, NULL);
}

/* Exactly 0 outside the visible range. shift is the maximum, so no exponential is above 1. */
float sh_attn_exp_row(float *s, int64_t n, struct sh_attn_span in, float scale, float shift)
{
    if (in.lo >= in.hi)
        in.lo = in.hi = n;
    memset(s, 0, (size_t)in.lo * sizeof *s);
    memset(s + in.hi, 0, (size_t)(n - in.hi) * sizeof *s);
    return sh_cpu_row_exp(s + in.lo, in.hi - in.lo, scale, shift);
}

/* Turn one row of a tile of scores into exponentials, and rescale what the row has accumulated so far to the new
 * maximum. */
void sh_attn_take_row(const struct sh_attn *a, struct sh_attn_scratch *w, int64_t i, struct sh_attn_span in, int64_t nk)
{
    float *s = w->s + i * SH_ATTN_K, old = w->max[i], now = old;

    if (in.lo < in.hi) {
        float here = sh_cpu_row_max(s + in.lo, in.hi - in.lo) * a->scale;
        now = here > old ? here : old;
    }
    float sum = sh_attn_exp_row(s, nk, in, a->scale, now);
    if (now != old) {
        float shrink = expf(old - now);
        w->sum[i] *= shrink;
        sh_cpu_row_scale(w->o + i * a->dim, a->dim, shrink);
        w->max[i] = now;
    }
    w->sum[i] += sum;
}
