/* The router of a mixture of experts, forward and backward; kernels/op.h has the rules of the choice and the two
 * losses. */
#include "kernels/ref/ref.h"

#include <math.h>

/* Against a division by zero, as in the published models: a sum of scores below it is as good as none. */
static const double tiny = 1e-20;

struct shape {
    int64_t N, C, E, k;
};

static struct shape shape_of(const struct sh_op_call *call, const struct sh_operand *w, const struct sh_operand *score)
{
    int64_t E = w->dim[0];

    return (struct shape){sh_ref_elems(score) / E, w->dim[1], E, call->attr->route.chosen};
}

/* NaN comes last; equals stay in the order of their numbers, since the earlier one is looked at first. */
static bool ahead(double a, double b)
{
    return a > b || (isnan(b) && !isnan(a));
}

/* score + bias of expert e, which is f32 on all devices: what is equal there is equal here. */
static double wish(const struct sh_op_call *call, struct shape s, int64_t n, int64_t e)
{
    const struct sh_operand *bias = &call->in[2];

    return (float)(sh_ref_get(&call->out[2], n * s.E + e) + (bias->data ? sh_ref_get(bias, e) : 0));
}

/* The sum of a group's two best; of its only one. */
static double group_wish(const struct sh_op_call *call, struct shape s, int64_t n, int group)
{
    int64_t size = s.E / call->attr->route.groups, best = group * size, second = -1;

    for (int64_t e = best + 1; e < (group + 1) * size; e++) {
        if (ahead(wish(call, s, n, e), wish(call, s, n, best))) {
            second = best;
            best = e;
        } else if (second < 0 || ahead(wish(call, s, n, e), wish(call, s, n, second))) {
            second = e;
        }
    }
    return (float)(wish(call, s, n, best) + (second < 0 ? 0 : wish(call, s, n, second)));
}

/* Whether fewer than top_groups groups come before this one. */
static bool allowed(const struct sh_op_call *call, struct shape s, int64_t n, int group)
{
    double mine = group_wish(call, s, n, group);
    int before = 0;

    for (int g = 0; g < call->attr->route.groups; g++) {
        double other = group_wish(call, s, n, g);
        before += g != group && (ahead(other, mine) || (g < group && !ahead(mine, other)));
    }
    return before < call->attr->route.top_groups;
}

static bool taken(const struct sh_op_call *call, struct shape s, int64_t n, int64_t slots, int64_t e)
{
    for (int64_t j = 0; j < slots; j++)
        if ((int64_t)sh_ref_get(&call->out[1], n * s.k + j) == e)
            return true;
    return false;
}

/* The best that is left, slot by slot. */
static void choose(const struct sh_op_call *call, struct shape s, int64_t n)
{
    bool open[SH_ROUTE_GROUPS];
    int groups = call->attr->route.groups;

    for (int64_t j = 0; j < s.k && call->attr->route.forced; j++)
        sh_ref_set(&call->out[1], n * s.k + j, (double)((n * s.k + j) % s.E));
    if (call->attr->route.forced)
        return;
    for (int g = 0; g < groups; g++)
        open[g] = allowed(call, s, n, g);
    for (int64_t j = 0; j < s.k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < s.E; e++)
            if ((!groups || open[e / (s.E / groups)]) && !taken(call, s, n, j, e) &&
                (best < 0 || ahead(wish(call, s, n, e), wish(call, s, n, best))))
                best = e;
        sh_ref_set(&call->out[1], n * s.k + j, (double)best);
    }
}

/* The sum of the chosen scores. */
static double chosen_sum(const struct sh_operand *score, const struct sh_operand *expert, struct shape s, int64_t n)
{
    double sum = tiny;

    for (int64_t j = 0; j < s.k; j++)
        sum += sh_ref_get(score, n * s.E + (int64_t)sh_ref_get(expert, n * s.k + j));
    return sum;
}

static void weigh(const struct sh_op_call *call, struct shape s, int64_t n)
{
    const struct sh_operand *expert = &call->out[1], *score = &call->out[2];
    double by = (double)call->attr->route.scale / (call->attr->route.norm ? chosen_sum(score, expert, s, n) : 1);

    for (int64_t j = 0; j < s.k; j++)
        sh_ref_set(&call->out[0], n * s.k + j,
                   by * sh_ref_get(score, n * s.E + (int64_t)sh_ref_get(expert, n * s.k + j)));
}

static double logit(const struct sh_op_call *call, struct shape s, int64_t n, int64_t e)
{
    double sum = call->in[3].data ? sh_ref_get(&call->in[3], e) : 0;

    for (int64_t c = 0; c < s.C; c++)
        sum += sh_ref_get(&call->in[0], n * s.C + c) * sh_ref_get(&call->in[1], e * s.C + c);
    return sum;
}

/* The scores of a row, and the log of the sum of its exponentials. */
static void score_row(const struct sh_op_call *call, struct shape s, int64_t n)
{
    const struct sh_operand *score = &call->out[2], *lse = &call->out[3];
    double most = -INFINITY, sum = 0;

    for (int64_t e = 0; e < s.E; e++)
        most = fmax(most, logit(call, s, n, e));
    for (int64_t e = 0; e < s.E; e++)
        sum += exp(logit(call, s, n, e) - most);
    for (int64_t e = 0; e < s.E; e++) {
        double l = logit(call, s, n, e);
        sh_ref_set(score, n * s.E + e, call->attr->route.sigmoid ? 1 / (1 + exp(-l)) : exp(l - most) / sum);
    }
    if (lse->data)
        sh_ref_set(lse, n, most + log(sum));
}

sh_rc sh_ref_route(const struct sh_op_call *call)
{
    struct shape s = shape_of(call, &call->in[1], &call->out[2]);

    for (int64_t n = 0; n < s.N; n++) {
        score_row(call, s, n);
        choose(call, s, n);
        weigh(call, s, n);
    }
    return SH_OK;
}

/* Scratch: the gradients of the logits, then the share of each expert, in double. */
int64_t sh_ref_route_bwd_work_bytes(const struct sh_op_call *call)
{
    return (sh_ref_elems(&call->in[2]) + call->in[5].dim[0]) * (int64_t)sizeof(double);
}

/* ds [E]: w[j] = scale s[j] / sum; of the chosen only. */
static void through_weights(const struct sh_op_call *call, struct shape s, int64_t n, double *ds)
{
    const struct sh_operand *dweight = &call->in[0], *expert = &call->in[1], *score = &call->in[2];
    double sum = call->attr->route.norm ? chosen_sum(score, expert, s, n) : 1, mean = 0;

    for (int64_t j = 0; j < s.k && call->attr->route.norm; j++)
        mean += sh_ref_get(dweight, n * s.k + j) *
                sh_ref_get(score, n * s.E + (int64_t)sh_ref_get(expert, n * s.k + j)) / sum;
    for (int64_t e = 0; e < s.E; e++)
        ds[e] = 0;
    for (int64_t j = 0; j < s.k; j++)
        ds[(int64_t)sh_ref_get(expert, n * s.k + j)] =
            (double)call->attr->route.scale * (sh_ref_get(dweight, n * s.k + j) - mean) / sum;
}

/* The loss aux; p = s / sum of the row if s is a sigmoid, else s. */
static void add_aux(const struct sh_op_call *call, struct shape s, int64_t n, const double *share, double *ds)
{
    double by = (double)call->attr->route.aux * (double)s.E * call->scalars->router_scale, sum = tiny, mean = 0;

    for (int64_t e = 0; e < s.E; e++) {
        sum += sh_ref_get(&call->in[2], n * s.E + e);
        mean += by * share[e] * sh_ref_get(&call->in[2], n * s.E + e);
    }
    for (int64_t e = 0; e < s.E; e++)
        ds[e] += call->attr->route.sigmoid ? (by * share[e] - mean / sum) / sum : by * share[e];
}

/* The loss aux of a row, without its coefficient. */
static double aux_of(const struct sh_op_call *call, int64_t E, int64_t n)
{
    const struct sh_operand *score = &call->in[0], *first = &call->in[1];
    double sum = 0, shared = 0, choices = sh_ref_get(first, E);

    for (int64_t e = 0; e < E; e++) {
        sum += sh_ref_get(score, n * E + e);
        shared += (sh_ref_get(first, e + 1) - sh_ref_get(first, e)) / choices * sh_ref_get(score, n * E + e);
    }
    return (double)E * (call->attr->route.sigmoid ? shared / (sum + tiny) : shared);
}

sh_rc sh_ref_route_loss(const struct sh_op_call *call)
{
    const struct sh_operand *lse = &call->in[2];
    int64_t E = call->in[0].dim[1];
    double aux = 0, z = 0;

    for (int64_t n = 0; n < call->in[0].dim[0]; n++) {
        aux += (double)call->attr->route.aux * aux_of(call, E, n);
        if (call->attr->route.z != 0)
            z += (double)call->attr->route.z * sh_ref_get(lse, n) * sh_ref_get(lse, n);
    }
    sh_ref_sum(call, 0, 0, aux);
    sh_ref_sum(call, 0, 1, z);
    return SH_OK;
}

/* From the gradients of scores to those of logits, in place, and the loss z. */
static void through_scores(const struct sh_op_call *call, struct shape s, int64_t n, double *d)
{
    const struct sh_operand *score = &call->in[2], *lse = &call->in[3];
    double mean = 0, of_lse = 0;

    if (call->attr->route.z != 0)
        of_lse = 2 * (double)call->attr->route.z * call->scalars->router_scale * sh_ref_get(lse, n);
    for (int64_t e = 0; e < s.E; e++)
        mean += d[e] * sh_ref_get(score, n * s.E + e);
    for (int64_t e = 0; e < s.E; e++) {
        double p = sh_ref_get(score, n * s.E + e);
        d[e] = call->attr->route.sigmoid ? d[e] * p * (1 - p) : p * (d[e] - mean + of_lse);
    }
}

/* dx = d w + dres, dw = d' x, db = sums of the columns of d */
static void through_product(const struct sh_op_call *call, struct shape s, const double *d)
{
    const struct sh_operand *x = &call->in[4], *w = &call->in[5], *dres = &call->in[6], *dx = &call->out[0];

    for (int64_t e = 0; call->out[2].data && e < s.E; e++) {
        double sum = 0;
        for (int64_t n = 0; n < s.N; n++)
            sum += d[n * s.E + e];
        sh_ref_sum(call, 2, e, sum);
    }
    for (int64_t i = 0; call->out[1].data && i < s.E * s.C; i++) {
        double sum = 0;
        for (int64_t n = 0; n < s.N; n++)
            sum += d[n * s.E + i / s.C] * sh_ref_get(x, n * s.C + i % s.C);
        sh_ref_sum(call, 1, i, sum);
    }
    for (int64_t i = 0; dx->data && i < s.N * s.C; i++) {
        double sum = dres->data ? sh_ref_get(dres, i) : 0;
        for (int64_t e = 0; e < s.E; e++)
            sum += d[i / s.C * s.E + e] * sh_ref_get(w, e * s.C + i % s.C);
        sh_ref_set(dx, i, sum);
    }
}

sh_rc sh_ref_route_bwd(const struct sh_op_call *call)
{
    struct shape s = shape_of(call, &call->in[5], &call->in[2]);
    double *d = call->work, *share = d + s.N * s.E;

    SH_REQUIRE(call->attr->route.z == 0 || (call->in[3].data && !call->attr->route.sigmoid));
    for (int64_t e = 0; e < s.E; e++)
        share[e] = 0;
    for (int64_t i = 0; i < s.N * s.k; i++)
        share[(int64_t)sh_ref_get(&call->in[1], i)] += 1 / (double)(s.N * s.k);
    for (int64_t n = 0; n < s.N; n++) {
        through_weights(call, s, n, d + n * s.E);
        if (call->attr->route.aux != 0)
            add_aux(call, s, n, share, d + n * s.E);
        through_scores(call, s, n, d + n * s.E);
    }
    through_product(call, s, d);
    return SH_OK;
}
