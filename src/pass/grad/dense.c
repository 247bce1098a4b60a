/* Rules of what every model has: embeddings, norms, products, what works element by element, and the loss. */
#include "src/pass/grad/grad.h"

/* One operation per table: each then has one output, and starts or adds by itself. */
void sh_grad_rule_embed(struct sh_grad *g)
{
    int dx = sh_grad_upstream(g, 0);

    for (int table = 0; table < 2; table++) {
        struct sh_op op = sh_grad_op(g, SH_OP_EMBED_BWD);

        if (!sh_grad_wanted(g, g->fwd.in[1 + table]))
            continue;
        op.in[0] = dx;
        op.in[1] = g->fwd.in[0];
        op.in[2] = table ? g->fwd.in[3] : SH_NONE;
        sh_grad_to_param(g, &op, table, g->fwd.in[1 + table]);
        sh_program_add_op(g->p, &op);
    }
}

/* Takes the earlier gradient of x with it: a norm's input is also the residual, so there nearly always is one. */
void sh_grad_rule_norm(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_NORM_BWD);
    int x = g->fwd.in[0];

    op.in[0] = sh_grad_upstream(g, 0);
    op.in[1] = x;
    op.in[2] = g->fwd.in[1];
    op.in[3] = g->fwd.out[1];
    op.in[4] = g->fwd.out[2];
    op.in[5] = sh_grad_take(g, x);
    op.out[0] = sh_grad_fresh(g, x);
    sh_grad_to_param(g, &op, 1, g->fwd.in[1]);
    sh_grad_to_param(g, &op, 2, g->fwd.in[2]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, x, op.out[0]);
}

/* Weights first: the saved input dies there, before the gradient of the input needs room. */
void sh_grad_rule_linear(struct sh_grad *g)
{
    struct sh_op w = sh_grad_op(g, SH_OP_LINEAR_BWD_W), x = sh_grad_op(g, SH_OP_LINEAR_BWD_X);
    int dy = sh_grad_upstream(g, 0);

    if (sh_grad_wanted(g, g->fwd.in[2])) {
        struct sh_op b = sh_grad_op(g, SH_OP_BIAS_BWD);

        b.in[0] = dy;
        sh_grad_to_param(g, &b, 0, g->fwd.in[2]);
        sh_program_add_op(g->p, &b);
    }
    if (sh_grad_wanted(g, g->fwd.in[1])) {
        w.in[0] = dy;
        w.in[1] = g->fwd.in[0];
        sh_grad_to_param(g, &w, 0, g->fwd.in[1]);
        sh_program_add_op(g->p, &w);
    }
    if (!sh_grad_wanted(g, g->fwd.in[0]))
        return;
    x.in[0] = dy;
    x.in[1] = g->fwd.in[1];
    x.in[2] = sh_grad_take(g, g->fwd.in[0]);
    x.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &x);
    sh_grad_give(g, g->fwd.in[0], x.out[0]);
}

/* x passes on its gradient unchanged. */
void sh_grad_rule_bias(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_BIAS_BWD);
    int dy = sh_grad_upstream(g, 0);

    sh_grad_give(g, g->fwd.in[0], dy);
    if (!sh_grad_wanted(g, g->fwd.in[1]))
        return;
    op.in[0] = dy;
    sh_grad_to_param(g, &op, 0, g->fwd.in[1]);
    sh_program_add_op(g->p, &op);
}

/* y passes on its gradient unchanged. The gradient of x is computed before that of the product beside it, which adds it
 * to its own. */
void sh_grad_rule_lora(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_LORA_BWD);
    int x = g->fwd.in[1];

    op.in[0] = sh_grad_upstream(g, 0);
    op.in[1] = x;
    op.in[2] = g->fwd.out[1];
    op.in[3] = g->fwd.in[2];
    op.in[4] = g->fwd.in[3];
    sh_grad_give(g, g->fwd.in[0], op.in[0]);
    if (sh_grad_wanted(g, x)) {
        op.in[5] = sh_grad_take(g, x);
        op.out[0] = sh_grad_fresh(g, x);
    }
    sh_grad_to_param(g, &op, 1, g->fwd.in[2]);
    sh_grad_to_param(g, &op, 2, g->fwd.in[3]);
    sh_program_add_op(g->p, &op);
    if (op.out[0] != SH_NONE)
        sh_grad_give(g, x, op.out[0]);
}

/* The same operation on the gradient. */
void sh_grad_rule_scale(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_SCALE);

    op.in[0] = sh_grad_upstream(g, 0);
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

/* The factor is no parameter that learns. */
void sh_grad_rule_scale_by(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_SCALE_BY);

    op.in[0] = sh_grad_upstream(g, 0);
    op.in[1] = g->fwd.in[1];
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

/* For kinds whose row names their backward. That of a linear one does not need x. */
void sh_grad_rule_pointwise(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, sh_op_info(g->fwd.kind)->backward);

    op.in[0] = sh_grad_upstream(g, 0);
    op.in[1] = sh_op_info(op.kind)->n_in > 1 ? g->fwd.in[0] : SH_NONE;
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

/* Both get the same tensor. It is never written in place while the other still reads it, since lifetimes cover both. */
void sh_grad_rule_add(struct sh_grad *g)
{
    int dy = sh_grad_upstream(g, 0);

    sh_grad_give(g, g->fwd.in[0], dy);
    sh_grad_give(g, g->fwd.in[1], dy);
}

/* The loss is the end of the forward and the start of the backward, and its own gradient (1 / counted tokens) is known
 * before the step. So the forward operation itself is made to return the gradients, and no logits are computed
 * twice. */
void sh_grad_rule_head(struct sh_grad *g)
{
    struct sh_op *op = &g->p->ops[g->fwd_index];
    struct sh_op with_grad = *op;
    int x = g->fwd.in[0];

    with_grad.kind = SH_OP_HEAD_LOSS_GRAD;
    with_grad.phase = SH_PHASE_BACKWARD;
    with_grad.out[1] = sh_grad_fresh(g, x);
    sh_grad_to_param(g, &with_grad, 2, g->fwd.in[1]);
    g->p->ops[g->fwd_index] = with_grad;
    sh_grad_give(g, x, with_grad.out[1]);
}
