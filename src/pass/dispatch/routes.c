/* Which operations are those of experts, by the plan that they follow, and how many waves its rows need. */
#include "src/pass/dispatch/dispatch.h"

#include "src/base/mem.h"

#include <math.h>

/* An activation of the rows of experts, times their weights; and its backward. */
bool sh_dispatch_activates(enum sh_op_kind kind)
{
    return kind == SH_OP_SWIGLU_ROWS || kind == SH_OP_SQUARED_RELU_ROWS;
}

bool sh_dispatch_activates_back(enum sh_op_kind kind)
{
    return kind == SH_OP_SWIGLU_ROWS_BWD || kind == SH_OP_SQUARED_RELU_ROWS_BWD;
}

static bool computes_experts(enum sh_op_kind kind)
{
    return kind == SH_OP_EXPERT_LINEAR || kind == SH_OP_EXPERT_LINEAR_BWD_X || kind == SH_OP_EXPERT_LINEAR_BWD_W ||
           sh_dispatch_activates(kind) || sh_dispatch_activates_back(kind) || kind == SH_OP_EXPERT_BIAS ||
           kind == SH_OP_EXPERT_BIAS_BWD;
}

/* The route of what makes all its inputs; SH_NONE: there is none, or not one. */
static int route_of_inputs(const struct sh_dispatch *d, const struct sh_op *op)
{
    int route = SH_NONE;

    for (int k = 0; k < SH_OP_MAX_IN; k++) {
        int from = op->in[k] == SH_NONE ? SH_NONE : d->maker[op->in[k]];

        if (op->in[k] == SH_NONE)
            continue;
        if (from == SH_NONE || (route != SH_NONE && route != from))
            return SH_NONE;
        route = from;
    }
    return route;
}

/* The route whose plan an operation of experts follows; SH_NONE: it is another operation, or that of an expert which
 * each rank has. Adapters scale rows and add them. */
static int find_route(const struct sh_dispatch *d, const struct sh_op *op)
{
    if (op->kind == SH_OP_ADD || op->kind == SH_OP_SCALE)
        return route_of_inputs(d, op);
    for (int r = 0; r < d->n_routes && computes_experts(op->kind); r++)
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            if (op->in[k] != SH_NONE &&
                (op->in[k] == d->routes[r].plan->out[0] || op->in[k] == d->routes[r].plan->out[2]))
                return r;
    return SH_NONE;
}

/* A rank can receive `most` rows. All waves but the last lack less than a segment, N rows, of being full; and two
 * neighbours together have more rows than fit in one. */
static int most_waves(int64_t most, int64_t room, int64_t segment)
{
    int64_t nearly_full = (most - 1) / (room - segment + 1) + 1, by_pairs = 2 * (most / (room + 1)) + 1;

    return (int)(nearly_full < by_pairs ? nearly_full : by_pairs);
}

/* A token has at most one row for each expert of a rank. */
static void set_waves(const struct sh_dispatch *d, struct sh_dispatch_route *r)
{
    int64_t k = r->plan->attr.route.chosen, here = r->plan->attr.route.experts / d->ranks, tokens, most;

    r->rows = sh_tensor_elems(&d->p->tensors[r->plan->out[0]]);
    tokens = r->rows / k;
    most = d->ranks * tokens * (k < here ? k : here);
    r->room = (int64_t)ceil(d->capacity * (double)r->rows);
    r->room = r->room < tokens ? tokens : r->room > most ? most : r->room;
    r->waves = most_waves(most, r->room, tokens);
}

void sh_dispatch_find_routes(struct sh_dispatch *d)
{
    d->routes = sh_calloc((size_t)d->n_old + 1, sizeof *d->routes);
    for (int i = 0; i < d->n_old; i++) {
        struct sh_dispatch_route *r = &d->routes[d->n_routes];

        if (d->old[i].kind != SH_OP_ROUTE_PLAN || d->old[i].attr.route.experts < d->ranks)
            continue;
        r->plan = &d->old[i];
        set_waves(d, r);
        r->parts = sh_calloc((size_t)r->waves, sizeof *r->parts);
        r->groups = sh_calloc((size_t)r->waves, sizeof *r->groups);
        d->n_waves = r->waves > d->n_waves ? r->waves : d->n_waves;
        d->n_routes++;
    }
}

/* The route of whose plan a tensor is result k. */
const struct sh_dispatch_route *sh_dispatch_route_of_plan(const struct sh_dispatch *d, int t, int k)
{
    for (int r = 0; r < d->n_routes; r++)
        if (d->routes[r].plan->out[k] == t)
            return &d->routes[r];
    return NULL;
}

/* What there is to know of tensors before anything is emitted. */
void sh_dispatch_note_tensors(struct sh_dispatch *d)
{
    for (int i = 0; i < d->n_old; i++) {
        const struct sh_op *op = &d->old[i];
        bool bwd = sh_dispatch_activates_back(op->kind), bias = op->kind == SH_OP_EXPERT_BIAS_BWD;
        int weight = bwd                                     ? op->in[2]
                     : sh_dispatch_activates(op->kind)       ? op->in[1]
                     : bias || op->kind == SH_OP_EXPERT_BIAS ? op->in[3]
                                                             : SH_NONE;

        d->route[i] = find_route(d, op);
        if (op->kind == SH_OP_ROW_GATHER && op->phase == SH_PHASE_FORWARD)
            d->gather[op->out[0]] = i;
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            if (op->out[k] != SH_NONE)
                d->maker[op->out[k]] = d->route[i];
        for (int k = 0; k < SH_OP_MAX_IN && d->route[i] == SH_NONE; k++)
            if (op->in[k] != SH_NONE) {
                int root = sh_tensor_root(d->p, op->in[k]);
                bool sums = op->kind == SH_OP_ROW_SUM && k == 0 && root == op->in[k];

                d->wanted[root] = true;
                d->whole[root] |= !sums || !sh_dispatch_route_of_plan(d, op->in[1], 1);
            }
        if (d->route[i] == SH_NONE)
            continue;
        for (int k = 0; k < SH_OP_MAX_OUT && op->phase == SH_PHASE_FORWARD; k++)
            if (op->out[k] != SH_NONE)
                d->producer[op->out[k]] = i;
        if (weight != SH_NONE)
            d->by_token[weight] = true;
        if ((bwd || bias) && op->out[1] != SH_NONE)
            d->by_token[op->out[1]] = true;
    }
}
