/* Rules of attention, and of what is around it: rotations, norms and gates of heads, keys and values apart. */
#include "src/pass/grad/grad.h"

/* The inverse of a rotation is its transpose: the same kernel with the other sign. */
void sh_grad_rule_rope(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_ROPE);

    op.attr.attn.inverse = !g->fwd.attr.attn.inverse;
    op.in[0] = sh_grad_upstream(g, 0);
    for (int i = 1; i <= 3; i++)
        op.in[i] = g->fwd.in[i];
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

/* The mean of the gradient times x w over the heads of all ranks, by the three operations that made that of squares. */
static int mean_over_ranks(struct sh_grad *g)
{
    int mean = SH_NONE, first = g->fwd_index - 3;

    for (int i = first; i < g->fwd_index; i++) {
        struct sh_op op = g->p->ops[i];

        op.phase = SH_PHASE_BACKWARD;
        op.in[0] = i == first ? sh_grad_upstream(g, 0) : mean;
        for (int k = 1; k <= 3 && i == first; k++)
            op.in[k] = g->fwd.in[k - 1];
        op.out[0] = mean = sh_grad_fresh(g, op.out[0]);
        sh_program_add_op(g->p, &op);
    }
    return mean;
}

void sh_grad_rule_qk_norm(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_QK_NORM_BWD);

    op.in[0] = sh_grad_upstream(g, 0);
    for (int i = 0; i < 3; i++)
        op.in[1 + i] = g->fwd.in[i];
    op.in[4] = g->fwd.out[1];
    if (g->fwd.in[3] != SH_NONE)
        op.in[5] = mean_over_ranks(g);
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_grad_to_param(g, &op, 1, g->fwd.in[1]);
    if (g->fwd.in[2] != g->fwd.in[1]) /* else there are no keys */
        sh_grad_to_param(g, &op, 2, g->fwd.in[2]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

void sh_grad_rule_regroup(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_REGROUP);

    op.attr.regroup.inverse = !g->fwd.attr.regroup.inverse;
    op.in[0] = sh_grad_upstream(g, 0);
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

void sh_grad_rule_value_norm(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_VALUE_NORM_BWD);

    op.in[0] = sh_grad_upstream(g, 0);
    op.in[1] = g->fwd.in[0];
    op.in[2] = g->fwd.out[1];
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

/* Softmax is not kept: the backward has the output and each row's log-sum-exp (out[1]), and recomputes it. With a sink,
 * which comes right after, these are the sink's. */
static const struct sh_op *makes_output(const struct sh_grad *g)
{
    const struct sh_op *next = &g->p->ops[g->fwd_index + 1];

    return next->kind == SH_OP_SINK ? next : &g->fwd;
}

void sh_grad_rule_attention(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_ATTENTION_BWD);
    const struct sh_op *of = makes_output(g);

    op.in[2] = of->out[0];
    op.in[3] = of->out[1];
    op.in[0] = sh_grad_upstream(g, 0);
    op.in[1] = g->fwd.in[0];
    op.in[4] = g->fwd.in[1];
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

/* Attention takes the gradient as it is. */
void sh_grad_rule_sink(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_SINK_BWD);
    int dy = sh_grad_upstream(g, 0);

    if (sh_grad_wanted(g, g->fwd.in[2])) {
        op.in[0] = dy;
        op.in[1] = g->fwd.out[0];
        op.in[2] = g->fwd.out[1];
        op.in[3] = g->fwd.in[2];
        sh_grad_to_param(g, &op, 0, g->fwd.in[2]);
        sh_program_add_op(g->p, &op);
    }
    sh_grad_give(g, g->fwd.in[0], dy);
}

/* The same, with keys and values apart. */
void sh_grad_rule_attention_rows(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_ATTENTION_ROWS_BWD);
    const struct sh_op *of = makes_output(g);

    op.in[3] = of->out[0];
    op.in[4] = of->out[1];
    op.in[0] = sh_grad_upstream(g, 0);
    op.in[1] = g->fwd.in[0];
    op.in[2] = g->fwd.in[1];
    op.in[5] = g->fwd.in[2];
    for (int i = 0; i < 2; i++)
        op.out[i] = sh_grad_fresh(g, g->fwd.in[i]);
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 2; i++)
        sh_grad_give(g, g->fwd.in[i], op.out[i]);
}

void sh_grad_rule_split_kv(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_JOIN_KV);

    op.in[0] = sh_grad_upstream(g, 0);
    op.in[1] = sh_grad_upstream(g, 1);
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

/* Either part may depend on nothing that is trained; what it gets is then not looked at. */
void sh_grad_rule_join_kv(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_SPLIT_KV);

    op.in[0] = sh_grad_upstream(g, 0);
    for (int i = 0; i < 2; i++)
        op.out[i] = sh_grad_fresh(g, g->fwd.in[i]);
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 2; i++)
        sh_grad_give(g, g->fwd.in[i], op.out[i]);
}

void sh_grad_rule_split_gate(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_JOIN_GATE);

    op.in[0] = sh_grad_upstream(g, 0);
    op.in[1] = sh_grad_upstream(g, 1);
    op.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, g->fwd.in[0], op.out[0]);
}

void sh_grad_rule_gate(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_GATE_BWD);

    op.in[0] = sh_grad_upstream(g, 0);
    for (int i = 0; i < 2; i++) {
        op.in[1 + i] = g->fwd.in[i];
        op.out[i] = sh_grad_fresh(g, g->fwd.in[i]);
    }
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 2; i++)
        sh_grad_give(g, g->fwd.in[i], op.out[i]);
}

/* Of a frozen product without adapters nothing is asked. */
void sh_grad_rule_latent_heads(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_LATENT_HEADS_BWD);

    op.in[0] = sh_grad_upstream(g, 0);
    for (int i = 0; i < 3; i++)
        op.out[i] = sh_grad_wanted(g, g->fwd.in[i]) ? sh_grad_fresh(g, g->fwd.in[i]) : SH_NONE;
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 3; i++)
        sh_grad_give(g, g->fwd.in[i], op.out[i]);
}
