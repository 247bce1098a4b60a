/* The cache of keys and values, which lets a sequence continue without recomputing its beginning. A row of the cache
 * [B,S,2KD] holds the K keys and the K values of a position, as they are at the end of a packed row of qkv. */
#include "kernels/ref/ref.h"

#include <math.h>

/* H heads of D before the keys; S positions. */
struct shape {
    int64_t B, T, S, H, K, D, row, kv_row;
};

static struct shape shape_of(const struct sh_op_call *call, const struct sh_operand *kv)
{
    const struct sh_operand *qkv = &call->in[0];
    int64_t H = call->attr->attn.heads, K = call->attr->attn.kv_heads, D = call->attr->attn.head_dim;

    return (struct shape){qkv->dim[0], qkv->dim[1], kv->dim[1], H, K, D, (H + 2 * K) * D, 2 * K * D};
}

/* Only the first `count` rows of a sequence are tokens; the rows after them must not touch the cache. */
sh_rc sh_ref_kv_put(const struct sh_op_call *call)
{
    const struct sh_operand *qkv = &call->in[0], *at = &call->in[1], *count = &call->in[2], *kv = &call->out[0];
    struct shape z = shape_of(call, kv);

    for (int64_t b = 0; b < z.B; b++)
        for (int64_t t = 0; t < (int64_t)sh_ref_get(count, b); t++) {
            int64_t from = (b * z.T + t) * z.row + z.H * z.D;
            int64_t to = (b * z.S + (int64_t)sh_ref_get(at, b * z.T + t)) * z.kv_row;
            for (int64_t i = 0; i < z.kv_row; i++)
                sh_ref_set(kv, to + i, sh_ref_get(qkv, from + i));
        }
    return SH_OK;
}

/* scale q.k[s], with a soft cap c c tanh(scale q.k[s] / c) */
static double score_of(const struct sh_op_call *call, struct shape z, int64_t q, int64_t k)
{
    double sum = 0, cap = (double)call->attr->attn.cap;

    for (int64_t d = 0; d < z.D; d++)
        sum += sh_ref_get(&call->in[0], q + d) * sh_ref_get(&call->in[1], k + d);
    sum *= (double)call->attr->attn.scale;
    return cap == 0 ? sum : cap * tanh(sum / cap);
}

/* One query over positions [first, n) of its sequence; scores in score[n]. */
static void attend(const struct sh_op_call *call, struct shape z, int64_t b, int64_t t, int64_t h, int64_t first,
                   int64_t n, double *score)
{
    int64_t q = (b * z.T + t) * z.row + h * z.D, k = b * z.S * z.kv_row + h / (z.H / z.K) * z.D, v = k + z.K * z.D;
    double max = -INFINITY, sum = 0;

    for (int64_t s = first; s < n; s++) {
        score[s] = score_of(call, z, q, k + s * z.kv_row);
        max = score[s] > max || isnan(score[s]) ? score[s] : max;
    }
    for (int64_t s = first; s < n; s++)
        sum += exp(score[s] - max);
    for (int64_t d = 0; d < z.D; d++) {
        double o = 0;
        for (int64_t s = first; s < n; s++)
            o += exp(score[s] - max) / sum * sh_ref_get(&call->in[1], v + s * z.kv_row + d);
        sh_ref_set(&call->out[0], ((b * z.T + t) * z.H + h) * z.D + d, o);
    }
    if (call->out[1].data)
        sh_ref_set(&call->out[1], (b * z.H + h) * z.T + t, max + log(sum));
}

/* Scratch: the scores of one query. */
int64_t sh_ref_attention_cache_work_bytes(const struct sh_op_call *call)
{
    return call->in[1].dim[1] * (int64_t)sizeof(double);
}

/* Over no positions the sum is empty: 0, as required for a token that is not valid. */
sh_rc sh_ref_attention_cache(const struct sh_op_call *call)
{
    const struct sh_operand *at = &call->in[2], *count = &call->in[3];
    struct shape z = shape_of(call, &call->in[1]);
    int64_t window = call->attr->attn.window;

    for (int64_t b = 0; b < z.B; b++)
        for (int64_t t = 0; t < z.T; t++) {
            bool counts = t < (int64_t)sh_ref_get(count, b);
            int64_t n = counts ? (int64_t)sh_ref_get(at, b * z.T + t) + 1 : 0;
            int64_t first = window && n > window ? n - window : 0;
            for (int64_t h = 0; h < z.H; h++)
                attend(call, z, b, t, h, first, n, call->work);
        }
    return SH_OK;
}

/* Row count - 1 of each sequence; if no row is valid, the first, which is as good as any. */
sh_rc sh_ref_pick(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *count = &call->in[1], *y = &call->out[0];
    int64_t B = x->dim[0], T = x->dim[1], C = x->dim[2];

    for (int64_t b = 0; b < B; b++) {
        int64_t n = (int64_t)sh_ref_get(count, b);
        for (int64_t c = 0; c < C; c++)
            sh_ref_set(y, b * C + c, sh_ref_get(x, (b * T + (n ? n - 1 : 0)) * C + c));
    }
    return SH_OK;
}
