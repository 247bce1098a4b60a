/* Causal attention within documents and a window W, grouped queries: with q, k, v of one head,
 *     score[t,s] = scale q[t].k[s] for max(docs[t], t - W + 1) <= s <= t, p = softmax over s, o[t] = sum over s of p[t,s] v[s],
 *     lse[t] = log of the sum over s of e^score[t,s].
 * A packed row of qkv is H query heads, K key heads, K value heads, each D long; query head h uses key-value head
 * h / (H/K). docs[t] is the first position of the document that t is in; without docs it is 0. Without
 * a window (W = 0) only documents limit what is seen. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

struct shape {
    int64_t B, T, H, K, D, row; /* row: elements of a packed row */
};

static struct shape shape_of(const struct sh_op_call *call, const struct sh_operand *qkv)
{
    int64_t H = call->attr->attn.heads, K = call->attr->attn.kv_heads, D = call->attr->attn.head_dim;
    return (struct shape){qkv->dim[0], qkv->dim[1], H, K, D, (H + 2 * K) * D};
}

/* Where the query, key and value of head h at position t of sequence b are in qkv. */
static int64_t query_at(struct shape z, int64_t b, int64_t t, int64_t h)
{
    return (b * z.T + t) * z.row + h * z.D;
}

static int64_t key_at(struct shape z, int64_t b, int64_t t, int64_t h)
{
    return (b * z.T + t) * z.row + (z.H + h / (z.H / z.K)) * z.D;
}

static int64_t value_at(struct shape z, int64_t b, int64_t t, int64_t h)
{
    return key_at(z, b, t, h) + z.K * z.D;
}

/* Without documents and a window every query sees all keys from position 0. */
static int64_t first_key(const struct sh_op_call *call, const struct sh_operand *docs, struct shape z, int64_t b,
                         int64_t t)
{
    int64_t first = docs->data ? (int64_t)sh_ref_get(docs, b * z.T + t) : 0;
    int64_t near = call->attr->attn.window ? t - call->attr->attn.window + 1 : 0;

    return near > first ? near : first;
}

/* In double, in ascending order. */
static double dot(const struct sh_operand *x, int64_t x_at, const struct sh_operand *y, int64_t y_at, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += sh_ref_get(x, x_at + i) * sh_ref_get(y, y_at + i);
    return sum;
}

/* One query: scores in score[first..t], o and lse stored. */
static void attend(const struct sh_op_call *call, struct shape z, int64_t b, int64_t h, int64_t t, double *score)
{
    const struct sh_operand *qkv = &call->in[0];
    int64_t first = first_key(call, &call->in[1], z, b, t);
    double max = -INFINITY, sum = 0;

    for (int64_t s = first; s <= t; s++) {
        score[s] = (double)call->attr->attn.scale * dot(qkv, query_at(z, b, t, h), qkv, key_at(z, b, s, h), z.D);
        max = score[s] > max || isnan(score[s]) ? score[s] : max;
    }
    /* Two passes over the row once the maximum is known, so no exponential can overflow. */
    for (int64_t s = first; s <= t; s++)
        sum += exp(score[s] - max);
    for (int64_t d = 0; d < z.D; d++) {
        double o = 0;
        for (int64_t s = first; s <= t; s++)
            o += exp(score[s] - max) / sum * sh_ref_get(qkv, value_at(z, b, s, h) + d);
        sh_ref_set(&call->out[0], ((b * z.T + t) * z.H + h) * z.D + d, o);
    }
    sh_ref_set(&call->out[1], (b * z.H + h) * z.T + t, max + log(sum));
}

/* Scratch: the scores of one query. */
int64_t sh_ref_attention_work_bytes(const struct sh_op_call *call)
{
    return call->in[0].dim[1] * (int64_t)sizeof(double);
}

/* Heads and positions one after another: the reference has no threads. */
sh_rc sh_ref_attention(const struct sh_op_call *call)
{
    struct shape z = shape_of(call, &call->in[0]);

    for (int64_t b = 0; b < z.B; b++)
        for (int64_t h = 0; h < z.H; h++)
            for (int64_t t = 0; t < z.T; t++)
                attend(call, z, b, h, t, call->work);
    return SH_OK;
}

/* Add one query's contribution to dqkv [T,row] of its sequence. With dp[s] = do.v[s] and p from the saved lse:
 *     dscore[s] = p[s] (dp[s] - sum over r of p[r] dp[r]), and that sum is do.o. */
static void attend_bwd(const struct sh_op_call *call, struct shape z, int64_t b, int64_t h, int64_t t, double *dqkv)
{
    const struct sh_operand *dout = &call->in[0], *qkv = &call->in[1], *o = &call->in[2];
    int64_t out_at = ((b * z.T + t) * z.H + h) * z.D, q = query_at(z, b, t, h), base = b * z.T * z.row;
    double lse = sh_ref_get(&call->in[3], (b * z.H + h) * z.T + t), scale = (double)call->attr->attn.scale;
    double delta = dot(dout, out_at, o, out_at, z.D);

    for (int64_t s = first_key(call, &call->in[4], z, b, t); s <= t; s++) {
        int64_t k = key_at(z, b, s, h), v = value_at(z, b, s, h);
        double p = exp(scale * dot(qkv, q, qkv, k, z.D) - lse);
        double dscore = p * (dot(dout, out_at, qkv, v, z.D) - delta) * scale;
        for (int64_t d = 0; d < z.D; d++) {
            dqkv[q - base + d] += dscore * sh_ref_get(qkv, k + d);
            dqkv[k - base + d] += dscore * sh_ref_get(qkv, q + d);
            dqkv[v - base + d] += p * sh_ref_get(dout, out_at + d);
        }
    }
}

/* Scratch: the gradients of one sequence, in double. */
int64_t sh_ref_attention_bwd_work_bytes(const struct sh_op_call *call)
{
    struct shape z = shape_of(call, &call->in[1]);
    return z.T * z.row * (int64_t)sizeof(double);
}

sh_rc sh_ref_attention_bwd(const struct sh_op_call *call)
{
    struct shape z = shape_of(call, &call->in[1]);
    double *dqkv = call->work; /* one sequence, so that sums over queries round once */

    for (int64_t b = 0; b < z.B; b++) {
        memset(dqkv, 0, (size_t)(z.T * z.row) * sizeof *dqkv);
        /* Queries in ascending order, so sums over queries have a fixed order too. */
        for (int64_t h = 0; h < z.H; h++)
            for (int64_t t = 0; t < z.T; t++)
                attend_bwd(call, z, b, h, t, dqkv);
        for (int64_t i = 0; i < z.T * z.row; i++)
            sh_ref_set(&call->out[0], b * z.T * z.row + i, dqkv[i]);
    }
    return SH_OK;
}
