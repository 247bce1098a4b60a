/* The state-space dual form as it is defined, row by row, and the norm behind it. */
#include "kernels/scan.h"
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

/* Where row t of a head has its values, what its group writes, and what it reads. */
struct row {
    int64_t x, b, c;
    double raw, step, decay, g, skip; /* decay: e^g */
};

/* The operands that both directions have, from input `i` on: x, dt, heads, docs. */
static struct row row_of(const struct sh_op_call *call, int i, int64_t b, int64_t t, int64_t h)
{
    struct sh_delta s = sh_space_of(call, &call->in[i]);
    int64_t at = (b * s.T + t) * s.row, group = at + s.H * s.V + h / (s.H / s.K) * s.D;
    struct row r = {.x = at + h * s.V, .b = group, .c = group + s.K * s.D};

    r.raw = sh_ref_get(&call->in[i + 1], (b * s.T + t) * s.H + h) + sh_ref_get(&call->in[i + 2], s.H + h);
    r.step = fmax(softplus(r.raw), (double)call->attr->delta.least);
    r.g = -exp(sh_ref_get(&call->in[i + 2], h)) * r.step;
    r.decay = exp(r.g);
    r.skip = sh_ref_get(&call->in[i + 2], 2 * s.H + h);
    return r;
}

/* S = e^g S + B dt x' */
static void step(double *S, const struct sh_operand *x, const struct row *r, const struct sh_delta *s)
{
    for (int64_t d = 0; d < s->D; d++)
        for (int64_t v = 0; v < s->V; v++)
            S[d * s->V + v] = r->decay * S[d * s->V + v] + sh_ref_get(x, r->b + d) * r->step * sh_ref_get(x, r->x + v);
}

/* Element v of S'C + skip x */
static double read_out(const double *S, const struct sh_operand *x, const struct row *r, const struct sh_delta *s,
                       int64_t v)
{
    double sum = r->skip * sh_ref_get(x, r->x + v);

    for (int64_t d = 0; d < s->D; d++)
        sum += S[d * s->V + v] * sh_ref_get(x, r->c + d);
    return sum;
}

int64_t sh_ref_scan_work_bytes(const struct sh_op_call *call)
{
    return (int64_t)sizeof(double) * call->attr->delta.key_dim * call->attr->delta.value_dim;
}

static void run_head(const struct sh_op_call *call, int64_t b, int64_t h)
{
    const struct sh_operand *x = &call->in[0];
    struct sh_delta s = sh_space_of(call, x);
    double *S = call->work;

    for (int64_t t = 0; t < s.T; t++) {
        int64_t first = sh_delta_first(&call->in[3], b, t);
        struct row r = row_of(call, 0, b, t, h);

        for (int64_t i = 0; i < s.D * s.V; i++) {
            if (t % SH_SCAN_CHUNK == 0)
                sh_ref_set(&call->out[1], sh_space_slot(&s, b, t, h) + i, 0);
            if (t == first)
                S[i] = 0;
            else if ((t - first) % SH_SCAN_CHUNK == 0)
                sh_ref_set(&call->out[1], sh_space_slot(&s, b, t, h) + i, S[i]);
        }
        step(S, x, &r, &s);
        for (int64_t v = 0; v < s.V; v++)
            sh_ref_set(&call->out[0], ((b * s.T + t) * s.H + h) * s.V + v, read_out(S, x, &r, &s, v));
    }
}

sh_rc sh_ref_scan(const struct sh_op_call *call)
{
    for (int64_t b = 0; b < call->in[0].dim[0]; b++)
        for (int64_t h = 0; h < call->attr->delta.heads; h++)
            run_head(call, b, h);
    return SH_OK;
}

/* Of a text that goes on. */
static void go_on(const struct sh_op_call *call, int64_t b, int64_t h)
{
    const struct sh_operand *x = &call->in[0];
    struct sh_delta s = sh_space_of(call, x);
    int64_t count = (int64_t)sh_ref_get(&call->in[4], b), elems = s.D * s.V, state = (b * s.H + h) * elems;
    bool begins = sh_ref_get(&call->in[3], b * s.T) == 0;
    double *S = call->work;

    for (int64_t i = 0; i < elems; i++)
        S[i] = begins ? 0 : sh_ref_get(&call->out[1], state + i);
    for (int64_t t = 0; t < s.T; t++) {
        struct row r = row_of(call, 0, b, t, h);

        if (t < count)
            step(S, x, &r, &s);
        for (int64_t v = 0; v < s.V; v++)
            sh_ref_set(&call->out[0], ((b * s.T + t) * s.H + h) * s.V + v, t < count ? read_out(S, x, &r, &s, v) : 0);
    }
    for (int64_t i = 0; i < elems && count; i++)
        sh_ref_set(&call->out[1], state + i, S[i]);
}

sh_rc sh_ref_scan_cache(const struct sh_op_call *call)
{
    for (int64_t b = 0; b < call->in[0].dim[0]; b++)
        for (int64_t h = 0; h < call->attr->delta.heads; h++)
            go_on(call, b, h);
    return SH_OK;
}

/* ---- backward ---- */

/* The states of a chunk, each before and after its row; the derivative by the state; those by B and C of all rows of a
 * group; sums for the parameters of all heads. */
struct back {
    struct sh_delta s;
    double *S, *dS, *dbc, *sums;
};

static struct back back_of(const struct sh_op_call *call)
{
    struct back w = {.s = sh_space_of(call, &call->in[1]), .S = call->work};
    int64_t elems = w.s.D * w.s.V;

    w.dS = w.S + (SH_SCAN_CHUNK + 1) * elems;
    w.dbc = w.dS + elems;
    w.sums = w.dbc + w.s.T * 2 * w.s.D;
    return w;
}

int64_t sh_ref_scan_bwd_work_bytes(const struct sh_op_call *call)
{
    struct back w = back_of(call);

    return (int64_t)sizeof(double) * (w.sums + 3 * w.s.H - w.S);
}

/* S is the state before the row; dS the derivative by that after it, without what the row itself reads. */
static void step_back(const struct sh_op_call *call, const struct back *w, int64_t b, int64_t t, int64_t h,
                      const double *S)
{
    const struct sh_delta *s = &w->s;
    const struct sh_operand *x = &call->in[1];
    const double *after = S + s->D * s->V;
    struct row r = row_of(call, 1, b, t, h);
    double *dB = w->dbc + t * 2 * s->D, *dC = dB + s->D, dstep = 0, dg = 0, draw;

    for (int64_t v = 0; v < s->V; v++) {
        double dout = sh_ref_get(&call->in[0], ((b * s->T + t) * s->H + h) * s->V + v), in = sh_ref_get(x, r.x + v);
        double du = 0;

        for (int64_t d = 0; d < s->D; d++) {
            int64_t i = d * s->V + v;

            w->dS[i] += sh_ref_get(x, r.c + d) * dout;
            dC[d] += after[i] * dout;
            dB[d] += w->dS[i] * r.step * in;
            du += w->dS[i] * sh_ref_get(x, r.b + d);
            dg += w->dS[i] * r.decay * S[i];
            w->dS[i] *= r.decay;
        }
        dstep += du * in;
        w->sums[2 * s->H + h] += dout * in;
        sh_ref_set(&call->out[0], r.x + v, r.step * du + r.skip * dout);
    }
    dstep += dg * r.g / r.step;
    draw = softplus(r.raw) >= (double)call->attr->delta.least ? dstep * sigmoid(r.raw) : 0;
    sh_ref_set(&call->out[1], (b * s->T + t) * s->H + h, draw);
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

        begin = sh_space_begin(&call->in[4], b, end - 1);
        starts = begin == sh_delta_first(&call->in[4], b, begin);
        for (int64_t i = 0; i < elems; i++)
            w->S[i] = starts ? 0 : sh_ref_get(&call->in[5], sh_space_slot(s, b, begin, h) + i);
        for (int64_t t = begin; t < end; t++) {
            struct row r = row_of(call, 1, b, t, h);
            double *next = w->S + (t - begin + 1) * elems;

            for (int64_t i = 0; i < elems; i++)
                next[i] = next[i - elems];
            step(next, &call->in[1], &r, s);
        }
        for (int64_t t = end - 1; t >= begin; t--)
            step_back(call, w, b, t, h, w->S + (t - begin) * elems);
        for (int64_t i = 0; i < elems && starts; i++)
            w->dS[i] = 0;
    }
}

static void store_group(const struct sh_op_call *call, const struct back *w, int64_t b, int64_t group)
{
    const struct sh_delta *s = &w->s;

    for (int64_t i = 0; i < s->T * 2 * s->D; i++) {
        int64_t t = i / s->D / 2, which = i / s->D % 2, row = (b * s->T + t) * s->row;

        sh_ref_set(&call->out[0], row + s->H * s->V + (which * s->K + group) * s->D + i % s->D, w->dbc[i]);
    }
}

sh_rc sh_ref_scan_bwd(const struct sh_op_call *call)
{
    struct back w = back_of(call);
    int64_t each = w.s.H / w.s.K;

    for (int64_t i = 0; i < 3 * w.s.H; i++)
        w.sums[i] = 0;
    for (int64_t i = 0; i < w.s.B * w.s.K; i++) {
        for (int64_t j = 0; j < w.s.T * 2 * w.s.D; j++)
            w.dbc[j] = 0;
        for (int64_t h = i % w.s.K * each; h < (i % w.s.K + 1) * each; h++)
            head_back(call, &w, i / w.s.K, h);
        store_group(call, &w, i / w.s.K, i % w.s.K);
    }
    for (int64_t i = 0; i < 3 * w.s.H && call->out[2].data; i++)
        sh_ref_sum(call, 2, i, w.sums[i]);
    return SH_OK;
}

/* ---- the norm ---- */

/* u = x silu(z) */
static double gated(const struct sh_operand *x, const struct sh_operand *z, int64_t i)
{
    double gate = sh_ref_get(z, i);

    return sh_ref_get(x, i) * gate * sigmoid(gate);
}

sh_rc sh_ref_gate_norm(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *z = &call->in[1], *w = &call->in[2];
    int64_t V = call->attr->delta.value_dim, H = call->attr->delta.heads;

    for (int64_t h = 0; h < sh_ref_elems(x) / V; h++) {
        double sum = 0, rstd;

        for (int64_t i = h * V; i < (h + 1) * V; i++)
            sum += gated(x, z, i) * gated(x, z, i);
        rstd = 1 / sqrt(sum / (double)V + (double)call->attr->delta.eps);
        for (int64_t i = h * V; i < (h + 1) * V; i++)
            sh_ref_set(&call->out[0], i, gated(x, z, i) * rstd * sh_ref_get(w, i % (H * V)));
        sh_ref_set(&call->out[1], h, rstd);
    }
    return SH_OK;
}

/* With n = u rstd and d = dy w: du = rstd (d - n mean(d n)). */
sh_rc sh_ref_gate_norm_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1], *z = &call->in[2], *w = &call->in[3];
    int64_t V = call->attr->delta.value_dim, all = V * call->attr->delta.heads;

    for (int64_t h = 0; h < sh_ref_elems(x) / V; h++) {
        double rstd = sh_ref_get(&call->in[4], h), mean = 0;

        for (int64_t i = h * V; i < (h + 1) * V; i++)
            mean += sh_ref_get(dy, i) * sh_ref_get(w, i % all) * gated(x, z, i) * rstd / (double)V;
        for (int64_t i = h * V; i < (h + 1) * V; i++) {
            double gate = sh_ref_get(z, i), s = sigmoid(gate), n = gated(x, z, i) * rstd;
            double du = rstd * (sh_ref_get(dy, i) * sh_ref_get(w, i % all) - n * mean);

            sh_ref_set(&call->out[1], i, du * sh_ref_get(x, i) * s * (1 + gate * (1 - s)));
            sh_ref_set(&call->out[0], i, du * gate * s);
        }
    }
    for (int64_t c = 0; c < all && call->out[2].data; c++) {
        double sum = 0;

        for (int64_t i = c; i < sh_ref_elems(x); i += all)
            sum += sh_ref_get(dy, i) * gated(x, z, i) * sh_ref_get(&call->in[4], i / V);
        sh_ref_sum(call, 2, c, sum);
    }
    return SH_OK;
}
