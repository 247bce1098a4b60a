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
 * Of the first wave, a rank's rows for its own experts do not travel: they are put in order where the experts read them, and
 * summed from where the experts leave them (near in kernels/op.h). For others, rows are copied once.
 *
 * What the backward reads of the forward is kept where the experts are, the rows that have come too, but of the first
 * wave only. Later waves, which are empty unless routers are lopsided, send rows again and compute again. */
#include "src/pass/dispatch/dispatch.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

static bool reads(const struct sh_dispatch *d, const struct sh_op *op, int root)
{
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] != SH_NONE && sh_tensor_root(d->p, op->in[k]) == root)
            return true;
    return false;
}

/* Whether an operation reads what one of the run makes. */
static bool follows(const struct sh_dispatch *d, const struct sh_dispatch_run *run, const struct sh_op *op)
{
    for (int i = run->first; i <= run->last; i++)
        for (int k = 0; run->in[i - run->first] && k < SH_OP_MAX_OUT; k++)
            if (d->old[i].out[k] != SH_NONE && reads(d, op, sh_tensor_root(d->p, d->old[i].out[k])))
                return true;
    return false;
}

/* From operation i on: those of its route, forward or not, up to the first other one that needs their results. */
static struct sh_dispatch_run run_from(const struct sh_dispatch *d, int i)
{
    struct sh_dispatch_run run = {.route = &d->routes[d->route[i]], .first = i, .last = i};
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

static void emit(struct sh_dispatch *d, int i);

static void emit_run(struct sh_dispatch *d, int i)
{
    struct sh_dispatch_run run = run_from(d, i);

    for (int k = run.first; k <= run.last; k++)
        if (!run.in[k - run.first])
            emit(d, k);
        else
            d->done[k] = true;
    sh_dispatch_emit_waves(d, &run);
    free(run.in);
}

/* Rows start to travel as soon as they are there: while others are gathered, and the expert that each rank has may compute
 * meanwhile. */
static void send_early(struct sh_dispatch *d, int gather)
{
    for (int i = gather + 1; i < d->n_old && d->old[i].block == d->old[gather].block; i++) {
        const struct sh_dispatch_route *r = d->route[i] == SH_NONE ? NULL : &d->routes[d->route[i]];
        struct sh_dispatch_run run;

        if (!r || d->done[i] || r->plan->out[0] != d->old[gather].in[1])
            continue;
        run = run_from(d, i);
        sh_dispatch_send_ahead(d, &run, 0);
        free(run.in);
        return;
    }
}

static void emit(struct sh_dispatch *d, int i)
{
    const struct sh_op *op = &d->old[i];
    struct sh_op made = *op;

    if (d->done[i])
        return;
    if (d->route[i] != SH_NONE) {
        emit_run(d, i);
        return;
    }
    d->done[i] = true;
    if (op->kind == SH_OP_ROW_GATHER) {
        send_early(d, i);
        sh_dispatch_gather_near(d, &made);
    } else if (op->kind == SH_OP_ROW_SUM) {
        sh_dispatch_sum_near(d, &made);
    }
    sh_program_add_op(d->p, &made);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE && d->p->tensors[op->out[k]].grad_of == SH_NONE)
            d->made[op->out[k]] = true;
    for (int r = 0; r < d->n_routes; r++)
        if (d->routes[r].plan == op)
            sh_dispatch_plan_waves(d, &d->routes[r]);
    if (op->kind == SH_OP_ROW_GATHER)
        send_early(d, i);
}

static void open_dispatch(struct sh_dispatch *d)
{
    d->old = sh_calloc((size_t)d->p->n_ops + 1, sizeof *d->old);
    memcpy(d->old, d->p->ops, (size_t)d->p->n_ops * sizeof *d->old);
    d->n_old = d->p->n_ops;
    d->n_tensors = d->p->n_tensors;
    d->done = sh_calloc((size_t)d->n_old + 1, sizeof *d->done);
    d->route = sh_calloc((size_t)d->n_old + 1, sizeof *d->route);
    d->wanted = sh_calloc((size_t)d->n_tensors + 1, sizeof *d->wanted);
    d->whole = sh_calloc((size_t)d->n_tensors + 1, sizeof *d->whole);
    d->made = sh_calloc((size_t)d->n_tensors + 1, sizeof *d->made);
    d->by_token = sh_calloc((size_t)d->n_tensors + 1, sizeof *d->by_token);
    d->producer = sh_program_nones(d->n_tensors);
    d->gather = sh_program_nones(d->n_tensors);
    d->near = sh_program_nones(d->n_tensors);
    d->maker = sh_program_nones(d->n_tensors);
    d->sorted = sh_program_nones(d->n_tensors);
    sh_dispatch_find_routes(d);
    sh_dispatch_note_tensors(d);
    sh_dispatch_report_waves(d);
    d->away = sh_calloc((size_t)d->n_waves + 1, sizeof *d->away);
    for (int w = 0; w < d->n_waves; w++)
        d->away[w] = sh_program_nones(d->n_tensors);
}

static void close_dispatch(struct sh_dispatch *d)
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
    free(d->whole);
    free(d->near);
    free(d->made);
    free(d->route);
    free(d->done);
    free(d->old);
}

sh_rc sh_pass_dispatch(const struct sh_build *b, struct sh_program *p)
{
    const struct sh_mesh_shape *mesh = &b->options.mesh;
    struct sh_dispatch d = {
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
