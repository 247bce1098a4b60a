/* Rules of what ranks send each other within a micro-step: rows of a group, and those of the next stage. */
#include "src/pass/grad/grad.h"

static void cast(struct sh_grad *g, int from, int to)
{
    struct sh_op op = sh_grad_op(g, SH_OP_CAST);

    op.in[0] = from;
    op.out[0] = to;
    sh_program_add_op(g->p, &op);
}

/* The same in float32. */
static int widened(struct sh_grad *g, int t)
{
    struct sh_tensor wide = g->p->tensors[t];

    wide = sh_tensor_make(SH_MEM_ACT_GRAD, SH_F32, wide.ndim, wide.dim, "%.60s in f32", wide.name);
    return sh_program_add_tensor(g->p, &wide);
}

/* Rows that ranks of a group exchange. The gradient of a row is the sum over the ranks that have read it: nothing is
 * averaged, whatever the size of the group. Sums over ranks have no float16: there they are made in float32. */
void sh_grad_rule_exchange(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, sh_op_info(g->fwd.kind)->backward);
    int dy = sh_grad_upstream(g, 0), dx = sh_grad_fresh(g, g->fwd.in[0]);
    bool wide = op.kind == SH_OP_REDUCE_SCATTER && g->p->tensors[dy].dtype == SH_F16;

    op.attr.group = g->fwd.attr.group;
    op.attr.exchange.sequences = g->fwd.attr.exchange.sequences;
    op.stream = g->fwd.stream;
    op.in[0] = wide ? widened(g, dy) : dy;
    op.out[0] = wide ? widened(g, dx) : dx;
    if (wide)
        cast(g, dy, op.in[0]);
    sh_program_add_op(g->p, &op);
    if (wide)
        cast(g, op.out[0], dx);
    sh_grad_give(g, g->fwd.in[0], dx);
}

/* The gradient of what goes to the next stage comes back from there; that of what came goes back. */
void sh_grad_rule_send(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_RECEIVE);

    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

void sh_grad_rule_receive(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_SEND);

    op.in[0] = sh_grad_upstream(g, 0);
    sh_program_add_op(g->p, &op);
}
