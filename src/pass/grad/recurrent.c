/* Rules of layers that carry a state along the sequence instead of attention. */
#include "src/pass/grad/grad.h"

void sh_grad_rule_short_conv(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_SHORT_CONV_BWD);

    op.in[0] = sh_grad_upstream(g, 0);
    for (int i = 0; i < 4; i++)
        op.in[1 + i] = g->fwd.in[i];
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_grad_to_param(g, &op, 1, g->fwd.in[1]);
    if (g->fwd.in[3] != SH_NONE)
        sh_grad_to_param(g, &op, 2, g->fwd.in[3]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

/* The first two inputs have rows, the next `params` are parameters, and all of them have a gradient; what the forward
 * made for the backward comes last. */
static void heads_rule(struct sh_grad *g, enum sh_op_kind kind, int params, int others)
{
    struct sh_op op = sh_grad_op(g, kind);
    int n = 2 + params + others;

    op.in[0] = sh_grad_upstream(g, 0);
    for (int i = 0; i < n; i++)
        op.in[1 + i] = g->fwd.in[i];
    op.in[1 + n] = g->fwd.out[1];
    for (int i = 0; i < 2; i++)
        op.out[i] = sh_grad_fresh(g, g->fwd.in[i]);
    for (int i = 2; i < 2 + params; i++)
        sh_grad_to_param(g, &op, i, g->fwd.in[i]);
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 2; i++)
        sh_grad_give(g, g->fwd.in[i], op.out[i]);
}

void sh_grad_rule_gated_delta(struct sh_grad *g)
{
    heads_rule(g, SH_OP_GATED_DELTA_BWD, 2, 1);
}

void sh_grad_rule_gated_norm(struct sh_grad *g)
{
    heads_rule(g, SH_OP_GATED_NORM_BWD, 1, 0);
}

void sh_grad_rule_scan(struct sh_grad *g)
{
    heads_rule(g, SH_OP_SCAN_BWD, 1, 1);
}

void sh_grad_rule_gate_norm(struct sh_grad *g)
{
    heads_rule(g, SH_OP_GATE_NORM_BWD, 1, 0);
}
