#include "src/run/measure/walk.h"

#include "src/base/mem.h"
#include "src/run/run.h"

#include <stdlib.h>

/* Micro-steps of stages overlap, and what one makes reaches others later. What is outside of blocks comes before them on the
 * first stage, and after them on the last; sums of units come last. */
int64_t sh_walk_place(const struct sh_run *r, int op, int micro)
{
    enum { MOST_OPS = 1 << 28 };
    const struct sh_program *p = r->p;
    const struct sh_mesh_shape *m = &r->mesh->shape;
    const struct sh_op *o = &p->ops[op];
    int64_t layers = r->build.model.n_layers + 1, outside = sh_group_index(m, m->pipeline) ? layers : 0;
    int64_t depth = o->block == SH_NONE ? outside : o->block + 1, at = micro;

    if (p->unrolled == 1 && sh_group_size(m, m->pipeline) == 1)
        return at * p->n_ops + op;
    if (o->unit != SH_NONE)
        at = p->unrolled;
    if (o->phase != SH_PHASE_FORWARD)
        depth = 2 * layers - depth;
    return (at * 2 * (layers + 1) + depth) * MOST_OPS + op;
}

/* ---- rows that have come ---- */

/* In place of groups: some rows are elsewhere, or are not there yet. */
enum { SCATTERED = -2 };

static int root_of(const struct sh_walk_rows *w, int tensor)
{
    return sh_tensor_root(w->r->p, tensor);
}

/* The groups that say how many rows of what an operation makes are there; SH_NONE: all are. They stay with what is computed
 * row by row, of which only some operations are told. */
static int groups_of(const struct sh_walk_rows *w, const int *groups_of_parts, const struct sh_op *op, int out)
{
    const struct sh_program *p = w->r->p;

    if (op->kind == SH_OP_ROW_GATHER || op->kind == SH_OP_ROW_SUM)
        return SH_NONE;
    if (op->kind == SH_OP_ALL_TO_ALL)
        return op->in[1] == SH_NONE || op->attr.exchange.back ? SH_NONE : groups_of_parts[root_of(w, op->in[1])];
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] != SH_NONE && w->wave[root_of(w, op->in[k])] != SH_NONE &&
            p->tensors[op->in[k]].dim[0] == p->tensors[op->out[out]].dim[0] &&
            p->tensors[op->out[out]].grad_of == SH_NONE)
            return w->wave[root_of(w, op->in[k])];
    return SH_NONE;
}

void sh_walk_rows_make(struct sh_walk_rows *w, const struct sh_run *r)
{
    const struct sh_program *p = r->p;
    int *of_parts = sh_calloc((size_t)p->n_tensors, sizeof *of_parts);

    *w = (struct sh_walk_rows){.r = r,
                               .wave = sh_calloc((size_t)p->n_tensors, sizeof *w->wave),
                               .live = sh_calloc((size_t)p->n_tensors, sizeof *w->live)};
    for (int i = 0; i < p->n_tensors; i++)
        of_parts[i] = w->wave[i] = SH_NONE;
    for (int i = 0; i < p->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];

        if (op->kind == SH_OP_ROUTE_WAVE)
            of_parts[root_of(w, op->out[0])] = root_of(w, op->out[1]);
        for (int k = 0; k < SH_OP_MAX_OUT && op->kind != SH_OP_ROUTE_WAVE; k++)
            if (op->out[k] != SH_NONE && groups_of(w, of_parts, op, k) != SH_NONE)
                w->wave[root_of(w, op->out[k])] = groups_of(w, of_parts, op, k);
    }
    for (int i = 0; i < p->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];

        if (op->kind == SH_OP_ROW_GATHER && op->out[1] != SH_NONE)
            w->wave[root_of(w, op->out[0])] = SCATTERED;
        if (op->kind == SH_OP_ROW_SUM && op->in[3] != SH_NONE)
            w->wave[root_of(w, op->in[0])] = SCATTERED;
    }
    free(of_parts);
}

void sh_walk_rows_free(struct sh_walk_rows *w)
{
    free(w->wave);
    free(w->live);
    *w = (struct sh_walk_rows){0};
}

void sh_walk_rows_note(struct sh_walk_rows *w, int op)
{
    const struct sh_op *o = &w->r->p->ops[op];
    const struct sh_tensor *t;
    const int32_t *end;
    int32_t rows;

    if (o->kind != SH_OP_ROUTE_WAVE)
        return;
    t = &w->r->p->tensors[o->out[1]];
    end = (const int32_t *)sh_exec_data(w->r->exec, o->out[1]) + sh_tensor_elems(t) - 1;
    if (w->r->device->gpu)
        sh_exec_get_at(w->r->exec, &rows, end, sizeof rows);
    else
        rows = *end;
    w->live[root_of(w, o->out[1])] = rows;
}

static int64_t elems_of(const struct sh_walk_rows *w, int tensor)
{
    const struct sh_tensor *t = &w->r->p->tensors[tensor];
    int64_t all = sh_tensor_elems(t);
    int wave = w->wave[root_of(w, tensor)];
    int64_t live = wave == SCATTERED ? 0 : wave == SH_NONE ? t->dim[0] : w->live[wave];

    return all / t->dim[0] * (live < 0 ? 0 : live > t->dim[0] ? t->dim[0] : live);
}

static int64_t number(const struct sh_walk_rows *w, int tensor, int64_t i)
{
    const int32_t *at = (const int32_t *)sh_exec_data(w->r->exec, tensor) + i;
    int32_t n;

    if (!w->r->device->gpu)
        return *at;
    sh_exec_get_at(w->r->exec, &n, at, sizeof n);
    return n;
}

/* The tensors of sorted rows, some of which are near (kernels/op.h). */
struct two_places {
    int rows, near, at, groups;
};

void sh_walk_rows_parts(const struct sh_walk_rows *w, const struct sh_op *op, int tensor, struct sh_walk_part part[2])
{
    const struct sh_tensor *t = &w->r->p->tensors[tensor];
    struct two_places two = {.near = SH_NONE};
    int64_t width = sh_tensor_elems(t) / t->dim[0], first, at, n;

    part[0] = (struct sh_walk_part){0, elems_of(w, tensor)};
    part[1] = (struct sh_walk_part){0, 0};
    if (op->kind == SH_OP_EXPERT_BIAS_BWD &&
        tensor == op->out[1]) { /* one operation for each leaf: only its groups' rows */
        part[0].begin = number(w, op->in[1], 0) * width;
        part[0].end = number(w, op->in[1], w->r->p->tensors[op->in[1]].dim[0] - 1) * width;
        return;
    }
    if (op->kind == SH_OP_ROW_GATHER)
        two = (struct two_places){op->out[0], op->out[1], op->in[2], op->in[3]};
    else if (op->kind == SH_OP_ROW_SUM)
        two = (struct two_places){op->in[0], op->in[3], op->in[4], op->in[5]};
    if (two.near == SH_NONE || (tensor != two.rows && tensor != two.near))
        return;
    at = number(w, two.at, 0);
    first = number(w, two.groups, 0);
    n = number(w, two.groups, w->r->p->tensors[two.groups].dim[0] - 1) - first;
    part[0] = (struct sh_walk_part){0, at * width};
    part[1] = (struct sh_walk_part){(at + n) * width, sh_tensor_elems(t)};
    if (tensor == two.near) {
        part[0] = (struct sh_walk_part){first * width, (first + n) * width};
        part[1] = (struct sh_walk_part){0, 0};
    }
}
