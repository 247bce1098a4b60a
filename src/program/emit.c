/* Each sh_emit_ function adds one operation and returns its output, so that a model family reads as arithmetic. B is
 * the batch of one rank, T the sequence length, H the hidden size. Operations on rows see [B*T,H]; those that need the
 * sequence see [B,T,H] of the same memory through a view. Nothing here knows ranks or memory: passes fill those in
 * later. This file has units, parameters, views, inputs and messages; emit_*.c have the operations. */
#include "src/program/emit_op.h"

/* The name that `sherd plan` prints: with the block in front, unless the operation belongs to no block. */
int sh_emit_tensor(struct sh_emit *e, enum sh_mem mem, enum sh_dtype dtype, int ndim, const int64_t *dim,
                   const char *what)
{
    struct sh_tensor t = e->block == SH_NONE ? sh_tensor_make(mem, dtype, ndim, dim, "%s", what)
                                             : sh_tensor_make(mem, dtype, ndim, dim, "layers.%d.%s", e->block, what);

    return sh_program_add_tensor(e->p, &t);
}

/* Activations have the compute type (bf16 or f32); statistics such as rstd are f32 and are not made here. */
int sh_emit_act(struct sh_emit *e, int ndim, const int64_t *dim, const char *what)
{
    return sh_emit_tensor(e, SH_MEM_ACT, e->p->act, ndim, dim, what);
}

/* Everything emitted here is forward; the gradient pass derives the backward operations from it. */
struct sh_op sh_emit_op(const struct sh_emit *e, enum sh_op_kind kind, int n, const int *in)
{
    struct sh_op op = sh_program_op(kind);

    op.phase = SH_PHASE_FORWARD;
    op.block = e->block;
    for (int i = 0; i < n; i++)
        op.in[i] = in[i];
    return op;
}

int sh_emit_append(struct sh_emit *e, const struct sh_op *op)
{
    sh_program_add_op(e->p, op);
    return op->out[0];
}

int sh_emit_out(struct sh_emit *e, struct sh_op *op, const int64_t *dim, const char *what)
{
    op->out[0] = sh_emit_act(e, 2, dim, what);
    return sh_emit_append(e, op);
}

void sh_emit_unit(struct sh_emit *e, const char *name)
{
    if (!e->elsewhere)
        sh_program_add_unit(e->p, name);
}

void sh_emit_unit_beside(struct sh_emit *e, const char *name)
{
    int unit, of;

    if (e->elsewhere)
        return;
    unit = sh_program_add_unit(e->p, name);
    of = unit - 1;
    while (e->p->units[of].beside != SH_NONE)
        of--;
    e->p->units[unit].beside = of;
}

void sh_emit_unit_of_biases(struct sh_emit *e, const char *name)
{
    int unit;

    if (e->elsewhere)
        return;
    unit = sh_program_add_unit(e->p, name); /* moves the list */
    e->p->units[unit].balances = true;
}

/* Append a whole saved tensor as a parameter of the unit that was opened last. unit_elems is its offset there: the
 * parameters of a unit lie one after another in one flat buffer, which is gathered and reduced as a whole. */
int sh_emit_param(struct sh_emit *e, enum sh_param_role role, const char *name, int ndim, const int64_t *dim,
                  enum sh_init init, float std)
{
    struct sh_unit *unit = e->elsewhere ? NULL : &e->p->units[e->p->n_units - 1];
    struct sh_saved saved = {
        .role = role, .ndim = ndim, .elems = 1, .init = init, .init_std = std, .trainable = !unit || unit->trainable};
    struct sh_param param = {.saved = e->p->n_saved, .ndim = ndim, .unit = e->p->n_units - 1};
    struct sh_tensor t;

    snprintf(saved.name, sizeof saved.name, "%s", name);
    for (int i = 0; i < ndim; i++) {
        param.dim[i] = saved.dim[i] = dim[i];
        saved.elems *= dim[i];
    }
    sh_program_add_saved(e->p, &saved);
    if (!unit)
        return SH_NONE;
    param.elems = saved.elems;
    param.trainable = unit->trainable;
    param.unit_elems = unit->elems;
    t = sh_tensor_make(SH_MEM_GATHERED, unit->balances ? SH_F32 : e->p->act, ndim, dim, "%s", name);
    unit->n_params++;
    unit->elems += param.elems;
    t.param = sh_program_add_param(e->p, &param);
    return sh_program_add_tensor(e->p, &t);
}

void sh_emit_hold(struct sh_emit *e, int t, int cut, int n, const struct sh_band *band)
{
    struct sh_param *param = t == SH_NONE ? NULL : &e->p->params[e->p->n_params - 1];
    int64_t held = 0, elems;

    if (!param) /* of another stage */
        return;
    for (int i = 0; i < n; i++) {
        param->band[i] = band[i];
        held += band[i].n;
    }
    elems = param->elems / param->dim[cut] * held;
    e->p->units[param->unit].elems += elems - param->elems;
    param->cut = cut;
    param->n_bands = n;
    param->elems = elems;
    param->dim[cut] = e->p->tensors[t].dim[cut] = held;
}

/* Several matrices [r_i,C] as one [sum r_i,C], without a copy: parameters of a unit are adjacent, so q, k and v, or
 * gate and up, are one product instead of three or two. The caller emits them one after the other. */
int sh_emit_stack(struct sh_emit *e, int first, int n)
{
    int param = first == SH_NONE ? SH_NONE : e->p->tensors[first].param;
    int64_t rows = 0;
    struct sh_tensor t;

    if (first == SH_NONE)
        return SH_NONE;
    for (int i = 0; i < n; i++)
        rows += e->p->params[param + i].dim[0];
    t = sh_tensor_make(SH_MEM_GATHERED, e->p->act, e->p->params[param].ndim, DIMS(rows, e->p->params[param].dim[1]),
                       "%s+%d", e->p->tensors[first].name, n - 1);
    t.param = param;
    return sh_program_add_tensor(e->p, &t);
}

/* Shares the memory of t from its start; the product of the dimensions must be the same. */
int sh_emit_view(struct sh_emit *e, int t, int ndim, const int64_t *dim)
{
    struct sh_tensor view = e->p->tensors[t];

    view.base = t;
    view.base_elems = 0;
    view.ndim = ndim;
    for (int i = 0; i < ndim; i++)
        view.dim[i] = dim[i];
    return sh_program_add_tensor(e->p, &view);
}

int sh_emit_flat(struct sh_emit *e, int t)
{
    int64_t last = sh_emit_dims(e, t)[e->p->tensors[t].ndim - 1];

    return sh_emit_view(e, t, 2, DIMS((int64_t)e->batch * e->seq, last));
}

int sh_emit_seq(struct sh_emit *e, int t)
{
    return sh_emit_view(e, t, 3, DIMS(e->batch, e->seq, sh_emit_dims(e, t)[1]));
}

int sh_emit_port(struct sh_emit *e, enum sh_port port)
{
    return sh_program_add_port(e->p, port, e->batch, e->seq, 0);
}

int sh_emit_keep(struct sh_emit *e, enum sh_dtype dtype, int ndim, const int64_t *dim, const char *what)
{
    int t = sh_emit_tensor(e, SH_MEM_KV, dtype, ndim, dim, what);

    e->p->tensors[t].persistent = true;
    return t;
}

/* Tokens, targets and document starts, each [B,T] i32; documents are those of whole sequences, as attention sees them, or of the runs that a rank has. Without targets there is no loss (generation); without docs,
 * attention sees the whole sequence. */
void sh_emit_inputs(struct sh_emit *e, bool tokens, bool targets, bool docs)
{
    if (tokens)
        sh_emit_port(e, SH_PORT_TOKENS);
    if (targets)
        sh_emit_port(e, SH_PORT_TARGETS);
    if (docs)
        sh_program_add_port(e->p, SH_PORT_DOCS, e->batch, e->runs > 1 ? e->seq : sh_emit_whole(e), 0);
    if (e->cache || e->runs > 1)
        sh_emit_port(e, SH_PORT_AT);
    if (e->cache)
        sh_emit_port(e, SH_PORT_COUNT);
}

/* The group and the stream are the pipeline pass's to set. */
int sh_emit_receive(struct sh_emit *e, int64_t width, int border, int peer)
{
    struct sh_op op = sh_emit_op(e, SH_OP_RECEIVE, 0, NULL);

    op.attr.link.peer = peer;
    op.attr.link.border = border;
    return sh_emit_out(e, &op, DIMS((int64_t)e->batch * e->seq, width), "received");
}

void sh_emit_send(struct sh_emit *e, int x, int border, int peer)
{
    struct sh_op op = OP(e, SH_OP_SEND, x);

    op.attr.link.peer = peer;
    op.attr.link.border = border;
    sh_emit_append(e, &op);
}
