/* What a router's choice leads to: the order of the rows, their load, and the bias that
 * evens it out; rows brought to the experts and back; the products of the experts' rows, and what is between two of
 * them. */
#include "kernels/ref/ref.h"

#include <math.h>

/* Expert by expert, in the order of the tokens. */
sh_rc sh_ref_route_plan(const struct sh_op_call *call)
{
    const struct sh_operand *expert = &call->in[0], *first = &call->out[2];
    int64_t M = sh_ref_elems(expert), E = sh_ref_elems(first) - 1, row = 0;

    for (int64_t e = 0; e < E; e++) {
        sh_ref_set(first, e, (double)row);
        for (int64_t i = 0; i < M; i++)
            if ((int64_t)sh_ref_get(expert, i) == e) {
                sh_ref_set(&call->out[0], row, (double)i);
                sh_ref_set(&call->out[1], i, (double)row++);
            }
    }
    sh_ref_set(first, E, (double)row);
    return SH_OK;
}

/* The wave in which the segment of source `from` and expert e travels; used: rows so far in the newest wave of the
 * expert's rank. */
static int wave_of(const struct sh_op_call *call, int64_t from, int64_t e, int64_t *used, int *newest)
{
    const struct sh_operand *first = &call->in[0];
    int64_t at = from * first->dim[1] + e, n = (int64_t)(sh_ref_get(first, at + 1) - sh_ref_get(first, at));

    if (*used + n > call->attr->wave.room) {
        *used = 0;
        ++*newest;
    }
    *used += n;
    return *newest;
}

/* Whether anyone receives rows, and how many whoever receives most. */
static void note_used(const struct sh_op_call *call)
{
    const struct sh_operand *parts = &call->out[0];
    int64_t P = parts->dim[1];
    double most = 0;

    for (int64_t to = 0; to < P; to++) {
        double rows = 0;

        for (int64_t from = 0; from < P; from++)
            rows += sh_ref_get(parts, from * P + to);
        most = fmax(most, rows);
    }
    sh_ref_sum(call, 2, 0, most > 0);
    sh_ref_sum(call, 2, 1, most);
}

/* Rank by rank that receives, expert by expert, source by source. The sizes of segments stand behind their ends, until
 * they are added up. */
sh_rc sh_ref_route_wave(const struct sh_op_call *call)
{
    const struct sh_operand *first = &call->in[0], *parts = &call->out[0], *groups = &call->out[1];
    int64_t P = first->dim[0], E = first->dim[1] - 1, here = E / P;

    for (int64_t i = 0; i < 2 * P * P; i++)
        sh_ref_set(parts, i, 0);
    for (int64_t i = 0; i <= E; i++)
        sh_ref_set(groups, i, 0);
    for (int64_t to = 0; to < P; to++) {
        int64_t used = 0;
        int newest = 0;

        for (int64_t i = 0; i < here * P; i++) {
            int64_t e = to * here + i / P, from = i % P, part = from * P + to, row = from * (E + 1) + e;
            double n = sh_ref_get(first, row + 1) - sh_ref_get(first, row);

            if (wave_of(call, from, e, &used, &newest) != call->attr->wave.wave || n == 0)
                continue;
            if (sh_ref_get(parts, part) == 0)
                sh_ref_set(parts, P * P + part, sh_ref_get(first, row));
            sh_ref_set(parts, part, sh_ref_get(parts, part) + n);
            if (to == call->attr->wave.place)
                sh_ref_set(groups, from * here + i / P + 1, n);
        }
    }
    for (int64_t i = 1; i <= E; i++)
        sh_ref_set(groups, i, sh_ref_get(groups, i) + sh_ref_get(groups, i - 1));
    if (call->out[2].data)
        note_used(call);
    return SH_OK;
}

/* Whole numbers in f64: exact, in any order. */
sh_rc sh_ref_route_load(const struct sh_op_call *call)
{
    const struct sh_operand *first = &call->in[0];

    for (int64_t e = 0; e < sh_ref_elems(&call->out[0]); e++)
        sh_ref_sum(call, 0, e, sh_ref_get(first, e + 1) - sh_ref_get(first, e));
    return SH_OK;
}

/* Wang et al., Auxiliary-loss-free load balancing (arXiv:2408.15664); the mean is taken out since only differences
 * choose. */
sh_rc sh_ref_route_bias(const struct sh_op_call *call)
{
    const struct sh_operand *load = &call->in[0], *bias = &call->out[0];
    int64_t E = sh_ref_elems(load);
    double step = (double)call->attr->route.step, mean = 0, sum = 0;

    for (int64_t e = 0; e < E; e++)
        mean += sh_ref_get(load, e) / (double)E;
    for (int64_t e = 0; e < E; e++) {
        double less = mean - sh_ref_get(load, e);
        sh_ref_set(bias, e, sh_ref_get(bias, e) + (less > 0 ? step : less < 0 ? -step : 0));
        sum += sh_ref_get(bias, e);
    }
    for (int64_t e = 0; e < E; e++)
        sh_ref_set(bias, e, sh_ref_get(bias, e) - sum / (double)E);
    return SH_OK;
}

/* The row of near that a sorted row is; -1: it is none of them. */
static int64_t row_near(const struct sh_operand *near, const struct sh_operand *at, const struct sh_operand *first,
                        int64_t row)
{
    int64_t begin, i = near->data ? row - (int64_t)sh_ref_get(at, 0) : -1;

    if (i < 0)
        return -1;
    begin = (int64_t)sh_ref_get(first, 0);
    return begin + i < (int64_t)sh_ref_get(first, sh_ref_elems(first) - 1) ? begin + i : -1;
}

sh_rc sh_ref_row_gather(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *order = &call->in[1], *xs = &call->out[0], *near = &call->out[1];
    int64_t C = xs->dim[1], M = xs->dim[0], k = M / x->dim[0];

    for (int64_t i = 0; i < M * C; i++) {
        double value = sh_ref_get(x, (int64_t)sh_ref_get(order, i / C) / k * C + i % C);
        int64_t row = row_near(near, &call->in[2], &call->in[3], i / C);

        if (row < 0)
            sh_ref_set(xs, i, value);
        else
            sh_ref_set(near, row * C + i % C, value);
    }
    return SH_OK;
}

sh_rc sh_ref_row_sum(const struct sh_op_call *call)
{
    const struct sh_operand *ys = &call->in[0], *place = &call->in[1], *addend = &call->in[2], *y = &call->out[0];
    const struct sh_operand *near = &call->in[3];
    int64_t N = y->dim[0], C = y->dim[1], k = place->dim[1];

    for (int64_t i = 0; i < N * C; i++) {
        double sum = addend->data ? sh_ref_get(addend, i) : 0;
        for (int64_t j = 0; j < k; j++) {
            int64_t row = (int64_t)sh_ref_get(place, i / C * k + j);
            int64_t here = row_near(near, &call->in[4], &call->in[5], row);

            sum += sh_ref_get(here < 0 ? ys : near, (here < 0 ? row : here) * C + i % C);
        }
        sh_ref_set(y, i, sum);
    }
    return SH_OK;
}

/* Group g has the rows from here to where the next begins; the last number is where the live rows end. */
static int64_t begin_of(const struct sh_operand *first, int64_t g)
{
    return (int64_t)sh_ref_get(first, g);
}

static int64_t groups_of(const struct sh_operand *first)
{
    return sh_ref_elems(first) - 1;
}

/* y = x w[e]', or dx = dy w[e]; of a weight that is stored [E,I,O] the other way round. */
sh_rc sh_ref_expert_linear(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *first = &call->in[1], *w = &call->in[2], *y = &call->out[0];
    int64_t E = w->dim[0], I = w->dim[2], from = x->dim[1], to = y->dim[1];
    bool forward = (call->kind == SH_OP_EXPERT_LINEAR) != call->attr->rows.w_in_out;

    for (int64_t g = 0; g < groups_of(first); g++)
        for (int64_t i = begin_of(first, g) * to; i < begin_of(first, g + 1) * to; i++) {
            double sum = 0;
            for (int64_t c = 0; c < from; c++)
                sum += sh_ref_get(x, i / to * from + c) *
                       sh_ref_get(w, g % E * from * to + (forward ? i % to * I + c : c * I + i % to));
            sh_ref_set(y, i, sum);
        }
    return SH_OK;
}

/* dw[e] = dy' x, or x' dy of a weight that is stored [E,I,O] */
sh_rc sh_ref_expert_linear_bwd_w(const struct sh_op_call *call)
{
    bool in_out = call->attr->rows.w_in_out;
    const struct sh_operand *dy = &call->in[in_out], *x = &call->in[!in_out], *first = &call->in[2],
                            *dw = &call->out[0];
    int64_t E = dw->dim[0], O = dw->dim[1], I = dw->dim[2];

    for (int64_t i = 0; i < E * O * I; i++) {
        int64_t o = i / I % O;
        sh_ref_sum(call, 0, i, 0);
        for (int64_t g = i / (O * I); g < groups_of(first); g += E) {
            double sum = sh_ref_get(dw, i);
            for (int64_t r = begin_of(first, g); r < begin_of(first, g + 1); r++)
                sum += sh_ref_get(dy, r * O + o) * sh_ref_get(x, r * I + i % I);
            sh_ref_set(dw, i, sum);
        }
    }
    return SH_OK;
}

/* Where the weight of a row is. */
static int64_t entry_of(const struct sh_operand *order, int64_t row)
{
    return order->data ? (int64_t)sh_ref_get(order, row) : row;
}

static int64_t live_rows(const struct sh_operand *first, int64_t M)
{
    return first->data ? begin_of(first, groups_of(first)) : M;
}

/* Gate and up of element f of a row: all gates, then all ups; or, with a limit, neighbours. A gradient passes through
 * what is at the limit, but not through what is beyond it. */
struct gated {
    int64_t gate_at, up_at;
    double gate, up, alpha;
    bool gate_passes, up_passes;
};

static struct gated gated_of(const struct sh_op_call *call, const struct sh_operand *gu, int64_t r, int64_t f)
{
    double limit = (double)call->attr->rows.limit, most = limit > 0 ? limit : INFINITY, up;
    int64_t row = r * gu->dim[1];
    struct gated v = {.gate_at = row + f, .up_at = row + gu->dim[1] / 2 + f, .alpha = 1};

    if (limit > 0) {
        v.gate_at = row + 2 * f;
        v.up_at = v.gate_at + 1;
        v.alpha = (double)call->attr->rows.alpha;
    }
    up = sh_ref_get(gu, v.up_at);
    v.gate = sh_ref_get(gu, v.gate_at);
    v.gate_passes = !(v.gate > most);
    v.up_passes = !(fabs(up) > most);
    v.gate = v.gate_passes ? v.gate : most;
    v.up = (v.up_passes ? up : copysign(most, up)) + (limit > 0);
    return v;
}

/* h = gate sigmoid(alpha gate) up weight */
sh_rc sh_ref_swiglu_rows(const struct sh_op_call *call)
{
    const struct sh_operand *gu = &call->in[0], *weight = &call->in[1], *order = &call->in[2], *h = &call->out[0];
    int64_t F = h->dim[1];

    for (int64_t i = 0; i < live_rows(&call->in[3], h->dim[0]) * F; i++) {
        struct gated v = gated_of(call, gu, i / F, i % F);
        sh_ref_set(h, i, v.gate / (1 + exp(-v.alpha * v.gate)) * v.up * sh_ref_get(weight, entry_of(order, i / F)));
    }
    return SH_OK;
}

/* With s = sigmoid(alpha gate): d (gate s) / d gate = s (1 + alpha gate (1 - s)). */
sh_rc sh_ref_swiglu_rows_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dh = &call->in[0], *gu = &call->in[1], *dgu = &call->out[0], *more = &call->in[5];
    int64_t M = live_rows(&call->in[4], dh->dim[0]), F = dh->dim[1];

    for (int64_t r = 0; r < M; r++) {
        int64_t entry = entry_of(&call->in[3], r);
        double weight = sh_ref_get(&call->in[2], entry), sum = more->data ? sh_ref_get(more, entry) : 0;
        for (int64_t f = 0; f < F; f++) {
            struct gated v = gated_of(call, gu, r, f);
            double s = 1 / (1 + exp(-v.alpha * v.gate)), d = sh_ref_get(dh, r * F + f);
            sum += d * v.gate * s * v.up;
            sh_ref_set(dgu, v.gate_at, v.gate_passes * d * weight * v.up * s * (1 + v.alpha * v.gate * (1 - s)));
            sh_ref_set(dgu, v.up_at, v.up_passes * d * weight * v.gate * s);
        }
        sh_ref_set(&call->out[1], entry, sum);
    }
    return SH_OK;
}

/* Not a number stays what it is. */
static double above_0(const struct sh_operand *x, int64_t i)
{
    double v = sh_ref_get(x, i);

    return v < 0 ? 0 : v;
}

/* h = max(x, 0)^2 weight */
sh_rc sh_ref_squared_relu_rows(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *h = &call->out[0];
    int64_t F = h->dim[1];

    for (int64_t i = 0; i < live_rows(&call->in[3], h->dim[0]) * F; i++) {
        double v = above_0(x, i);
        sh_ref_set(h, i, v * v * sh_ref_get(&call->in[1], entry_of(&call->in[2], i / F)));
    }
    return SH_OK;
}

sh_rc sh_ref_squared_relu_rows_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dh = &call->in[0], *x = &call->in[1], *more = &call->in[5];
    int64_t M = live_rows(&call->in[4], dh->dim[0]), F = dh->dim[1];

    for (int64_t r = 0; r < M; r++) {
        int64_t entry = entry_of(&call->in[3], r);
        double weight = sh_ref_get(&call->in[2], entry), sum = more->data ? sh_ref_get(more, entry) : 0;
        for (int64_t i = r * F; i < (r + 1) * F; i++) {
            double v = above_0(x, i), d = sh_ref_get(dh, i);
            sum += d * v * v;
            sh_ref_set(&call->out[0], i, 2 * d * weight * v);
        }
        sh_ref_set(&call->out[1], entry, sum);
    }
    return SH_OK;
}

static double weight_of(const struct sh_operand *weight, const struct sh_operand *order, int64_t row)
{
    return weight->data ? sh_ref_get(weight, entry_of(order, row)) : 1;
}

sh_rc sh_ref_expert_bias(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *first = &call->in[1], *b = &call->in[2], *y = &call->out[0];
    int64_t E = b->dim[0], O = b->dim[1];

    for (int64_t g = 0; g < groups_of(first); g++)
        for (int64_t i = begin_of(first, g) * O; i < begin_of(first, g + 1) * O; i++)
            sh_ref_set(y, i,
                       sh_ref_get(x, i) +
                           sh_ref_get(b, g % E * O + i % O) * weight_of(&call->in[3], &call->in[4], i / O));
    return SH_OK;
}

/* The sum of column i % O over the rows of expert i / O. */
static double bias_sum(const struct sh_op_call *call, int64_t i)
{
    const struct sh_operand *dy = &call->in[0], *first = &call->in[1], *db = &call->out[0];
    int64_t E = db->dim[0], O = db->dim[1];
    double sum = 0;

    for (int64_t g = i / O; g < groups_of(first); g += E)
        for (int64_t r = begin_of(first, g); r < begin_of(first, g + 1); r++)
            sum += sh_ref_get(dy, r * O + i % O) * weight_of(&call->in[3], &call->in[4], r);
    return sum;
}

sh_rc sh_ref_expert_bias_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *first = &call->in[1], *b = &call->in[2], *dweight = &call->out[1];
    int64_t O = dy->dim[1];

    for (int64_t i = 0; call->out[0].data && i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_sum(call, 0, i, bias_sum(call, i));
    for (int64_t g = 0; dweight->data && g < groups_of(first); g++)
        for (int64_t r = begin_of(first, g); r < begin_of(first, g + 1); r++) {
            double sum = 0;
            for (int64_t o = 0; o < O; o++)
                sum += sh_ref_get(dy, r * O + o) * sh_ref_get(b, g % b->dim[0] * O + o);
            sh_ref_set(dweight, entry_of(&call->in[4], r), sum);
        }
    return SH_OK;
}
