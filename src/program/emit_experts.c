/* Experts: the router with its plan and reports, and products over rows that are sorted by expert. */
#include "src/program/emit_op.h"

/* The choice [N,k] as a plan: the rows by expert, where each token's rows are, where each expert's begin. */
static void plan_rows(struct sh_emit *e, int expert, const struct sh_emit_route *how, struct sh_emit_routed *to)
{
    struct sh_op op = OP(e, SH_OP_ROUTE_PLAN, expert);
    int64_t rows = sh_emit_dims(e, expert)[0], k = how->chosen;

    op.attr.route.experts = how->experts;
    op.attr.route.chosen = how->chosen;
    op.out[0] = to->order = sh_emit_tensor(e, SH_MEM_ACT, SH_I32, 1, DIMS(rows * k), "order");
    op.out[1] = to->place = sh_emit_tensor(e, SH_MEM_ACT, SH_I32, 2, DIMS(rows, k), "place");
    op.out[2] = to->first = sh_emit_tensor(e, SH_MEM_ACT, SH_I32, 1, DIMS(how->experts + 1), "first");
    sh_emit_append(e, &op);
}

static void set_route(struct sh_op *op, const struct sh_emit_route *how)
{
    op->attr.route.experts = how->experts;
    op->attr.route.chosen = how->chosen;
    op->attr.route.sigmoid = how->sigmoid;
    op->attr.route.norm = how->norm;
    op->attr.route.scale = how->scale;
    op->attr.route.groups = how->groups;
    op->attr.route.top_groups = how->top_groups;
    op->attr.route.aux = how->aux;
    op->attr.route.z = how->z;
    op->attr.route.forced = how->forced;
}

/* weight [N,k] f32, expert [N,k], and the scores [N,E] f32 of all experts, which the backward reads; lse [N] f32 only
 * for the loss that reads it. */
struct sh_emit_routed sh_emit_route(struct sh_emit *e, int x, int w, int b, int bias, const struct sh_emit_route *how)
{
    struct sh_op op = OP(e, SH_OP_ROUTE, x, w, bias, b);
    int64_t rows = sh_emit_dims(e, x)[0];
    struct sh_emit_routed to = {.lse = SH_NONE};

    set_route(&op, how);
    op.out[0] = to.weight = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(rows, how->chosen), "weight");
    op.out[1] = sh_emit_tensor(e, SH_MEM_ACT, SH_I32, 2, DIMS(rows, how->chosen), "expert");
    op.out[2] = to.score = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(rows, how->experts), "score");
    if (how->z != 0)
        op.out[3] = to.lse = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 1, DIMS(rows), "lse");
    sh_emit_append(e, &op);
    plan_rows(e, op.out[1], how, &to);
    return to;
}

void sh_emit_reports(struct sh_emit *e, int blocks, int experts)
{
    sh_program_add_port(e->p, SH_PORT_ROUTERS, 0, 0, SH_ROUTER_LOSSES + (int64_t)blocks * experts);
}

/* [n] of the reports, from element `first` on. A constant's name tells it from others. */
static int report_view(struct sh_emit *e, int64_t first, int64_t n)
{
    int v = sh_emit_view(e, e->p->port[SH_PORT_ROUTERS], 1, DIMS(n));

    e->p->tensors[v].base_elems = first;
    snprintf(e->p->tensors[v].name, SH_NAME_MAX, first ? "layers.%d.load" : "routers.losses", e->block);
    return v;
}

/* The losses of all blocks are added up. */
void sh_emit_report(struct sh_emit *e, const struct sh_emit_routed *to, const struct sh_emit_route *how, int block,
                    int first)
{
    struct sh_op load = OP(e, SH_OP_ROUTE_LOAD, to->first);
    struct sh_op loss = OP(e, SH_OP_ROUTE_LOSS, to->score, to->first, to->lse);

    load.out[0] = report_view(e, SH_ROUTER_LOSSES + (int64_t)block * how->experts, how->experts);
    sh_emit_append(e, &load);
    if (how->aux == 0 && how->z == 0)
        return;
    set_route(&loss, how);
    loss.out[0] = report_view(e, 0, SH_ROUTER_LOSSES);
    loss.attr.accumulate = block > first;
    sh_emit_append(e, &loss);
}

int sh_emit_row_gather(struct sh_emit *e, int x, const struct sh_emit_routed *to)
{
    struct sh_op op = OP(e, SH_OP_ROW_GATHER, x, to->order);

    return sh_emit_out(e, &op, DIMS(sh_emit_dims(e, to->order)[0], sh_emit_dims(e, x)[1]), "rows");
}

int sh_emit_expert_linear(struct sh_emit *e, int x, int w, bool w_in_out, const struct sh_emit_routed *to)
{
    struct sh_op op = OP(e, SH_OP_EXPERT_LINEAR, x, to->first, w);

    op.attr.rows.w_in_out = w_in_out;
    op.attr.rows.choose = e->choose;
    return sh_emit_out(e, &op, DIMS(sh_emit_dims(e, x)[0], sh_emit_dims(e, w)[w_in_out ? 2 : 1]), "expert linear");
}

int sh_emit_expert_bias(struct sh_emit *e, int x, int b, bool weighed, const struct sh_emit_routed *to)
{
    struct sh_op op =
        OP(e, SH_OP_EXPERT_BIAS, x, to->first, b, weighed ? to->weight : SH_NONE, weighed ? to->order : SH_NONE);

    return sh_emit_out(e, &op, sh_emit_dims(e, x), "biased");
}

/* Of the products' results only u [M,R] is kept for the backward, like that of sh_emit_lora(). */
int sh_emit_expert_lora(struct sh_emit *e, int y, int x, const struct sh_emit_lora *l, const struct sh_emit_routed *to)
{
    int u;

    if (!l->parts)
        return y;
    u = sh_emit_scale(e, sh_emit_expert_linear(e, x, l->a, false, to), l->scale);
    return sh_emit_add(e, y, sh_emit_expert_linear(e, u, l->b, false, to));
}

int sh_emit_swiglu_rows(struct sh_emit *e, int x, float limit, float alpha, const struct sh_emit_routed *to)
{
    struct sh_op op = OP(e, SH_OP_SWIGLU_ROWS, x, to->weight, to->order);

    op.attr.rows.limit = limit;
    op.attr.rows.alpha = alpha;
    return sh_emit_out(e, &op, DIMS(sh_emit_dims(e, x)[0], sh_emit_dims(e, x)[1] / 2), "swiglu");
}

int sh_emit_squared_relu_rows(struct sh_emit *e, int x, const struct sh_emit_routed *to)
{
    struct sh_op op = OP(e, SH_OP_SQUARED_RELU_ROWS, x, to->weight, to->order);

    return sh_emit_out(e, &op, sh_emit_dims(e, x), "squares");
}

int sh_emit_row_sum(struct sh_emit *e, int x, int addend, const struct sh_emit_routed *to)
{
    struct sh_op op = OP(e, SH_OP_ROW_SUM, x, to->place, addend);

    return sh_emit_out(e, &op, DIMS(sh_emit_dims(e, to->place)[0], sh_emit_dims(e, x)[1]), "experts");
}
