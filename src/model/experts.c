/* Feed-forward parts of experts: a router sends each token to some of them, and to one that every token has. */
#include "src/model/part.h"

/* The expert that every token has: a feed-forward layer or, if something weighs it, the only one of its router, so that
 * its weight is its score. [N,C] -> [N,C] */
static int shared_expert(struct decoder *d, int x, const struct branch *b)
{
    const struct sh_emit_route one = {.experts = 1, .chosen = 1, .sigmoid = true, .scale = 1};
    struct sh_emit_routed to;

    if (b->stack[SHARED_UP].w == SH_NONE)
        return SH_NONE;
    if (!d->f->shared_weight)
        return sh_model_linear(d,
                               sh_emit_pointwise(&d->e, d->f->relu2 ? SH_OP_SQUARED_RELU : SH_OP_SWIGLU,
                                                 sh_model_linear(d, x, b->stack[SHARED_UP])),
                               b->stack[SHARED_DOWN]);
    to = sh_emit_route(&d->e, x, b->stack[SHARED_WEIGHT].w, SH_NONE, SH_NONE, &one);
    return sh_model_linear(d, sh_emit_swiglu_rows(&d->e, sh_model_linear(d, x, b->stack[SHARED_UP]), 0, 0, &to),
                           b->stack[SHARED_DOWN]);
}

/* As linear(), for the rows of experts. weighed: x has been multiplied by the rows' weights. */
static int expert_linear(struct decoder *d, int x, struct weights l, bool weighed, const struct sh_emit_routed *to)
{
    int y = sh_emit_expert_linear(&d->e, x, l.w, d->f->experts_in_out, to);

    if (l.b != SH_NONE)
        y = sh_emit_expert_bias(&d->e, y, l.b, weighed, to);
    return sh_emit_expert_lora(&d->e, y, x, &l.lora, to);
}

/* Gate and up [M,2F], or up alone [M,F] -> [M,F] */
static int activate(struct decoder *d, int up, const struct sh_emit_routed *to)
{
    if (d->f->relu2)
        return sh_emit_squared_relu_rows(&d->e, up, to);
    return sh_emit_swiglu_rows(&d->e, up, d->f->glu_limit, d->f->glu_alpha, to);
}

static struct sh_emit_routed route(struct decoder *d, int x, const struct branch *b)
{
    struct sh_emit_routed to =
        sh_emit_route(&d->e, x, b->stack[ROUTER].w, b->stack[ROUTER].b, d->router_bias, &d->route);

    if (d->reports) {
        if (d->first_report == SH_NONE)
            d->first_report = sh_family_blocks_with_experts(d->m, d->e.block);
        sh_emit_report(&d->e, &to, &d->route, sh_family_blocks_with_experts(d->m, d->e.block), d->first_report);
    }
    return to;
}

/* M = N k rows: each token as often as it has experts, sorted by expert. The shared expert computes while rows travel to
 * experts on other ranks. */
int sh_model_experts(struct decoder *d, int x, const struct branch *b)
{
    struct sh_emit_routed to = route(d, x, b);
    int rows = sh_emit_row_gather(&d->e, x, &to), shared = shared_expert(d, x, b);
    int up = expert_linear(d, rows, b->stack[EXPERT_UP], false, &to);
    int h = activate(d, up, &to);                                  /* [M,F] */
    int y = expert_linear(d, h, b->stack[EXPERT_DOWN], true, &to); /* [M,C] */

    return sh_emit_row_sum(&d->e, y, shared, &to);
}
