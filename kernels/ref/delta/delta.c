/* The gated delta rule as it is defined, row by row, and the short convolution before it. */
#include "kernels/delta.h"
#include "kernels/ref/ref.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

/* ---- short convolution ---- */

/* sum_j w[c,j] x[t - (W - 1) + j, c] over rows of the same document, plus the bias, if there is one. x is input i. */
static double convolved(const struct sh_op_call *call, int i, int64_t b, int64_t t, int64_t c)
{
    const struct sh_operand *x = &call->in[i], *w = x + 1, *docs = x + 2, *bias = x + 3;
    int64_t T = x->dim[1], C = x->dim[2], W = w->dim[2], first = sh_delta_first(docs, b, t);
    double sum = bias->data ? sh_ref_get(bias, c) : 0;

    for (int64_t j = 0; j < W; j++) {
        int64_t from = t - (W - 1) + j;

        if (from >= first)
            sum += sh_ref_get(w, c * W + j) * sh_ref_get(x, (b * T + from) * C + c);
    }
    return sum;
}

sh_rc sh_ref_short_conv(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0];
    int64_t T = x->dim[1], C = x->dim[2];

    for (int64_t i = 0; i < sh_ref_elems(x); i++) {
        double sum = convolved(call, 0, i / C / T, i / C % T, i % C);

        sh_ref_set(&call->out[0], i, sum * sigmoid(sum));
    }
    return SH_OK;
}

/* The derivative of the loss by the sum in row t. */
static double d_convolved(const struct sh_op_call *call, int64_t b, int64_t t, int64_t c)
{
    const struct sh_operand *x = &call->in[1];
    double sum = convolved(call, 1, b, t, c), s = sigmoid(sum);

    return sh_ref_get(&call->in[0], (b * x->dim[1] + t) * x->dim[2] + c) * s * (1 + sum * (1 - s));
}

sh_rc sh_ref_short_conv_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[1], *w = &call->in[2], *docs = &call->in[3];
    int64_t T = x->dim[1], C = x->dim[2], W = w->dim[2];

    for (int64_t i = 0; i < sh_ref_elems(x); i++) {
        int64_t b = i / C / T, t = i / C % T, c = i % C;
        double sum = 0;

        for (int64_t j = 0; j < W; j++) {
            int64_t to = t + (W - 1) - j;

            if (to < T && sh_delta_first(docs, b, to) <= t)
                sum += sh_ref_get(w, c * W + j) * d_convolved(call, b, to, c);
        }
        sh_ref_set(&call->out[0], i, sum);
    }
    for (int64_t i = 0; call->out[1].data && i < C * W; i++) {
        int64_t c = i / W, back = W - 1 - i % W;
        double sum = 0;

        for (int64_t row = 0; row < x->dim[0] * T; row++)
            if (row % T - back >= sh_delta_first(docs, row / T, row % T))
                sum += d_convolved(call, row / T, row % T, c) * sh_ref_get(x, (row - back) * C + c);
        sh_ref_sum(call, 1, i, sum);
    }
    for (int64_t c = 0; call->out[2].data && c < C; c++) {
        double sum = 0;

        for (int64_t row = 0; row < x->dim[0] * T; row++)
            sum += d_convolved(call, row / T, row % T, c);
        sh_ref_sum(call, 2, c, sum);
    }
    return SH_OK;
}

/* ---- the rule ---- */

/* Row t of a head: q and k with their lengths taken out, and q divided by the root of D; v; decay e^g and b. */
struct row {
    double q[SH_DELTA_HEAD], k[SH_DELTA_HEAD], v[SH_DELTA_HEAD], by_q, by_k;
    double decay, g, raw, beta; /* raw: a + dt */
};

/* The operands that both directions have, from input `i` on: x, ba, a_log, dt, docs. */
static struct row row_of(const struct sh_op_call *call, int i, int64_t b, int64_t t, int64_t h)
{
    const struct sh_operand *x = &call->in[i], *ba = &call->in[i + 1];
    struct sh_delta s = sh_delta_of(call, x);
    int64_t at = (b * s.T + t) * s.row, key = at + h / (s.H / s.K) * s.D, two = (b * s.T + t) * 2 * s.H;
    double qq = SH_DELTA_LEAST, kk = SH_DELTA_LEAST;
    struct row r;

    for (int64_t d = 0; d < s.D; d++) {
        r.q[d] = sh_ref_get(x, key + d);
        r.k[d] = sh_ref_get(x, key + s.K * s.D + d);
        qq += r.q[d] * r.q[d];
        kk += r.k[d] * r.k[d];
    }
    r.by_q = 1 / sqrt(qq);
    r.by_k = 1 / sqrt(kk);
    for (int64_t d = 0; d < s.D; d++) {
        r.q[d] *= r.by_q / sqrt((double)s.D);
        r.k[d] *= r.by_k;
    }
    for (int64_t v = 0; v < s.V; v++)
        r.v[v] = sh_ref_get(x, at + 2 * s.K * s.D + h * s.V + v);
    r.beta = sigmoid(sh_ref_get(ba, two + h));
    r.raw = sh_ref_get(ba, two + s.H + h) + sh_ref_get(&call->in[i + 3], h);
    r.g = -exp(sh_ref_get(&call->in[i + 2], h)) * softplus(r.raw);
    r.decay = exp(r.g);
    return r;
}

/* S = e^g S; S += k b (v - S'k); u [V] is what k is multiplied by. */
static void step(double *S, const struct row *r, const struct sh_delta *s, double *u)
{
    for (int64_t i = 0; i < s->D * s->V; i++)
        S[i] *= r->decay;
    for (int64_t v = 0; v < s->V; v++) {
        double sum = r->v[v];

        for (int64_t d = 0; d < s->D; d++)
            sum -= S[d * s->V + v] * r->k[d];
        u[v] = r->beta * sum;
    }
    for (int64_t d = 0; d < s->D; d++)
        for (int64_t v = 0; v < s->V; v++)
            S[d * s->V + v] += r->k[d] * u[v];
}

int64_t sh_ref_gated_delta_work_bytes(const struct sh_op_call *call)
{
    return (int64_t)sizeof(double) * call->attr->delta.key_dim * call->attr->delta.value_dim;
}

static void run_head(const struct sh_op_call *call, int64_t b, int64_t h)
{
    struct sh_delta s = sh_delta_of(call, &call->in[0]);
    double *S = call->work, u[SH_DELTA_HEAD];

    for (int64_t t = 0; t < s.T; t++) {
        int64_t first = sh_delta_first(&call->in[4], b, t);
        struct row r = row_of(call, 0, b, t, h);

        for (int64_t i = 0; i < s.D * s.V && t % SH_DELTA_CHUNK == 0; i++)
            sh_ref_set(&call->out[1], sh_delta_slot(&s, b, t, h) + i, 0);
        for (int64_t i = 0; i < s.D * s.V; i++) {
            if (t == first)
                S[i] = 0;
            else if ((t - first) % SH_DELTA_CHUNK == 0)
                sh_ref_set(&call->out[1], sh_delta_slot(&s, b, t, h) + i, S[i]);
        }
        step(S, &r, &s, u);
        for (int64_t v = 0; v < s.V; v++) {
            double sum = 0;

            for (int64_t d = 0; d < s.D; d++)
                sum += S[d * s.V + v] * r.q[d];
            sh_ref_set(&call->out[0], ((b * s.T + t) * s.H + h) * s.V + v, sum);
        }
    }
}

sh_rc sh_ref_gated_delta(const struct sh_op_call *call)
{
    for (int64_t b = 0; b < call->in[0].dim[0]; b++)
        for (int64_t h = 0; h < call->attr->delta.heads; h++)
            run_head(call, b, h);
    return SH_OK;
}

/* ---- of texts that go on ---- */

/* Element c of row t of x, or of what was left if t is negative; 0 before the text. */
static double row_before(const struct sh_op_call *call, int64_t b, int64_t t, int64_t c, bool begins)
{
    const struct sh_operand *x = &call->in[0];
    int64_t L = call->in[1].dim[2] - 1, T = x->dim[1], C = x->dim[2];

    if (t < 0)
        return begins ? 0 : sh_ref_get(&call->out[1], (b * L + L + t) * C + c);
    return sh_ref_get(x, (b * T + t) * C + c);
}

static void convolve_on(const struct sh_op_call *call, int64_t b, int64_t c)
{
    int64_t T = call->in[0].dim[1], C = call->in[0].dim[2], L = call->in[1].dim[2] - 1;
    const struct sh_operand *bias = &call->in[3];
    int64_t count = (int64_t)sh_ref_get(&call->in[4], b);
    bool begins = sh_ref_get(&call->in[2], b * T) == 0;

    for (int64_t t = 0; t < T; t++) {
        double sum = bias->data && t < count ? sh_ref_get(bias, c) : 0;

        for (int64_t j = 0; j <= L && t < count; j++)
            sum += sh_ref_get(&call->in[1], c * (L + 1) + j) * row_before(call, b, t - L + j, c, begins);
        sh_ref_set(&call->out[0], (b * T + t) * C + c, sum * sigmoid(sum));
    }
    for (int64_t j = 0; j < L && count; j++)
        sh_ref_set(&call->out[1], (b * L + j) * C + c, row_before(call, b, count - L + j, c, begins));
}

sh_rc sh_ref_short_conv_cache(const struct sh_op_call *call)
{
    for (int64_t b = 0; b < call->in[0].dim[0]; b++)
        for (int64_t c = 0; c < call->in[0].dim[2]; c++)
            convolve_on(call, b, c);
    return SH_OK;
}

static void go_on(const struct sh_op_call *call, int64_t b, int64_t h)
{
    struct sh_delta s = sh_delta_of(call, &call->in[0]);
    int64_t count = (int64_t)sh_ref_get(&call->in[5], b), elems = s.D * s.V, state = (b * s.H + h) * elems;
    bool begins = sh_ref_get(&call->in[4], b * s.T) == 0;
    double *S = call->work, u[SH_DELTA_HEAD];

    for (int64_t i = 0; i < elems; i++)
        S[i] = begins ? 0 : sh_ref_get(&call->out[1], state + i);
    for (int64_t t = 0; t < s.T; t++) {
        struct row r = row_of(call, 0, b, t, h);

        if (t < count)
            step(S, &r, &s, u);
        for (int64_t v = 0; v < s.V; v++) {
            double sum = 0;

            for (int64_t d = 0; d < s.D && t < count; d++)
                sum += S[d * s.V + v] * r.q[d];
            sh_ref_set(&call->out[0], ((b * s.T + t) * s.H + h) * s.V + v, sum);
        }
    }
    for (int64_t i = 0; i < elems && count; i++)
        sh_ref_set(&call->out[1], state + i, S[i]);
}

sh_rc sh_ref_gated_delta_cache(const struct sh_op_call *call)
{
    for (int64_t b = 0; b < call->in[0].dim[0]; b++)
        for (int64_t h = 0; h < call->attr->delta.heads; h++)
            go_on(call, b, h);
    return SH_OK;
}

/* ---- backward ---- */

/* The states of a chunk, each before and after its row; the derivative by the state; those of q and k of all rows of a
 * head of keys; sums for a_log and dt. */
struct back {
    struct sh_delta s;
    double *S, *dS, *dqk, *sums;
};

static struct back back_of(const struct sh_op_call *call)
{
    struct back w = {.s = sh_delta_of(call, &call->in[1]), .S = call->work};
    int64_t elems = w.s.D * w.s.V;

    w.dS = w.S + (SH_DELTA_CHUNK + 1) * elems;
    w.dqk = w.dS + elems;
    w.sums = w.dqk + w.s.T * 2 * w.s.D;
    return w;
}

int64_t sh_ref_gated_delta_bwd_work_bytes(const struct sh_op_call *call)
{
    struct back w = back_of(call);

    return (int64_t)sizeof(double) * (w.sums + 2 * w.s.H - w.S);
}

/* dS is the derivative by the state after the row, without what the row itself reads of it. */
static void step_back(const struct sh_op_call *call, const struct back *w, int64_t b, int64_t t, int64_t h,
                      const double *S)
{
    const struct sh_operand *ba = &call->in[2], *dx = &call->out[0], *dba = &call->out[1];
    const struct sh_delta *s = &w->s;
    struct row r = row_of(call, 1, b, t, h);
    double *dq = w->dqk + t * 2 * s->D, *dk = dq + s->D, dbeta = 0, dg = 0, draw;
    const double *after = S + s->D * s->V;
    int64_t two = (b * s->T + t) * 2 * s->H;

    for (int64_t v = 0; v < s->V; v++) {
        double dout = sh_ref_get(&call->in[0], ((b * s->T + t) * s->H + h) * s->V + v), du = 0, left = r.v[v];

        for (int64_t d = 0; d < s->D; d++) {
            double before = r.decay * S[d * s->V + v], *dSv = &w->dS[d * s->V + v];

            *dSv += r.q[d] * dout;
            dq[d] += after[d * s->V + v] * dout;
            du += *dSv * r.k[d];
            left -= before * r.k[d];
        }
        for (int64_t d = 0; d < s->D; d++) {
            double before = r.decay * S[d * s->V + v], *dSv = &w->dS[d * s->V + v];

            dk[d] += *dSv * r.beta * left - before * r.beta * du;
            *dSv -= r.k[d] * r.beta * du;
            dg += *dSv * before;
            *dSv *= r.decay;
        }
        dbeta += du * left;
        sh_ref_set(dx, (b * s->T + t) * s->row + 2 * s->K * s->D + h * s->V + v, r.beta * du);
    }
    draw = -dg * exp(sh_ref_get(&call->in[3], h)) * sigmoid(r.raw);
    sh_ref_set(dba, two + h, dbeta * r.beta * (1 - sigmoid(sh_ref_get(ba, two + h))));
    sh_ref_set(dba, two + s->H + h, draw);
    w->sums[h] += dg * r.g;
    w->sums[s->H + h] += draw;
}

static void head_back(const struct sh_op_call *call, const struct back *w, int64_t b, int64_t h)
{
    const struct sh_delta *s = &w->s;
    int64_t elems = s->D * s->V;

    for (int64_t i = 0; i < elems; i++)
        w->dS[i] = 0;
    for (int64_t end = s->T, begin; end > 0; end = begin) {
        bool starts;

        begin = sh_delta_begin(&call->in[5], b, end - 1);
        starts = begin == sh_delta_first(&call->in[5], b, begin);
        for (int64_t i = 0; i < elems; i++)
            w->S[i] = starts ? 0 : sh_ref_get(&call->in[6], sh_delta_slot(s, b, begin, h) + i);
        for (int64_t t = begin; t < end; t++) {
            struct row r = row_of(call, 1, b, t, h);
            double *next = w->S + (t - begin + 1) * elems, u[SH_DELTA_HEAD];

            for (int64_t i = 0; i < elems; i++)
                next[i] = next[i - elems];
            step(next, &r, s, u);
        }
        for (int64_t t = end - 1; t >= begin; t--)
            step_back(call, w, b, t, h, w->S + (t - begin) * elems);
        for (int64_t i = 0; i < elems && starts; i++)
            w->dS[i] = 0;
    }
}

/* Through the lengths: of y = x / |x| the derivative is (dy - y (y.dy)) / |x|. Query, then key. */
static void lengths_back(const struct sh_op_call *call, const struct back *w, int64_t b, int64_t key)
{
    const struct sh_delta *s = &w->s;

    for (int64_t t = 0; t < s->T; t++) {
        struct row r = row_of(call, 1, b, t, key * (s->H / s->K));

        for (int which = 0; which < 2; which++) {
            const double *d = w->dqk + (2 * t + which) * s->D, *y = which ? r.k : r.q;
            double scale = which ? 1 : 1 / sqrt((double)s->D), by = which ? r.by_k : r.by_q, sum = 0;

            for (int64_t i = 0; i < s->D; i++)
                sum += d[i] * y[i];
            for (int64_t i = 0; i < s->D; i++)
                sh_ref_set(&call->out[0], (b * s->T + t) * s->row + (which * s->K + key) * s->D + i,
                           by * (scale * d[i] - y[i] / scale * sum));
        }
    }
}

sh_rc sh_ref_gated_delta_bwd(const struct sh_op_call *call)
{
    struct back w = back_of(call);
    int64_t each = w.s.H / w.s.K;

    for (int64_t i = 0; i < 2 * w.s.H; i++)
        w.sums[i] = 0;
    for (int64_t i = 0; i < w.s.B * w.s.K; i++) {
        for (int64_t j = 0; j < w.s.T * 2 * w.s.D; j++)
            w.dqk[j] = 0;
        for (int64_t h = i % w.s.K * each; h < (i % w.s.K + 1) * each; h++)
            head_back(call, &w, i / w.s.K, h);
        lengths_back(call, &w, i / w.s.K, i % w.s.K);
    }
    for (int k = 0; k < 2; k++)
        for (int64_t h = 0; h < w.s.H && call->out[2 + k].data; h++)
            sh_ref_sum(call, 2 + k, h, w.sums[k * w.s.H + h]);
    return SH_OK;
}
