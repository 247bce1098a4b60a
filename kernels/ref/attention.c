/* Causal attention within documents and a window W, grouped queries: with q, k, v of one head,
 *     score[t,s] = scale q[t].k[s] for max(docs[t], t - W + 1) <= s <= t, p = softmax over s, o[t] = sum over s of p[t,s] v[s],
 *     lse[t] = log of the sum over s of e^score[t,s].
 * With a soft cap c a score is c tanh(score / c).
 * A packed row of qkv is H query heads, K key heads, K value heads, each D long; query head h uses key-value head
 * h / (H/K). docs[t] is the first position of the document that t is in; without docs it is 0. Without
 * a window (W = 0) only documents limit what is seen. */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

/* Queries are known by their sequence and position. They are in a packed tensor with keys and values, or apart from these
 * in runs (kernels/op.h), where sequence b of run i has its rows after those of all sequences of earlier runs. */
struct shape {
    int64_t B, T, H, K, D, runs, rows, first[2];
    int64_t q_row, kv_row, kv_at; /* elements of a row of queries, of keys; where the first key is in its row */
    const struct sh_operand *q, *kv, *docs;
};

static struct shape shape_of(const struct sh_op_call *call)
{
    const struct sh_op_attr *a = call->attr;
    bool backward = call->kind == SH_OP_ATTENTION_BWD || call->kind == SH_OP_ATTENTION_ROWS_BWD;
    bool apart = call->kind == SH_OP_ATTENTION_ROWS || call->kind == SH_OP_ATTENTION_ROWS_BWD;
    const struct sh_operand *q = &call->in[backward], *kv = q + apart, *docs = backward ? kv + 3 : kv + 1;
    struct shape z = {.B = kv->dim[0],
                      .T = kv->dim[1],
                      .H = a->attn.heads,
                      .K = a->attn.kv_heads,
                      .D = a->attn.head_dim,
                      .runs = 1,
                      .rows = q->dim[1],
                      .q_row = q->dim[2],
                      .kv_row = kv->dim[2]};

    z.q = q;
    z.kv = kv;
    z.docs = docs;
    z.kv_at = apart ? 0 : z.H * z.D;
    for (int i = 0; apart && i < a->attn.runs; i++) {
        z.runs = a->attn.runs;
        z.first[i] = a->attn.first[i];
    }
    return z;
}

/* Row i of a run, and where the query, key and value of head h are. */
struct query {
    int64_t b, t, h, row, lse;
};

static struct query query_of(const struct shape *z, int64_t run, int64_t b, int64_t h, int64_t i)
{
    int64_t s = run * z->B + b;

    return (struct query){b, z->first[run] + i, h, s * z->rows + i, (s * z->H + h) * z->rows + i};
}

static int64_t query_at(const struct shape *z, const struct query *q)
{
    return q->row * z->q_row + q->h * z->D;
}

static int64_t key_at(const struct shape *z, int64_t b, int64_t s, int64_t h)
{
    return (b * z->T + s) * z->kv_row + z->kv_at + h / (z->H / z->K) * z->D;
}

static int64_t value_at(const struct shape *z, int64_t b, int64_t s, int64_t h)
{
    return key_at(z, b, s, h) + z->K * z->D;
}

/* Without documents and a window every query sees all keys from position 0. */
static int64_t first_key(const struct sh_op_call *call, const struct shape *z, const struct query *q)
{
    int64_t first = z->docs->data ? (int64_t)sh_ref_get(z->docs, q->row) : 0;
    int64_t near = call->attr->attn.window ? q->t - call->attr->attn.window + 1 : 0;

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

/* A score from a product, with its derivative by the product. */
static double score_of(const struct sh_op_call *call, double product, double *slope)
{
    double scale = (double)call->attr->attn.scale, cap = (double)call->attr->attn.cap;
    double turned = cap == 0 ? 0 : tanh(scale * product / cap);

    *slope = scale * (1 - turned * turned);
    return cap == 0 ? scale * product : cap * turned;
}

/* One query: scores in score[first..t], o and lse stored. */
static void attend(const struct sh_op_call *call, const struct shape *z, struct query q, double *score)
{
    int64_t first = first_key(call, z, &q);
    double max = -INFINITY, sum = 0, slope;

    for (int64_t s = first; s <= q.t; s++) {
        score[s] = score_of(call, dot(z->q, query_at(z, &q), z->kv, key_at(z, q.b, s, q.h), z->D), &slope);
        max = score[s] > max || isnan(score[s]) ? score[s] : max;
    }
    /* Two passes over the row once the maximum is known, so no exponential can overflow. */
    for (int64_t s = first; s <= q.t; s++)
        sum += exp(score[s] - max);
    for (int64_t d = 0; d < z->D; d++) {
        double o = 0;
        for (int64_t s = first; s <= q.t; s++)
            o += exp(score[s] - max) / sum * sh_ref_get(z->kv, value_at(z, q.b, s, q.h) + d);
        sh_ref_set(&call->out[0], (q.row * z->H + q.h) * z->D + d, o);
    }
    sh_ref_set(&call->out[1], q.lse, max + log(sum));
}

/* Scratch: the scores of one query. */
int64_t sh_ref_attention_work_bytes(const struct sh_op_call *call)
{
    return shape_of(call).T * (int64_t)sizeof(double);
}

/* Heads and positions one after another: the reference has no threads. */
sh_rc sh_ref_attention(const struct sh_op_call *call)
{
    struct shape z = shape_of(call);

    for (int64_t s = 0; s < z.runs * z.B; s++)
        for (int64_t h = 0; h < z.H; h++)
            for (int64_t i = 0; i < z.rows; i++)
                attend(call, &z, query_of(&z, s / z.B, s % z.B, h, i), call->work);
    return SH_OK;
}

sh_rc sh_ref_attention_rows(const struct sh_op_call *call)
{
    return sh_ref_attention(call);
}

/* Store the gradient of one query, in dq [D] first, and add its contribution to dkv [T,2KD] of its sequence. With
 * dp[s] = do.v[s] and p from the saved lse:
 *     dscore[s] = p[s] (dp[s] - sum over r of p[r] dp[r]), and that sum is do.o. */
static void attend_bwd(const struct sh_op_call *call, const struct shape *z, struct query q, double *dq, double *dkv)
{
    const struct sh_operand *dout = &call->in[0], *o = z->kv + 1;
    int64_t out_at = (q.row * z->H + q.h) * z->D, at = query_at(z, &q);
    double lse = sh_ref_get(z->kv + 2, q.lse), slope;
    double delta = dot(dout, out_at, o, out_at, z->D);

    memset(dq, 0, (size_t)z->D * sizeof *dq);
    for (int64_t s = first_key(call, z, &q); s <= q.t; s++) {
        int64_t k = key_at(z, q.b, s, q.h), v = value_at(z, q.b, s, q.h);
        double p = exp(score_of(call, dot(z->q, at, z->kv, k, z->D), &slope) - lse);
        double dscore = p * (dot(dout, out_at, z->kv, v, z->D) - delta) * slope;
        double *dk = dkv + (s * 2 * z->K + q.h / (z->H / z->K)) * z->D, *dv = dk + z->K * z->D;
        for (int64_t d = 0; d < z->D; d++) {
            dq[d] += dscore * sh_ref_get(z->kv, k + d);
            dk[d] += dscore * sh_ref_get(z->q, at + d);
            dv[d] += p * sh_ref_get(dout, out_at + d);
        }
    }
    for (int64_t d = 0; d < z->D; d++)
        sh_ref_set(&call->out[0], at + d, dq[d]);
}

/* Scratch: the gradients of one query, and of one sequence's keys and values, in double. */
int64_t sh_ref_attention_bwd_work_bytes(const struct sh_op_call *call)
{
    struct shape z = shape_of(call);
    return (z.T * 2 * z.K + 1) * z.D * (int64_t)sizeof(double);
}

sh_rc sh_ref_attention_bwd(const struct sh_op_call *call)
{
    struct shape z = shape_of(call);
    int64_t width = 2 * z.K * z.D;
    double *dq = call->work, *dkv = dq + z.D; /* one sequence, so that sums over queries round once */

    for (int64_t b = 0; b < z.B; b++) {
        memset(dkv, 0, (size_t)(z.T * width) * sizeof *dkv);
        /* Queries in ascending order, so sums over queries have a fixed order too. */
        for (int64_t h = 0; h < z.H; h++)
            for (int64_t i = 0; i < z.runs * z.rows; i++)
                attend_bwd(call, &z, query_of(&z, i / z.rows, b, h, i % z.rows), dq, dkv);
        for (int64_t i = 0; i < z.T * width; i++)
            sh_ref_set(&call->out[z.kv != z.q], (b * z.T + i / width) * z.kv_row + z.kv_at + i % width, dkv[i]);
    }
    return SH_OK;
}

sh_rc sh_ref_attention_rows_bwd(const struct sh_op_call *call)
{
    return sh_ref_attention_bwd(call);
}

/* The number of a sequence, position and head in o, and where it is in lse. */
static int64_t lse_at(const struct sh_operand *lse, int64_t row, int64_t h)
{
    int64_t H = lse->dim[1], T = lse->dim[2];

    return (row / T * H + h) * T + row % T;
}

/* total = log(e^lse + e^sink), without overflow. Over no keys o is 0 and stays so. */
sh_rc sh_ref_sink(const struct sh_op_call *call)
{
    const struct sh_operand *o = &call->in[0], *lse = &call->in[1], *sink = &call->in[2];
    int64_t H = call->attr->attn.heads, D = call->attr->attn.head_dim;

    for (int64_t i = 0; i < sh_ref_elems(lse); i++) {
        int64_t row = i / H, h = i % H, at = lse_at(lse, row, h);
        double score = sh_ref_get(lse, at), with = sh_ref_get(sink, h), most = fmax(score, with);
        double total = most + log(exp(score - most) + exp(with - most));

        sh_ref_set(&call->out[1], at, total);
        for (int64_t d = 0; d < D; d++)
            sh_ref_set(&call->out[0], i * D + d, sh_ref_get(o, i * D + d) * exp(score - total));
    }
    return SH_OK;
}

sh_rc sh_ref_sink_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *y = &call->in[1], *total = &call->in[2], *sink = &call->in[3];
    int64_t H = call->attr->attn.heads, D = call->attr->attn.head_dim, rows = sh_ref_elems(total) / H;

    for (int64_t h = 0; h < H; h++) {
        double sum = 0;
        for (int64_t row = 0; row < rows; row++)
            sum -= exp(sh_ref_get(sink, h) - sh_ref_get(total, lse_at(total, row, h))) *
                   dot(dy, (row * H + h) * D, y, (row * H + h) * D, D);
        sh_ref_sum(call, 0, h, sum);
    }
    return SH_OK;
}

/* Where the elements of a row are that latent attention moves. */
struct latent {
    int64_t H, P, R, V, D;
};

static struct latent latent_of(const struct sh_op_call *call)
{
    int64_t P = call->attr->latent.plain, R = call->attr->latent.turned;

    return (struct latent){call->attr->latent.heads, P, R, call->attr->latent.value, P + R};
}

/* Element d of head h of a row: of queries (part 0), keys (1) or values (2) of qkv. */
static int64_t qkv_at(const struct latent *l, int64_t row, int part, int64_t h, int64_t d)
{
    return ((row * 3 + part) * l->H + h) * l->D + d;
}

/* The turned elements come first in qkv, and last in q. */
static int64_t latent_query_at(const struct latent *l, int64_t row, int64_t h, int64_t d)
{
    return (row * l->H + h) * l->D + (d < l->R ? l->P + d : d - l->R);
}

static int64_t kv_at(const struct latent *l, int64_t row, int64_t h, int64_t d)
{
    return (row * l->H + h) * (l->P + l->V) + d;
}

sh_rc sh_ref_latent_heads(const struct sh_op_call *call)
{
    const struct sh_operand *q = &call->in[0], *kv = &call->in[1], *turned = &call->in[2], *qkv = &call->out[0];
    struct latent l = latent_of(call);

    for (int64_t i = 0; i < q->dim[0] * l.H * l.D; i++) {
        int64_t row = i / (l.H * l.D), h = i / l.D % l.H, d = i % l.D;
        double key = d < l.R ? sh_ref_get(turned, row * l.R + d) : sh_ref_get(kv, kv_at(&l, row, h, d - l.R));

        sh_ref_set(qkv, qkv_at(&l, row, 0, h, d), sh_ref_get(q, latent_query_at(&l, row, h, d)));
        sh_ref_set(qkv, qkv_at(&l, row, 1, h, d), key);
        sh_ref_set(qkv, qkv_at(&l, row, 2, h, d), d < l.V ? sh_ref_get(kv, kv_at(&l, row, h, l.P + d)) : 0);
    }
    return SH_OK;
}

/* What is absent is not written. */
sh_rc sh_ref_latent_heads_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dqkv = &call->in[0];
    struct latent l = latent_of(call);
    int64_t rows = dqkv->dim[0];

    for (int64_t i = 0; call->out[0].data && i < rows * l.H * l.D; i++) {
        int64_t row = i / (l.H * l.D), h = i / l.D % l.H, d = i % l.D;
        sh_ref_set(&call->out[0], latent_query_at(&l, row, h, d), sh_ref_get(dqkv, qkv_at(&l, row, 0, h, d)));
    }
    for (int64_t i = 0; call->out[1].data && i < rows * l.H * (l.P + l.V); i++) {
        int64_t row = i / (l.H * (l.P + l.V)), h = i / (l.P + l.V) % l.H, d = i % (l.P + l.V);
        int64_t from = d < l.P ? qkv_at(&l, row, 1, h, l.R + d) : qkv_at(&l, row, 2, h, d - l.P);
        sh_ref_set(&call->out[1], i, sh_ref_get(dqkv, from));
    }
    for (int64_t i = 0; call->out[2].data && i < rows * l.R; i++) {
        double sum = 0;
        for (int64_t h = 0; h < l.H; h++)
            sum += sh_ref_get(dqkv, qkv_at(&l, i / l.R, 1, h, i % l.R));
        sh_ref_set(&call->out[2], i, sum);
    }
    return SH_OK;
}

sh_rc sh_ref_latent_values(const struct sh_op_call *call)
{
    struct latent l = latent_of(call);

    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->in[0], i / l.V * l.D + i % l.V));
    return SH_OK;
}

sh_rc sh_ref_latent_values_bwd(const struct sh_op_call *call)
{
    struct latent l = latent_of(call);

    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, i % l.D < l.V ? sh_ref_get(&call->in[0], i / l.D * l.V + i % l.D) : 0);
    return SH_OK;
}

/* Where a head's value comes from in x, and where its key and value are in the result. */
struct value {
    int64_t from, key, to;
};

static struct value value_of(const struct sh_op_call *call, int64_t row, int64_t head)
{
    int64_t D = call->attr->values.head_dim, H = call->attr->values.heads, K = call->attr->values.kv_heads;
    int64_t in = H + call->attr->values.kv_in, key = (row * (H + 2 * K) + H + head) * D;

    return (struct value){(row * in + in - K + head) * D, key, key + K * D};
}

/* y = q, k and v / rms(v); v is k if x has no others. */
sh_rc sh_ref_value_norm(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    int64_t K = call->attr->values.kv_heads, D = call->attr->values.head_dim;
    int64_t in = x->dim[1], out = y->dim[1], kept = out - K * D;

    for (int64_t i = 0; i < x->dim[0] * kept; i++)
        sh_ref_set(y, i / kept * out + i % kept, sh_ref_get(x, i / kept * in + i % kept));
    for (int64_t i = 0; i < x->dim[0] * K; i++) {
        struct value v = value_of(call, i / K, i % K);
        double sum = 0, rstd;

        for (int64_t d = 0; d < D; d++)
            sum += sh_ref_get(x, v.from + d) * sh_ref_get(x, v.from + d);
        rstd = 1 / sqrt(sum / (double)D + (double)call->attr->values.eps);
        for (int64_t d = 0; d < D; d++)
            sh_ref_set(y, v.to + d, sh_ref_get(x, v.from + d) * rstd);
        sh_ref_set(&call->out[1], i, rstd);
    }
    return SH_OK;
}

/* With n = x rstd: dx = rstd (dv - n mean(dv n)), and dk too if the values are the keys. */
sh_rc sh_ref_value_norm_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1], *dx = &call->out[0];
    int64_t K = call->attr->values.kv_heads, D = call->attr->values.head_dim;
    int64_t in = x->dim[1], out = dy->dim[1], kept = in - K * D;
    bool both = call->attr->values.kv_in == K;

    for (int64_t i = 0; i < x->dim[0] * kept; i++)
        sh_ref_set(dx, i / kept * in + i % kept, sh_ref_get(dy, i / kept * out + i % kept));
    for (int64_t i = 0; i < x->dim[0] * K; i++) {
        struct value v = value_of(call, i / K, i % K);
        double rstd = sh_ref_get(&call->in[2], i), mean = 0;

        for (int64_t d = 0; d < D; d++)
            mean += sh_ref_get(dy, v.to + d) * sh_ref_get(x, v.from + d) * rstd / (double)D;
        for (int64_t d = 0; d < D; d++) {
            double dv = rstd * (sh_ref_get(dy, v.to + d) - sh_ref_get(x, v.from + d) * rstd * mean);

            sh_ref_set(dx, v.from + d, dv + (both ? sh_ref_get(dy, v.key + d) : 0));
        }
    }
    return SH_OK;
}
