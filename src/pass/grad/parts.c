/* What rules are made of. */
#include "src/pass/grad/grad.h"

#include <string.h>

/* Where the gradient of t's storage is kept. Views share their root's. */
static int *slot(struct sh_grad *g, int t)
{
    return &g->of[sh_tensor_root(g->p, t)];
}

bool sh_grad_wanted(const struct sh_grad *g, int t)
{
    return t != SH_NONE && g->depends[sh_tensor_root(g->p, t)];
}

/* View `grad` in the shape of `t`. */
static int shaped(struct sh_grad *g, int grad, int t)
{
    const struct sh_tensor *want = &g->p->tensors[t];
    struct sh_tensor view = g->p->tensors[grad];

    if (view.ndim == want->ndim && !memcmp(view.dim, want->dim, sizeof view.dim))
        return grad;
    view.base = grad;
    view.base_elems = 0;
    view.ndim = want->ndim;
    memcpy(view.dim, want->dim, sizeof view.dim);
    return sh_program_add_tensor(g->p, &view);
}

int sh_grad_fresh(struct sh_grad *g, int t)
{
    const struct sh_tensor *of = &g->p->tensors[t];
    struct sh_tensor d = sh_tensor_make(SH_MEM_ACT_GRAD, of->dtype, of->ndim, of->dim, "d.%.60s", of->name);

    return sh_program_add_tensor(g->p, &d);
}

struct sh_op sh_grad_op(const struct sh_grad *g, enum sh_op_kind kind)
{
    struct sh_op op = sh_program_op(kind);

    if (sh_op_info(kind)->attrs == sh_op_info(g->fwd.kind)->attrs)
        op.attr = g->fwd.attr;
    op.phase = SH_PHASE_BACKWARD;
    op.block = g->fwd.block;
    return op;
}

int sh_grad_upstream(struct sh_grad *g, int out)
{
    int t = g->fwd.out[out], d = *slot(g, t);

    return d == SH_NONE ? SH_NONE : shaped(g, d, t);
}

int sh_grad_take(struct sh_grad *g, int t)
{
    int d = *slot(g, t);

    *slot(g, t) = SH_NONE;
    return d == SH_NONE ? SH_NONE : shaped(g, d, t);
}

/* By a separate operation: rules that can add it themselves have called sh_grad_take() before. */
void sh_grad_give(struct sh_grad *g, int t, int d)
{
    int earlier = sh_grad_wanted(g, t) ? sh_grad_take(g, t) : SH_NONE;

    if (!sh_grad_wanted(g, t))
        return;
    if (earlier != SH_NONE) {
        struct sh_op add = sh_grad_op(g, SH_OP_ADD);

        add.in[0] = earlier;
        add.in[1] = d;
        d = add.out[0] = sh_grad_fresh(g, t);
        sh_program_add_op(g->p, &add);
    }
    *slot(g, t) = d;
}

void sh_grad_to_param(struct sh_grad *g, struct sh_op *op, int out, int t)
{
    struct sh_tensor d;

    if (!sh_grad_wanted(g, t))
        return;
    if (*slot(g, t) != SH_NONE) {
        op->attr.accumulate |= 1u << out;
    } else {
        d = sh_tensor_make(SH_MEM_GRAD_FULL, SH_F32, g->p->tensors[t].ndim, g->p->tensors[t].dim, "d.%.60s",
                           g->p->tensors[t].name);
        d.grad_of = g->p->tensors[t].param;
        *slot(g, t) = sh_program_add_tensor(g->p, &d);
    }
    op->out[out] = *slot(g, t);
}
