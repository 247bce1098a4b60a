/* Experts on several ranks. Up to here the micro-step is that of a rank with all experts: rows [M,C] sorted by expert,
 * products of experts over them, and a sum of rows. The rows stay where they are; between them and the sum, the products
 * move to the ranks that have the experts:
 *
 *     home   first of all ranks -> ROUTE_WAVE for each wave
 *     home   rows [M,C] --ALL_TO_ALL--> away  rows [R,C] -> the products over the rows that have come
 *     home   rows [M,C] <--ALL_TO_ALL--       rows [R,C]
 *
 * once for each wave (kernels/op.h). R is a size that the configuration chooses, and there are as many waves as the
 * most lopsided router needs: no row is dropped, and memory does not depend on the routers. A wave without rows has
 * nothing to do.
 *
 * What the backward reads of the forward is kept where the experts are, the rows that have come too, but of the first
 * wave only. Later waves, which are empty unless routers are lopsided, send rows again and compute again. */
#include "src/base/mem.h"
#include "src/pass/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A plan of the model's routers, and how its rows travel. */
struct route {
    const struct sh_op *plan;
    int64_t rows, room; /* M, R */
    int waves;
    int *parts, *groups; /* [waves] tensors */
};

struct dispatch {
    struct sh_program *p;
    const struct sh_mesh_shape *mesh;
    int ranks, stream;
    double capacity;
    struct sh_op *old; /* the original operations */
    int n_old, n_tensors;
    bool *done;     /* [n_old] emitted ahead of its place */
    int *producer;  /* [n_tensors] the original operation of experts that makes it in the forward, SH_NONE */
    int *route;     /* [n_old] of an operation of experts, SH_NONE for others */
    int *maker;     /* [n_tensors] the route of the operation that makes it, SH_NONE */
    bool *wanted;   /* [n_tensors] other operations read it */
    bool *made;     /* [n_tensors] an operation that makes it at home is emitted */
    int *gather;    /* [n_tensors] the original operation that puts its rows in order in the forward, SH_NONE */
    int *sorted;    /* [n_tensors] the same in the order of rows: for numbers of choices, and rows that are put in order
                       again; SH_NONE */
    bool *by_token; /* [n_tensors] it has a number for each choice of a token, not one for each row */
    int **away;     /* [waves] of [n_tensors]: where it is with the experts, SH_NONE */
    int n_waves;    /* of the route with the most */
    int *used;      /* [n_waves] where its use is reported; SH_NONE: it is not */
    struct route *routes;
    int n_routes;
};

/* Operations of one route that follow each other if others are emitted before them. */
struct run {
    const struct route *route;
    int first, last;
    bool *in; /* [last - first + 1] */
};

static int *filled(int n)
{
    int *a = sh_calloc((size_t)n + 1, sizeof *a);

    for (int i = 0; i < n; i++)
        a[i] = SH_NONE;
    return a;
}

/* An activation of the rows of experts, times their weights; and its backward. */
static bool activates_rows(enum sh_op_kind kind)
{
    return kind == SH_OP_SWIGLU_ROWS || kind == SH_OP_SQUARED_RELU_ROWS;
}

static bool activates_rows_bwd(enum sh_op_kind kind)
{
    return kind == SH_OP_SWIGLU_ROWS_BWD || kind == SH_OP_SQUARED_RELU_ROWS_BWD;
}

static bool computes_experts(enum sh_op_kind kind)
{
    return kind == SH_OP_EXPERT_LINEAR || kind == SH_OP_EXPERT_LINEAR_BWD_X || kind == SH_OP_EXPERT_LINEAR_BWD_W ||
           activates_rows(kind) || activates_rows_bwd(kind) || kind == SH_OP_EXPERT_BIAS ||
           kind == SH_OP_EXPERT_BIAS_BWD;
}

/* The route of what makes all its inputs; SH_NONE: there is none, or not one. */
static int route_of_inputs(const struct dispatch *d, const struct sh_op *op)
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
static int find_route(const struct dispatch *d, const struct sh_op *op)
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

static bool reads(const struct dispatch *d, const struct sh_op *op, int root)
{
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] != SH_NONE && sh_tensor_root(d->p, op->in[k]) == root)
            return true;
    return false;
}

/* ---- waves ---- */

/* A rank can receive `most` rows. All waves but the last lack less than a segment, N rows, of being full; and two
 * neighbours together have more rows than fit in one. */
static int most_waves(int64_t most, int64_t room, int64_t segment)
{
    int64_t nearly_full = (most - 1) / (room - segment + 1) + 1, by_pairs = 2 * (most / (room + 1)) + 1;

    return (int)(nearly_full < by_pairs ? nearly_full : by_pairs);
}

/* A token has at most one row for each expert of a rank. */
static void set_waves(const struct dispatch *d, struct route *r)
{
    int64_t k = r->plan->attr.route.chosen, here = r->plan->attr.route.experts / d->ranks, tokens, most;

    r->rows = sh_tensor_elems(&d->p->tensors[r->plan->out[0]]);
    tokens = r->rows / k;
    most = d->ranks * tokens * (k < here ? k : here);
    r->room = (int64_t)ceil(d->capacity * (double)r->rows);
    r->room = r->room < tokens ? tokens : r->room > most ? most : r->room;
    r->waves = most_waves(most, r->room, tokens);
}

static void find_routes(struct dispatch *d)
{
    d->routes = sh_calloc((size_t)d->n_old + 1, sizeof *d->routes);
    for (int i = 0; i < d->n_old; i++) {
        struct route *r = &d->routes[d->n_routes];

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

/* ---- tensors and operations ---- */

static struct sh_op like(const struct sh_op *of, enum sh_op_kind kind)
{
    struct sh_op op = sh_program_op(kind);

    op.phase = of->phase;
    op.block = of->block;
    return op;
}

/* Room for `rows` rows of a tensor that has them for a route. */
static int add_like(struct dispatch *d, int t, const struct route *r, int64_t rows, const char *what, int wave)
{
    const struct sh_tensor *of = &d->p->tensors[t];
    int64_t dim[] = {rows, sh_tensor_elems(of) / r->rows};
    struct sh_tensor made = sh_tensor_make(of->mem, of->dtype, 2, dim, "%.40s.%s.%d", of->name, what, wave);

    return sh_program_add_tensor(d->p, &made);
}

/* Let one wave's rows travel: from the home [M,...] of a tensor to the experts, or back. */
static void exchange(struct dispatch *d, const struct route *r, const struct sh_op *of, int wave, int from, int to,
                     bool back)
{
    struct sh_op op = like(of, SH_OP_ALL_TO_ALL);
    const struct sh_tensor *home = &d->p->tensors[back ? to : from];

    op.stream = d->stream;
    op.attr.group = d->mesh->expert;
    op.attr.exchange.row_elems = sh_tensor_elems(home) / r->rows;
    op.attr.exchange.back = back;
    op.attr.exchange.wave = wave;
    op.attr.exchange.expected = wave ? -1 : r->rows;
    op.attr.accumulate = back && wave; /* the other rows are those of the waves before */
    op.in[0] = from;
    op.in[1] = r->parts[wave];
    op.out[0] = to;
    sh_program_add_op(d->p, &op);
}

/* The same storage as [n,1]. */
static int column(struct dispatch *d, int t)
{
    struct sh_tensor view = d->p->tensors[t];

    view.base = t;
    view.base_elems = 0;
    view.ndim = 2;
    view.dim[0] = sh_tensor_elems(&d->p->tensors[t]);
    view.dim[1] = 1;
    return sh_program_add_tensor(d->p, &view);
}

/* Weights have the order of tokens, rows that of experts; with one column a weight is a row. */
static void by_row(struct dispatch *d, const struct sh_op *of, int from, int order, int to)
{
    struct sh_op op = like(of, SH_OP_ROW_GATHER);

    op.in[0] = column(d, from);
    op.in[1] = order;
    op.out[0] = column(d, to);
    sh_program_add_op(d->p, &op);
}

/* The same storage as [n]. */
static int flat(struct dispatch *d, int t)
{
    struct sh_tensor view = d->p->tensors[t];

    view.base = t;
    view.base_elems = 0;
    view.dim[0] = sh_tensor_elems(&view);
    view.ndim = 1;
    return sh_program_add_tensor(d->p, &view);
}

/* What routers report goes on with the use of each wave. */
static void report_waves(struct dispatch *d)
{
    int port = d->p->port[SH_PORT_ROUTERS];

    d->used = filled(d->n_waves);
    for (int w = 0; w < d->n_waves && port != SH_NONE; w++) {
        struct sh_tensor view = d->p->tensors[port];

        snprintf(view.name, sizeof view.name, "waves.%d", w);
        view.base = port;
        view.base_elems = view.dim[0];
        view.dim[0] = SH_ROUTER_WAVE;
        d->p->tensors[port].dim[0] += SH_ROUTER_WAVE;
        d->used[w] = sh_program_add_tensor(d->p, &view);
    }
}

/* The waves of a route, right after its plan. */
static void plan_waves(struct dispatch *d, const struct route *r)
{
    int64_t experts = r->plan->attr.route.experts;
    struct sh_op gather = like(r->plan, SH_OP_ALL_GATHER);
    struct sh_tensor first = sh_tensor_make(SH_MEM_ACT, SH_I32, 2, (const int64_t[]){d->ranks, experts + 1},
                                            "layers.%d.firsts", r->plan->block);

    gather.stream = d->stream;
    gather.attr.group = d->mesh->expert;
    gather.in[0] = r->plan->out[2];
    gather.out[0] = sh_program_add_tensor(d->p, &first);
    sh_program_add_op(d->p, &gather);
    for (int w = 0; w < r->waves; w++) {
        struct sh_op op = like(r->plan, SH_OP_ROUTE_WAVE);
        struct sh_tensor parts = sh_tensor_make(SH_MEM_ACT, SH_I32, 3, (const int64_t[]){2, d->ranks, d->ranks},
                                                "layers.%d.parts.%d", r->plan->block, w);
        struct sh_tensor groups =
            sh_tensor_make(SH_MEM_ACT, SH_I32, 1, &first.dim[1], "layers.%d.groups.%d", r->plan->block, w);

        op.attr.wave.wave = w;
        op.attr.wave.place = sh_group_index(d->mesh, d->mesh->expert);
        op.attr.wave.room = r->room;
        op.in[0] = gather.out[0];
        op.out[0] = r->parts[w] = sh_program_add_tensor(d->p, &parts);
        op.out[1] = r->groups[w] = sh_program_add_tensor(d->p, &groups);
        op.out[2] = d->used[w];
        op.attr.accumulate = r == d->routes ? 0 : 1 << 2;
        sh_program_add_op(d->p, &op);
    }
}

/* ---- runs ---- */

/* Whether an operation reads what one of the run makes. */
static bool follows(const struct dispatch *d, const struct run *run, const struct sh_op *op)
{
    for (int i = run->first; i <= run->last; i++)
        for (int k = 0; run->in[i - run->first] && k < SH_OP_MAX_OUT; k++)
            if (d->old[i].out[k] != SH_NONE && reads(d, op, sh_tensor_root(d->p, d->old[i].out[k])))
                return true;
    return false;
}

/* From operation i on: those of its route, forward or not, up to the first other one that needs their results. */
static struct run run_from(const struct dispatch *d, int i)
{
    struct run run = {.route = &d->routes[d->route[i]], .first = i, .last = i};
    bool forward = d->old[i].phase == SH_PHASE_FORWARD;

    run.in = sh_calloc((size_t)(d->n_old - i), sizeof *run.in);
    for (int k = i; k < d->n_old; k++) {
        if (!d->done[k] && d->route[k] == d->route[i] && (d->old[k].phase == SH_PHASE_FORWARD) == forward) {
            run.in[k - i] = true;
            run.last = k;
        } else if (follows(d, &run, &d->old[k])) {
            break;
        }
    }
    return run;
}

/* The gradient of a leaf, made when it is first needed. */
static int leaf_grad(struct dispatch *d, int t, int leaf)
{
    struct sh_tensor grad = d->p->tensors[t];

    for (int i = 0; i < d->p->n_tensors && leaf; i++)
        if (d->p->tensors[i].grad_of == grad.grad_of && d->p->tensors[i].leaf == leaf)
            return i;
    grad.leaf = leaf;
    return leaf ? sh_program_add_tensor(d->p, &grad) : t;
}

/* One operation for all groups of rows, or one for the groups of each rank from which they come. */
static void add_weight_gradients(struct dispatch *d, const struct route *r, struct sh_op op, int wave)
{
    int whole = op.out[0], leaves = d->p->units[d->p->params[d->p->tensors[whole].grad_of].unit].leaves;
    int64_t here = r->plan->attr.route.experts / d->ranks;

    op.attr.accumulate |= wave > 0;
    for (int leaf = 0; leaf < leaves; leaf++) {
        struct sh_tensor groups = d->p->tensors[r->groups[wave]];

        if (leaves > 1) {
            groups.base = r->groups[wave];
            groups.base_elems = leaf * here;
            groups.dim[0] = here + 1;
            op.in[op.kind == SH_OP_EXPERT_BIAS_BWD ? 1 : 2] = sh_program_add_tensor(d->p, &groups);
            op.out[0] = leaf_grad(d, whole, leaf);
        }
        sh_program_add_op(d->p, &op);
    }
}

static int need(struct dispatch *d, const struct route *r, const struct sh_op *of, int t, int wave);

/* An operand where the experts are. */
static int operand(struct dispatch *d, const struct route *r, const struct sh_op *of, int t, int wave)
{
    if (t == SH_NONE || t == r->plan->out[0]) /* rows that travel lie in the order of the plan */
        return SH_NONE;
    if (t == r->plan->out[2])
        return r->groups[wave];
    return d->p->tensors[sh_tensor_root(d->p, t)].param == SH_NONE ? need(d, r, of, t, wave) : t;
}

/* An operation over the rows that have come in a wave. */
static void compute(struct dispatch *d, const struct route *r, const struct sh_op *old, enum sh_phase phase, int wave)
{
    struct sh_op op = *old;

    op.phase = phase;
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        op.in[k] = operand(d, r, &op, old->in[k], wave);
    if (op.kind == SH_OP_ADD) {
        op.kind = SH_OP_ROW_ADD;
        op.in[2] = r->groups[wave];
    }
    if (sh_op_has_rows(op.kind))
        op.attr.rows.expected = wave ? -1 : r->rows;
    if (activates_rows(op.kind))
        op.in[3] = r->groups[wave];
    if (activates_rows_bwd(op.kind))
        op.in[4] = r->groups[wave];
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op.out[k] != SH_NONE && d->p->tensors[op.out[k]].grad_of == SH_NONE)
            d->away[wave][old->out[k]] = op.out[k] = add_like(d, old->out[k], r, r->room, "wave", wave);
    if (op.out[0] != SH_NONE && d->p->tensors[op.out[0]].grad_of != SH_NONE)
        add_weight_gradients(d, r, op, wave);
    else
        sh_program_add_op(d->p, &op);
}

/* What is sent of a tensor. The backward of later waves, which mostly have no rows, does not keep rows in order for that:
 * there are k times as many as tokens, and the first wave's are kept where they went. */
static int at_home(struct dispatch *d, const struct route *r, const struct sh_op *of, int t, int wave)
{
    bool again = wave && of->phase != SH_PHASE_FORWARD && d->gather[t] != SH_NONE;
    struct sh_op op;

    if (!again && !d->by_token[t])
        return t;
    if (d->sorted[t] != SH_NONE)
        return d->sorted[t];
    d->sorted[t] = add_like(d, t, r, r->rows, "rows", wave);
    if (!again) {
        by_row(d, of, t, r->plan->out[0], d->sorted[t]);
        return d->sorted[t];
    }
    op = d->old[d->gather[t]];
    op.phase = SH_PHASE_RECOMPUTE;
    op.out[0] = d->sorted[t];
    sh_program_add_op(d->p, &op);
    return d->sorted[t];
}

/* A tensor where the experts are: it is there; or it is computed again; or it is sent. */
static int need(struct dispatch *d, const struct route *r, const struct sh_op *of, int t, int wave)
{
    int home;

    if (d->away[wave][t] != SH_NONE)
        return d->away[wave][t];
    if (d->producer[t] != SH_NONE) {
        compute(d, r, &d->old[d->producer[t]], SH_PHASE_RECOMPUTE, wave);
        return d->away[wave][t];
    }
    home = at_home(d, r, of, t, wave);
    d->away[wave][t] = add_like(d, t, r, r->room, "wave", wave);
    exchange(d, r, of, wave, home, d->away[wave][t], false);
    return d->away[wave][t];
}

/* Let the results of a wave that are wanted at home travel back.
 *   home  [n_tensors] where they arrive, SH_NONE: not known yet */
static void bring_home(struct dispatch *d, const struct run *run, int i, int wave, int *home)
{
    const struct sh_op *op = &d->old[i];

    for (int k = 0; k < SH_OP_MAX_OUT; k++) {
        int t = op->out[k];

        if (t == SH_NONE || d->p->tensors[t].grad_of != SH_NONE || !d->wanted[t])
            continue;
        if (home[t] == SH_NONE)
            home[t] = d->by_token[t] ? add_like(d, t, run->route, run->route->rows, "rows", 0) : t;
        exchange(d, run->route, op, wave, d->away[wave][t], home[t], true);
    }
}

/* Let what a run needs of other operations travel, if it is there: first what is needed first. */
static void send_ahead(struct dispatch *d, const struct run *run, int wave)
{
    for (int i = run->first; i <= run->last; i++)
        for (int k = 0; run->in[i - run->first] && k < SH_OP_MAX_IN; k++) {
            int t = d->old[i].in[k];

            if (t != SH_NONE && t != run->route->plan->out[0] && t != run->route->plan->out[2] && d->made[t])
                need(d, run->route, &d->old[i], t, wave);
        }
}

/* Only what the first wave has stays. */
static void forget(struct dispatch *d)
{
    for (int w = 1; w < d->n_waves; w++)
        for (int t = 0; t < d->n_tensors; t++)
            d->away[w][t] = SH_NONE;
}

/* All waves of a run, one after the other. What comes back is complete after the last one. */
static void emit_waves(struct dispatch *d, const struct run *run)
{
    int *home = filled(d->n_tensors);

    for (int w = 0; w < run->route->waves; w++) {
        send_ahead(d, run, w);
        for (int i = run->first; i <= run->last; i++)
            if (run->in[i - run->first])
                compute(d, run->route, &d->old[i], d->old[i].phase, w);
        for (int i = run->first; i <= run->last; i++)
            if (run->in[i - run->first])
                bring_home(d, run, i, w, home);
    }
    for (int i = run->first; i <= run->last; i++)
        for (int k = 0; run->in[i - run->first] && k < SH_OP_MAX_OUT; k++) {
            int t = d->old[i].out[k];

            if (t != SH_NONE && home[t] != SH_NONE && home[t] != t)
                by_row(d, &d->old[i], home[t], flat(d, run->route->plan->out[1]), t);
        }
    forget(d);
    free(home);
}

static void emit(struct dispatch *d, int i);

static void emit_run(struct dispatch *d, int i)
{
    struct run run = run_from(d, i);

    for (int k = run.first; k <= run.last; k++)
        if (!run.in[k - run.first])
            emit(d, k);
        else
            d->done[k] = true;
    emit_waves(d, &run);
    free(run.in);
}

/* Rows start to travel as soon as they are there: while others are gathered, and the expert that each rank has may compute
 * meanwhile. */
static void send_early(struct dispatch *d, int gather)
{
    for (int i = gather + 1; i < d->n_old && d->old[i].block == d->old[gather].block; i++) {
        const struct route *r = d->route[i] == SH_NONE ? NULL : &d->routes[d->route[i]];
        struct run run;

        if (!r || d->done[i] || r->plan->out[0] != d->old[gather].in[1])
            continue;
        run = run_from(d, i);
        send_ahead(d, &run, 0);
        free(run.in);
        return;
    }
}

static void emit(struct dispatch *d, int i)
{
    const struct sh_op *op = &d->old[i];

    if (d->done[i])
        return;
    if (d->route[i] != SH_NONE) {
        emit_run(d, i);
        return;
    }
    d->done[i] = true;
    if (op->kind == SH_OP_ROW_GATHER)
        send_early(d, i);
    sh_program_add_op(d->p, op);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE && d->p->tensors[op->out[k]].grad_of == SH_NONE)
            d->made[op->out[k]] = true;
    for (int r = 0; r < d->n_routes; r++)
        if (d->routes[r].plan == op)
            plan_waves(d, &d->routes[r]);
    if (op->kind == SH_OP_ROW_GATHER)
        send_early(d, i);
}

/* ---- the pass ---- */

/* What there is to know of tensors before anything is emitted. */
static void note_tensors(struct dispatch *d)
{
    for (int i = 0; i < d->n_old; i++) {
        const struct sh_op *op = &d->old[i];
        bool bwd = activates_rows_bwd(op->kind), bias = op->kind == SH_OP_EXPERT_BIAS_BWD;
        int weight = bwd                                     ? op->in[2]
                     : activates_rows(op->kind)              ? op->in[1]
                     : bias || op->kind == SH_OP_EXPERT_BIAS ? op->in[3]
                                                             : SH_NONE;

        d->route[i] = find_route(d, op);
        if (op->kind == SH_OP_ROW_GATHER && op->phase == SH_PHASE_FORWARD)
            d->gather[op->out[0]] = i;
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            if (op->out[k] != SH_NONE)
                d->maker[op->out[k]] = d->route[i];
        for (int k = 0; k < SH_OP_MAX_IN && d->route[i] == SH_NONE; k++)
            if (op->in[k] != SH_NONE)
                d->wanted[sh_tensor_root(d->p, op->in[k])] = true;
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

static void open_dispatch(struct dispatch *d)
{
    d->old = sh_calloc((size_t)d->p->n_ops + 1, sizeof *d->old);
    memcpy(d->old, d->p->ops, (size_t)d->p->n_ops * sizeof *d->old);
    d->n_old = d->p->n_ops;
    d->n_tensors = d->p->n_tensors;
    d->done = sh_calloc((size_t)d->n_old + 1, sizeof *d->done);
    d->route = sh_calloc((size_t)d->n_old + 1, sizeof *d->route);
    d->wanted = sh_calloc((size_t)d->n_tensors + 1, sizeof *d->wanted);
    d->made = sh_calloc((size_t)d->n_tensors + 1, sizeof *d->made);
    d->by_token = sh_calloc((size_t)d->n_tensors + 1, sizeof *d->by_token);
    d->producer = filled(d->n_tensors);
    d->gather = filled(d->n_tensors);
    d->maker = filled(d->n_tensors);
    d->sorted = filled(d->n_tensors);
    find_routes(d);
    note_tensors(d);
    report_waves(d);
    d->away = sh_calloc((size_t)d->n_waves + 1, sizeof *d->away);
    for (int w = 0; w < d->n_waves; w++)
        d->away[w] = filled(d->n_tensors);
}

static void close_dispatch(struct dispatch *d)
{
    for (int w = 0; w < d->n_waves; w++)
        free(d->away[w]);
    for (int r = 0; r < d->n_routes; r++) {
        free(d->routes[r].parts);
        free(d->routes[r].groups);
    }
    free(d->routes);
    free(d->away);
    free(d->used);
    free(d->producer);
    free(d->gather);
    free(d->maker);
    free(d->sorted);
    free(d->by_token);
    free(d->wanted);
    free(d->made);
    free(d->route);
    free(d->done);
    free(d->old);
}

sh_rc sh_pass_dispatch(const struct sh_build *b, struct sh_program *p)
{
    const struct sh_mesh_shape *mesh = &b->options.mesh;
    struct dispatch d = {
        .p = p, .mesh = mesh, .ranks = sh_group_size(mesh, mesh->expert), .capacity = b->batch.spread.capacity};

    if (d.ranks == 1)
        return SH_OK;
    d.stream = sh_program_add_stream(p, "dispatch", SH_RUNS_COLLECTIVES);
    open_dispatch(&d);
    if (d.n_routes == 0 && p->port[SH_PORT_ROUTERS] != SH_NONE) {
        close_dispatch(&d);
        return sh_fail(SH_E_USAGE,
                       "parallelism.pipeline_parallel_degree=%d: stage %d has no block with experts, which "
                       "parallelism.expert_parallel_degree=%d asks of each; give fewer stages",
                       sh_group_size(mesh, mesh->pipeline), sh_group_index(mesh, mesh->pipeline), d.ranks);
    }
    p->n_ops = 0;
    for (int i = 0; i < d.n_old; i++)
        emit(&d, i);
    close_dispatch(&d);
    return SH_OK;
}
