/* How rows travel between their homes and the experts, and which do not. */
#include "src/pass/dispatch/dispatch.h"

#include <stdio.h>

static struct sh_op like(const struct sh_op *of, enum sh_op_kind kind)
{
    struct sh_op op = sh_program_op(kind);

    op.phase = of->phase;
    op.block = of->block;
    return op;
}

/* Room for `rows` rows of a tensor that has them for a route. */
int sh_dispatch_add_like(struct sh_dispatch *d, int t, const struct sh_dispatch_route *r, int64_t rows,
                         const char *what, int wave)
{
    const struct sh_tensor *of = &d->p->tensors[t];
    int64_t dim[] = {rows, sh_tensor_elems(of) / r->rows};
    struct sh_tensor made = sh_tensor_make(of->mem, of->dtype, 2, dim, "%.40s.%s.%d", of->name, what, wave);

    return sh_program_add_tensor(d->p, &made);
}

/* Of what is added by this pass, all rows travel. */
static int near_of(const struct sh_dispatch *d, int t)
{
    return t < d->n_tensors ? d->near[t] : SH_NONE;
}

/* Let one wave's rows travel: from the home [M,...] of a tensor to the experts, or back. */
void sh_dispatch_exchange(struct sh_dispatch *d, const struct sh_dispatch_route *r, const struct sh_op *of, int wave,
                          int from, int to, bool back)
{
    struct sh_op op = like(of, SH_OP_ALL_TO_ALL);
    const struct sh_tensor *home = &d->p->tensors[back ? to : from];

    op.stream = d->stream;
    op.attr.group = d->mesh->expert;
    op.attr.exchange.row_elems = sh_tensor_elems(home) / r->rows;
    op.attr.exchange.back = back;
    op.attr.exchange.wave = wave;
    op.attr.exchange.expected = wave ? -1 : r->rows;
    op.attr.exchange.others = wave == 0 && near_of(d, back ? to : from) != SH_NONE;
    op.attr.accumulate = back ? wave > 0 : op.attr.exchange.others; /* the other rows are there already */
    op.in[0] = from;
    op.in[1] = r->parts[wave];
    op.out[0] = to;
    sh_program_add_op(d->p, &op);
}

/* Elements [first, first + n) of a tensor. */
int sh_dispatch_slice(struct sh_dispatch *d, int t, int64_t first, int64_t n)
{
    struct sh_tensor view = d->p->tensors[t];

    view.base = t;
    view.base_elems = first;
    view.ndim = 1;
    view.dim[0] = n;
    return sh_program_add_tensor(d->p, &view);
}

/* The same storage as [n,1]. */
static int column(struct sh_dispatch *d, int t)
{
    int view = sh_dispatch_slice(d, t, 0, sh_tensor_elems(&d->p->tensors[t]));

    d->p->tensors[view].ndim = 2;
    d->p->tensors[view].dim[1] = 1;
    return view;
}

/* Weights have the order of tokens, rows that of experts; with one column a weight is a row. */
void sh_dispatch_by_row(struct sh_dispatch *d, const struct sh_op *of, int from, int order, int to)
{
    struct sh_op op = like(of, SH_OP_ROW_GATHER);

    op.in[0] = column(d, from);
    op.in[1] = order;
    op.out[0] = column(d, to);
    sh_program_add_op(d->p, &op);
}

/* What routers report goes on with the use of each wave. */
void sh_dispatch_report_waves(struct sh_dispatch *d)
{
    int port = d->p->port[SH_PORT_ROUTERS];

    d->used = sh_program_nones(d->n_waves);
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

/* The waves of a route, right after its plan. Of a rank's own experts the first wave has the first rows, if any. */
void sh_dispatch_plan_waves(struct sh_dispatch *d, struct sh_dispatch_route *r)
{
    int64_t experts = r->plan->attr.route.experts, here = experts / d->ranks;
    int64_t own = sh_group_index(d->mesh, d->mesh->expert) * here;
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
    r->own_first = sh_dispatch_slice(d, r->plan->out[2], own, 1);
    r->own_groups = sh_dispatch_slice(d, r->groups[0], own, here + 1);
}

/* Put rows of this rank for its own experts where those read them, unless others read them too, or they have travelled. */
void sh_dispatch_gather_near(struct sh_dispatch *d, struct sh_op *op)
{
    const struct sh_dispatch_route *r = sh_dispatch_route_of_plan(d, op->in[1], 0);
    int t = op->out[0];

    if (!r || d->whole[t] || d->away[0][t] != SH_NONE)
        return;
    op->out[1] = d->near[t] = sh_dispatch_add_like(d, t, r, r->room, "wave", 0);
    op->in[2] = r->own_first;
    op->in[3] = r->own_groups;
}

void sh_dispatch_sum_near(const struct sh_dispatch *d, struct sh_op *op)
{
    const struct sh_dispatch_route *r = sh_dispatch_route_of_plan(d, op->in[1], 1);

    if (!r || d->near[op->in[0]] == SH_NONE)
        return;
    op->in[3] = d->near[op->in[0]];
    op->in[4] = r->own_first;
    op->in[5] = r->own_groups;
}
