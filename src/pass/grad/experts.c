/* Rules of experts: the choice, the order of rows, and products over the rows of each expert. */
#include "src/pass/grad/grad.h"

/* The choice itself passes no gradient; that of the weights goes through the router's product. */
void sh_grad_rule_route(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_ROUTE_BWD);
    int x = g->fwd.in[0];

    op.in[0] = sh_grad_upstream(g, 0);
    for (int i = 1; i <= 3; i++)
        op.in[i] = g->fwd.out[i];
    op.in[4] = x;
    op.in[5] = g->fwd.in[1];
    if (sh_grad_wanted(g, x)) {
        op.in[6] = sh_grad_take(g, x);
        op.out[0] = sh_grad_fresh(g, x);
    }
    sh_grad_to_param(g, &op, 1, g->fwd.in[1]);
    if (g->fwd.in[3] != SH_NONE)
        sh_grad_to_param(g, &op, 2, g->fwd.in[3]);
    sh_program_add_op(g->p, &op);
    if (op.out[0] != SH_NONE)
        sh_grad_give(g, x, op.out[0]);
}

/* The plan to which this output belongs: an order of rows or, its inverse, their places. */
static const struct sh_op *plan_of(const struct sh_grad *g, int output, int t)
{
    int i = g->fwd_index;

    while (g->p->ops[i].kind != SH_OP_ROUTE_PLAN || g->p->ops[i].out[output] != t)
        i--;
    return &g->p->ops[i];
}

/* A token's row was copied to each of its experts. */
void sh_grad_rule_row_gather(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_ROW_SUM);
    int x = g->fwd.in[0];

    op.in[0] = sh_grad_upstream(g, 0);
    op.in[1] = plan_of(g, 0, g->fwd.in[1])->out[1];
    op.in[2] = sh_grad_take(g, x);
    op.out[0] = sh_grad_fresh(g, x);
    sh_program_add_op(g->p, &op);
    sh_grad_give(g, x, op.out[0]);
}

void sh_grad_rule_row_sum(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_ROW_GATHER);
    int ys = g->fwd.in[0], dy = sh_grad_upstream(g, 0);

    if (sh_grad_wanted(g, ys)) {
        op.in[0] = dy;
        op.in[1] = plan_of(g, 1, g->fwd.in[1])->out[0];
        op.out[0] = sh_grad_fresh(g, ys);
        sh_program_add_op(g->p, &op);
        sh_grad_give(g, ys, op.out[0]);
    }
    if (g->fwd.in[2] != SH_NONE)
        sh_grad_give(g, g->fwd.in[2], dy);
}

/* As sh_grad_rule_linear(). */
void sh_grad_rule_expert_linear(struct sh_grad *g)
{
    struct sh_op w = sh_grad_op(g, SH_OP_EXPERT_LINEAR_BWD_W), x = sh_grad_op(g, SH_OP_EXPERT_LINEAR_BWD_X);

    w.in[0] = x.in[0] = sh_grad_upstream(g, 0);
    w.in[1] = g->fwd.in[0];
    w.in[2] = x.in[1] = g->fwd.in[1];
    x.in[2] = g->fwd.in[2];
    if (sh_grad_wanted(g, g->fwd.in[2])) {
        sh_grad_to_param(g, &w, 0, g->fwd.in[2]);
        sh_program_add_op(g->p, &w);
    }
    if (!sh_grad_wanted(g, g->fwd.in[0]))
        return;
    x.out[0] = sh_grad_fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &x);
    sh_grad_give(g, g->fwd.in[0], x.out[0]);
}

/* x passes on its gradient unchanged. */
void sh_grad_rule_expert_bias(struct sh_grad *g)
{
    struct sh_op op = sh_grad_op(g, SH_OP_EXPERT_BIAS_BWD);
    int weight = g->fwd.in[3];
    bool weighs = weight != SH_NONE && sh_grad_wanted(g, weight);

    op.in[0] = sh_grad_upstream(g, 0);
    for (int i = 1; i <= 4; i++)
        op.in[i] = i == 2 && !weighs ? SH_NONE : g->fwd.in[i];
    sh_grad_to_param(g, &op, 0, g->fwd.in[2]);
    if (weighs)
        op.out[1] = sh_grad_fresh(g, weight);
    if (op.out[0] != SH_NONE || weighs)
        sh_program_add_op(g->p, &op);
    if (weighs)
        sh_grad_give(g, weight, op.out[1]);
    sh_grad_give(g, g->fwd.in[0], op.in[0]);
}

/* The gradient of weights is f32, as they are; that of a bias which they weighed is added. */
static void activate_rows(struct sh_grad *g, enum sh_op_kind backward)
{
    struct sh_op op = sh_grad_op(g, backward);

    op.in[0] = sh_grad_upstream(g, 0);
    for (int i = 0; i < 3; i++)
        op.in[1 + i] = g->fwd.in[i];
    op.in[5] = sh_grad_take(g, g->fwd.in[1]);
    for (int i = 0; i < 2; i++)
        op.out[i] = sh_grad_fresh(g, g->fwd.in[i]);
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 2; i++)
        sh_grad_give(g, g->fwd.in[i], op.out[i]);
}

void sh_grad_rule_swiglu_rows(struct sh_grad *g)
{
    activate_rows(g, SH_OP_SWIGLU_ROWS_BWD);
}

void sh_grad_rule_squared_relu_rows(struct sh_grad *g)
{
    activate_rows(g, SH_OP_SQUARED_RELU_ROWS_BWD);
}
