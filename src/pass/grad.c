/* The backward: one rule for each kind of operation, applied from the last operation to the first.
 *
 * A tensor used twice gets two contributions. A rule that can add to what is there (an optional `dres` operand) takes
 * the earlier one with it; otherwise an ADD is emitted. Gradients of parameters are f32 and add in place.
 *
 * Frozen parameters have no gradient, nor does anything that depends on no trained parameter: the backward ends at the
 * first use of a trained one. */
#include "src/base/mem.h"
#include "src/pass/build.h"

#include <stdlib.h>
#include <string.h>

struct grad {
    struct sh_program *p;
    int *of;          /* by storage root of the forward: its gradient so far, or SH_NONE */
    bool *depends;    /* by storage root of the forward: it depends on a trained parameter, or is one */
    struct sh_op fwd; /* the operation whose rule runs */
    int fwd_index;
};

/* Where the gradient of t's storage is kept. Views share their root's. */
static int *slot(struct grad *g, int t)
{
    return &g->of[sh_tensor_root(g->p, t)];
}

/* Whether t has a gradient. */
static bool wanted(const struct grad *g, int t)
{
    return t != SH_NONE && g->depends[sh_tensor_root(g->p, t)];
}

/* In the order of the forward: an output depends on whatever an input depends on, unless the
 * operation stops that. */
static void find_dependent(struct grad *g, int n_forward, int n_tensors)
{
    for (int t = 0; t < n_tensors; t++)
        g->depends[t] = g->p->tensors[t].param != SH_NONE && g->p->params[g->p->tensors[t].param].trainable;
    for (int i = 0; i < n_forward; i++) {
        const struct sh_op *op = &g->p->ops[i];
        bool any = op->kind == SH_OP_RECEIVE; /* earlier stages train */

        for (int k = 0; k < SH_OP_MAX_IN && !sh_op_info(op->kind)->stops; k++)
            any = any || wanted(g, op->in[k]);
        for (int k = 0; k < SH_OP_MAX_OUT && any; k++)
            if (op->out[k] != SH_NONE)
                g->depends[sh_tensor_root(g->p, op->out[k])] = true;
    }
}

/* View `grad` in the shape of `t`. */
static int shaped(struct grad *g, int grad, int t)
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

/* A new gradient of an activation, in its type, named after it. */
static int fresh(struct grad *g, int t)
{
    const struct sh_tensor *of = &g->p->tensors[t];
    struct sh_tensor d = sh_tensor_make(SH_MEM_ACT_GRAD, of->dtype, of->ndim, of->dim, "d.%.60s", of->name);

    return sh_program_add_tensor(g->p, &d);
}

/* Attributes are copied only if both kinds use the same ones. */
static struct sh_op backward_op(const struct grad *g, enum sh_op_kind kind)
{
    struct sh_op op = sh_program_op(kind);

    if (sh_op_info(kind)->attrs == sh_op_info(g->fwd.kind)->attrs)
        op.attr = g->fwd.attr;
    op.phase = SH_PHASE_BACKWARD;
    op.block = g->fwd.block;
    return op;
}

/* Gradient of an output of the forward operation; SH_NONE when nothing depends on it. */
static int upstream(struct grad *g, int out)
{
    int t = g->fwd.out[out], d = *slot(g, t);

    return d == SH_NONE ? SH_NONE : shaped(g, d, t);
}

/* Take what others have contributed to the gradient of t so far; the caller adds it to its own contribution. */
static int take(struct grad *g, int t)
{
    int d = *slot(g, t);

    *slot(g, t) = SH_NONE;
    return d == SH_NONE ? SH_NONE : shaped(g, d, t);
}

/* Contribute d. A second contribution is added by a separate operation: rules that can add it themselves have called
 * take() before. */
static void give(struct grad *g, int t, int d)
{
    int earlier = wanted(g, t) ? take(g, t) : SH_NONE;

    if (!wanted(g, t))
        return;
    if (earlier != SH_NONE) {
        struct sh_op add = backward_op(g, SH_OP_ADD);

        add.in[0] = earlier;
        add.in[1] = d;
        d = add.out[0] = fresh(g, t);
        sh_program_add_op(g->p, &add);
    }
    *slot(g, t) = d;
}

/* Make output `out` of `op` the gradient of parameter tensor t: the first such output writes, later ones add. A frozen
 * parameter has none. */
static void to_param(struct grad *g, struct sh_op *op, int out, int t)
{
    struct sh_tensor d;

    if (!wanted(g, t))
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

/* One operation per table: each then has one output, and starts or adds by itself. */
static void embed_rule(struct grad *g)
{
    int dx = upstream(g, 0);

    for (int table = 0; table < 2; table++) {
        struct sh_op op = backward_op(g, SH_OP_EMBED_BWD);

        if (!wanted(g, g->fwd.in[1 + table]))
            continue;
        op.in[0] = dx;
        op.in[1] = g->fwd.in[0];
        op.in[2] = table ? g->fwd.in[3] : SH_NONE;
        to_param(g, &op, table, g->fwd.in[1 + table]);
        sh_program_add_op(g->p, &op);
    }
}

/* Takes the earlier gradient of x with it: a norm's input is also the residual, so there nearly always is one. */
static void norm_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_NORM_BWD);
    int x = g->fwd.in[0];

    op.in[0] = upstream(g, 0);
    op.in[1] = x;
    op.in[2] = g->fwd.in[1];
    op.in[3] = g->fwd.out[1];
    op.in[4] = g->fwd.out[2];
    op.in[5] = take(g, x);
    op.out[0] = fresh(g, x);
    to_param(g, &op, 1, g->fwd.in[1]);
    to_param(g, &op, 2, g->fwd.in[2]);
    sh_program_add_op(g->p, &op);
    give(g, x, op.out[0]);
}

/* Weights first: the saved input dies there, before the gradient of the input needs room. */
static void linear_rule(struct grad *g)
{
    struct sh_op w = backward_op(g, SH_OP_LINEAR_BWD_W), x = backward_op(g, SH_OP_LINEAR_BWD_X);
    int dy = upstream(g, 0);

    if (wanted(g, g->fwd.in[2])) {
        struct sh_op b = backward_op(g, SH_OP_BIAS_BWD);

        b.in[0] = dy;
        to_param(g, &b, 0, g->fwd.in[2]);
        sh_program_add_op(g->p, &b);
    }
    if (wanted(g, g->fwd.in[1])) {
        w.in[0] = dy;
        w.in[1] = g->fwd.in[0];
        to_param(g, &w, 0, g->fwd.in[1]);
        sh_program_add_op(g->p, &w);
    }
    if (!wanted(g, g->fwd.in[0]))
        return;
    x.in[0] = dy;
    x.in[1] = g->fwd.in[1];
    x.in[2] = take(g, g->fwd.in[0]);
    x.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &x);
    give(g, g->fwd.in[0], x.out[0]);
}

/* x passes on its gradient unchanged. */
static void bias_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_BIAS_BWD);
    int dy = upstream(g, 0);

    give(g, g->fwd.in[0], dy);
    if (!wanted(g, g->fwd.in[1]))
        return;
    op.in[0] = dy;
    to_param(g, &op, 0, g->fwd.in[1]);
    sh_program_add_op(g->p, &op);
}

/* y passes on its gradient unchanged. The gradient of x is computed before that of the product beside it, which adds it
 * to its own. */
static void lora_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_LORA_BWD);
    int x = g->fwd.in[1];

    op.in[0] = upstream(g, 0);
    op.in[1] = x;
    op.in[2] = g->fwd.out[1];
    op.in[3] = g->fwd.in[2];
    op.in[4] = g->fwd.in[3];
    give(g, g->fwd.in[0], op.in[0]);
    if (wanted(g, x)) {
        op.in[5] = take(g, x);
        op.out[0] = fresh(g, x);
    }
    to_param(g, &op, 1, g->fwd.in[2]);
    to_param(g, &op, 2, g->fwd.in[3]);
    sh_program_add_op(g->p, &op);
    if (op.out[0] != SH_NONE)
        give(g, x, op.out[0]);
}

/* The inverse of a rotation is its transpose: the same kernel with the other sign. */
static void rope_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_ROPE);

    op.attr.attn.inverse = !g->fwd.attr.attn.inverse;
    op.in[0] = upstream(g, 0);
    for (int i = 1; i <= 3; i++)
        op.in[i] = g->fwd.in[i];
    op.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

/* The mean of the gradient times x w over the heads of all ranks, by the three operations that made that of squares. */
static int mean_over_ranks(struct grad *g)
{
    int mean = SH_NONE, first = g->fwd_index - 3;

    for (int i = first; i < g->fwd_index; i++) {
        struct sh_op op = g->p->ops[i];

        op.phase = SH_PHASE_BACKWARD;
        op.in[0] = i == first ? upstream(g, 0) : mean;
        for (int k = 1; k <= 3 && i == first; k++)
            op.in[k] = g->fwd.in[k - 1];
        op.out[0] = mean = fresh(g, op.out[0]);
        sh_program_add_op(g->p, &op);
    }
    return mean;
}

static void qk_norm_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_QK_NORM_BWD);

    op.in[0] = upstream(g, 0);
    for (int i = 0; i < 3; i++)
        op.in[1 + i] = g->fwd.in[i];
    op.in[4] = g->fwd.out[1];
    if (g->fwd.in[3] != SH_NONE)
        op.in[5] = mean_over_ranks(g);
    op.out[0] = fresh(g, g->fwd.in[0]);
    to_param(g, &op, 1, g->fwd.in[1]);
    if (g->fwd.in[2] != g->fwd.in[1]) /* else there are no keys */
        to_param(g, &op, 2, g->fwd.in[2]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

static void regroup_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_REGROUP);

    op.attr.regroup.inverse = !g->fwd.attr.regroup.inverse;
    op.in[0] = upstream(g, 0);
    op.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

/* The same operation on the gradient. */
static void scale_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_SCALE);

    op.in[0] = upstream(g, 0);
    op.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

/* The factor is no parameter that learns. */
static void scale_by_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_SCALE_BY);

    op.in[0] = upstream(g, 0);
    op.in[1] = g->fwd.in[1];
    op.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

static void value_norm_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_VALUE_NORM_BWD);

    op.in[0] = upstream(g, 0);
    op.in[1] = g->fwd.in[0];
    op.in[2] = g->fwd.out[1];
    op.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

/* Softmax is not kept: the backward has the output and each row's log-sum-exp (out[1]), and recomputes it. With a sink,
 * which comes right after, these are the sink's. */
static const struct sh_op *makes_output(const struct grad *g)
{
    const struct sh_op *next = &g->p->ops[g->fwd_index + 1];

    return next->kind == SH_OP_SINK ? next : &g->fwd;
}

static void attention_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_ATTENTION_BWD);
    const struct sh_op *of = makes_output(g);

    op.in[2] = of->out[0];
    op.in[3] = of->out[1];
    op.in[0] = upstream(g, 0);
    op.in[1] = g->fwd.in[0];
    op.in[4] = g->fwd.in[1];
    op.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

/* Attention takes the gradient as it is. */
static void sink_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_SINK_BWD);
    int dy = upstream(g, 0);

    if (wanted(g, g->fwd.in[2])) {
        op.in[0] = dy;
        op.in[1] = g->fwd.out[0];
        op.in[2] = g->fwd.out[1];
        op.in[3] = g->fwd.in[2];
        to_param(g, &op, 0, g->fwd.in[2]);
        sh_program_add_op(g->p, &op);
    }
    give(g, g->fwd.in[0], dy);
}

/* The same, with keys and values apart. */
static void attention_rows_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_ATTENTION_ROWS_BWD);
    const struct sh_op *of = makes_output(g);

    op.in[3] = of->out[0];
    op.in[4] = of->out[1];
    op.in[0] = upstream(g, 0);
    op.in[1] = g->fwd.in[0];
    op.in[2] = g->fwd.in[1];
    op.in[5] = g->fwd.in[2];
    for (int i = 0; i < 2; i++)
        op.out[i] = fresh(g, g->fwd.in[i]);
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 2; i++)
        give(g, g->fwd.in[i], op.out[i]);
}

static void split_kv_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_JOIN_KV);

    op.in[0] = upstream(g, 0);
    op.in[1] = upstream(g, 1);
    op.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

/* Either part may depend on nothing that is trained; what it gets is then not looked at. */
static void join_kv_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_SPLIT_KV);

    op.in[0] = upstream(g, 0);
    for (int i = 0; i < 2; i++)
        op.out[i] = fresh(g, g->fwd.in[i]);
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 2; i++)
        give(g, g->fwd.in[i], op.out[i]);
}

static void split_gate_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_JOIN_GATE);

    op.in[0] = upstream(g, 0);
    op.in[1] = upstream(g, 1);
    op.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

static void gate_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_GATE_BWD);

    op.in[0] = upstream(g, 0);
    for (int i = 0; i < 2; i++) {
        op.in[1 + i] = g->fwd.in[i];
        op.out[i] = fresh(g, g->fwd.in[i]);
    }
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 2; i++)
        give(g, g->fwd.in[i], op.out[i]);
}

static void short_conv_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_SHORT_CONV_BWD);

    op.in[0] = upstream(g, 0);
    for (int i = 0; i < 4; i++)
        op.in[1 + i] = g->fwd.in[i];
    op.out[0] = fresh(g, g->fwd.in[0]);
    to_param(g, &op, 1, g->fwd.in[1]);
    if (g->fwd.in[3] != SH_NONE)
        to_param(g, &op, 2, g->fwd.in[3]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

/* The first two inputs have rows, the next `params` are parameters, and all of them have a gradient; what the forward
 * made for the backward comes last. */
static void heads_rule(struct grad *g, enum sh_op_kind kind, int params, int others)
{
    struct sh_op op = backward_op(g, kind);
    int n = 2 + params + others;

    op.in[0] = upstream(g, 0);
    for (int i = 0; i < n; i++)
        op.in[1 + i] = g->fwd.in[i];
    op.in[1 + n] = g->fwd.out[1];
    for (int i = 0; i < 2; i++)
        op.out[i] = fresh(g, g->fwd.in[i]);
    for (int i = 2; i < 2 + params; i++)
        to_param(g, &op, i, g->fwd.in[i]);
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 2; i++)
        give(g, g->fwd.in[i], op.out[i]);
}

static void gated_delta_rule(struct grad *g)
{
    heads_rule(g, SH_OP_GATED_DELTA_BWD, 2, 1);
}

static void gated_norm_rule(struct grad *g)
{
    heads_rule(g, SH_OP_GATED_NORM_BWD, 1, 0);
}

static void scan_rule(struct grad *g)
{
    heads_rule(g, SH_OP_SCAN_BWD, 1, 1);
}

static void gate_norm_rule(struct grad *g)
{
    heads_rule(g, SH_OP_GATE_NORM_BWD, 1, 0);
}

/* Of a frozen product without adapters nothing is asked. */
static void latent_heads_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_LATENT_HEADS_BWD);

    op.in[0] = upstream(g, 0);
    for (int i = 0; i < 3; i++)
        op.out[i] = wanted(g, g->fwd.in[i]) ? fresh(g, g->fwd.in[i]) : SH_NONE;
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 3; i++)
        give(g, g->fwd.in[i], op.out[i]);
}

/* The choice itself passes no gradient; that of the weights goes through the router's product. */
static void route_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_ROUTE_BWD);
    int x = g->fwd.in[0];

    op.in[0] = upstream(g, 0);
    for (int i = 1; i <= 3; i++)
        op.in[i] = g->fwd.out[i];
    op.in[4] = x;
    op.in[5] = g->fwd.in[1];
    if (wanted(g, x)) {
        op.in[6] = take(g, x);
        op.out[0] = fresh(g, x);
    }
    to_param(g, &op, 1, g->fwd.in[1]);
    if (g->fwd.in[3] != SH_NONE)
        to_param(g, &op, 2, g->fwd.in[3]);
    sh_program_add_op(g->p, &op);
    if (op.out[0] != SH_NONE)
        give(g, x, op.out[0]);
}

/* The plan to which this output belongs: an order of rows or, its inverse, their places. */
static const struct sh_op *plan_of(const struct grad *g, int output, int t)
{
    int i = g->fwd_index;

    while (g->p->ops[i].kind != SH_OP_ROUTE_PLAN || g->p->ops[i].out[output] != t)
        i--;
    return &g->p->ops[i];
}

/* A token's row was copied to each of its experts. */
static void row_gather_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_ROW_SUM);
    int x = g->fwd.in[0];

    op.in[0] = upstream(g, 0);
    op.in[1] = plan_of(g, 0, g->fwd.in[1])->out[1];
    op.in[2] = take(g, x);
    op.out[0] = fresh(g, x);
    sh_program_add_op(g->p, &op);
    give(g, x, op.out[0]);
}

static void row_sum_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_ROW_GATHER);
    int ys = g->fwd.in[0], dy = upstream(g, 0);

    if (wanted(g, ys)) {
        op.in[0] = dy;
        op.in[1] = plan_of(g, 1, g->fwd.in[1])->out[0];
        op.out[0] = fresh(g, ys);
        sh_program_add_op(g->p, &op);
        give(g, ys, op.out[0]);
    }
    if (g->fwd.in[2] != SH_NONE)
        give(g, g->fwd.in[2], dy);
}

/* As linear_rule(). */
static void expert_linear_rule(struct grad *g)
{
    struct sh_op w = backward_op(g, SH_OP_EXPERT_LINEAR_BWD_W), x = backward_op(g, SH_OP_EXPERT_LINEAR_BWD_X);

    w.in[0] = x.in[0] = upstream(g, 0);
    w.in[1] = g->fwd.in[0];
    w.in[2] = x.in[1] = g->fwd.in[1];
    x.in[2] = g->fwd.in[2];
    if (wanted(g, g->fwd.in[2])) {
        to_param(g, &w, 0, g->fwd.in[2]);
        sh_program_add_op(g->p, &w);
    }
    if (!wanted(g, g->fwd.in[0]))
        return;
    x.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &x);
    give(g, g->fwd.in[0], x.out[0]);
}

/* x passes on its gradient unchanged. */
static void expert_bias_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_EXPERT_BIAS_BWD);
    int weight = g->fwd.in[3];
    bool weighs = weight != SH_NONE && wanted(g, weight);

    op.in[0] = upstream(g, 0);
    for (int i = 1; i <= 4; i++)
        op.in[i] = i == 2 && !weighs ? SH_NONE : g->fwd.in[i];
    to_param(g, &op, 0, g->fwd.in[2]);
    if (weighs)
        op.out[1] = fresh(g, weight);
    if (op.out[0] != SH_NONE || weighs)
        sh_program_add_op(g->p, &op);
    if (weighs)
        give(g, weight, op.out[1]);
    give(g, g->fwd.in[0], op.in[0]);
}

/* The gradient of weights is f32, as they are; that of a bias which they weighed is added. */
static void activate_rows(struct grad *g, enum sh_op_kind backward)
{
    struct sh_op op = backward_op(g, backward);

    op.in[0] = upstream(g, 0);
    for (int i = 0; i < 3; i++)
        op.in[1 + i] = g->fwd.in[i];
    op.in[5] = take(g, g->fwd.in[1]);
    for (int i = 0; i < 2; i++)
        op.out[i] = fresh(g, g->fwd.in[i]);
    sh_program_add_op(g->p, &op);
    for (int i = 0; i < 2; i++)
        give(g, g->fwd.in[i], op.out[i]);
}

static void swiglu_rows_rule(struct grad *g)
{
    activate_rows(g, SH_OP_SWIGLU_ROWS_BWD);
}

static void squared_relu_rows_rule(struct grad *g)
{
    activate_rows(g, SH_OP_SQUARED_RELU_ROWS_BWD);
}

/* For kinds whose row names their backward. That of a linear one does not need x. */
static void pointwise_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, sh_op_info(g->fwd.kind)->backward);

    op.in[0] = upstream(g, 0);
    op.in[1] = sh_op_info(op.kind)->n_in > 1 ? g->fwd.in[0] : SH_NONE;
    op.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

static void cast(struct grad *g, int from, int to)
{
    struct sh_op op = backward_op(g, SH_OP_CAST);

    op.in[0] = from;
    op.out[0] = to;
    sh_program_add_op(g->p, &op);
}

/* The same in float32. */
static int widened(struct grad *g, int t)
{
    struct sh_tensor wide = g->p->tensors[t];

    wide = sh_tensor_make(SH_MEM_ACT_GRAD, SH_F32, wide.ndim, wide.dim, "%.60s in f32", wide.name);
    return sh_program_add_tensor(g->p, &wide);
}

/* Rows that ranks of a group exchange. The gradient of a row is the sum over the ranks that have read it: nothing is
 * averaged, whatever the size of the group. Sums over ranks have no float16: there they are made in float32. */
static void exchange_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, sh_op_info(g->fwd.kind)->backward);
    int dy = upstream(g, 0), dx = fresh(g, g->fwd.in[0]);
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
    give(g, g->fwd.in[0], dx);
}

/* The gradient of what goes to the next stage comes back from there; that of what came goes back. */
static void send_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_RECEIVE);

    op.out[0] = fresh(g, g->fwd.in[0]);
    sh_program_add_op(g->p, &op);
    give(g, g->fwd.in[0], op.out[0]);
}

static void receive_rule(struct grad *g)
{
    struct sh_op op = backward_op(g, SH_OP_SEND);

    op.in[0] = upstream(g, 0);
    sh_program_add_op(g->p, &op);
}

/* Both get the same tensor. It is never written in place while the other still reads it, since lifetimes cover both. */
static void add_rule(struct grad *g)
{
    int dy = upstream(g, 0);

    give(g, g->fwd.in[0], dy);
    give(g, g->fwd.in[1], dy);
}

/* The loss is the end of the forward and the start of the backward, and its own gradient (1 / counted tokens) is known
 * before the step. So the forward operation itself is made to return the gradients, and no logits are computed
 * twice. */
static void head_rule(struct grad *g)
{
    struct sh_op *op = &g->p->ops[g->fwd_index];
    struct sh_op with_grad = *op;
    int x = g->fwd.in[0];

    with_grad.kind = SH_OP_HEAD_LOSS_GRAD;
    with_grad.phase = SH_PHASE_BACKWARD;
    with_grad.out[1] = fresh(g, x);
    to_param(g, &with_grad, 2, g->fwd.in[1]);
    g->p->ops[g->fwd_index] = with_grad;
    give(g, x, with_grad.out[1]);
}

/* A kind with neither a row here nor `backward` in the table of operations cannot be trained. */
typedef void rule(struct grad *g);

/* clang-format off */
static rule *const rules[SH_OP_ROOM] = {
    [SH_OP_EMBED] = embed_rule,
    [SH_OP_NORM] = norm_rule,
    [SH_OP_LINEAR] = linear_rule,
    [SH_OP_BIAS] = bias_rule,
    [SH_OP_LORA] = lora_rule,
    [SH_OP_ROPE] = rope_rule,
    [SH_OP_ATTENTION] = attention_rule,
    [SH_OP_ATTENTION_ROWS] = attention_rows_rule,
    [SH_OP_SPLIT_KV] = split_kv_rule,
    [SH_OP_JOIN_KV] = join_kv_rule,
    [SH_OP_SPLIT_GATE] = split_gate_rule,
    [SH_OP_GATE] = gate_rule,
    [SH_OP_SHORT_CONV] = short_conv_rule,
    [SH_OP_GATED_DELTA] = gated_delta_rule,
    [SH_OP_GATED_NORM] = gated_norm_rule,
    [SH_OP_SCAN] = scan_rule,
    [SH_OP_GATE_NORM] = gate_norm_rule,
    [SH_OP_LATENT_HEADS] = latent_heads_rule,
    [SH_OP_QK_NORM] = qk_norm_rule,
    [SH_OP_SCALE] = scale_rule,
    [SH_OP_SCALE_BY] = scale_by_rule,
    [SH_OP_VALUE_NORM] = value_norm_rule,
    [SH_OP_REGROUP] = regroup_rule,
    [SH_OP_ADD] = add_rule,
    [SH_OP_ROUTE] = route_rule,
    [SH_OP_ROW_GATHER] = row_gather_rule,
    [SH_OP_ROW_SUM] = row_sum_rule,
    [SH_OP_EXPERT_LINEAR] = expert_linear_rule,
    [SH_OP_SWIGLU_ROWS] = swiglu_rows_rule,
    [SH_OP_SQUARED_RELU_ROWS] = squared_relu_rows_rule,
    [SH_OP_EXPERT_BIAS] = expert_bias_rule,
    [SH_OP_SINK] = sink_rule,
    [SH_OP_HEAD_LOSS] = head_rule,
    [SH_OP_SEND] = send_rule,
    [SH_OP_RECEIVE] = receive_rule,
};
/* clang-format on */

static rule *rule_of(enum sh_op_kind kind)
{
    const struct sh_op_info *info = sh_op_info(kind);

    if (!info->backward)
        return rules[kind];
    return info->async ? exchange_rule : pointwise_rule;
}

/* For the test that every kind that a model emits has a rule. */
bool sh_pass_grad_knows(enum sh_op_kind kind)
{
    return rule_of(kind) != NULL;
}

/* Emit the backward of operation g->fwd: nothing if it depends on no trained parameter. */
static sh_rc run_rule(const struct sh_build *b, struct grad *g)
{
    bool any = g->fwd.kind == SH_OP_SEND && wanted(g, g->fwd.in[0]);

    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        any = any || wanted(g, g->fwd.out[k]);
    if (g->fwd.kind == SH_OP_SEND && !any)
        return sh_fail(
            SH_E_USAGE,
            "parallelism.pipeline_parallel_degree=%d: no block before the first border between stages has an "
            "adapter, but each stage takes part in the backward; give lora.target_modules or target_parameters that "
            "these blocks have, another pipeline_parallel_schedule, or fewer stages",
            sh_group_size(&b->options.mesh, b->options.mesh.pipeline));
    if (!any)
        return SH_OK;
    if (g->fwd.kind == SH_OP_HEAD_LOSS && wanted(g, g->fwd.in[3]))
        return sh_fail(SH_E_BUG,
                       "operation %d (%s): no gradient passes to its weight, which depends on trained parameters",
                       g->fwd_index, sh_op_info(g->fwd.kind)->name);
    if (!rule_of(g->fwd.kind))
        return sh_fail(SH_E_BUG, "operation %d (%s) has no backward rule", g->fwd_index, sh_op_info(g->fwd.kind)->name);
    rule_of(g->fwd.kind)(g);
    return SH_OK;
}

/* Append the backward to the forward's operations. Rules add operations, so the walk uses the forward's original
 * length. */
sh_rc sh_pass_grad(const struct sh_build *b, struct sh_program *micro)
{
    struct grad g = {.p = micro};
    int n_forward = micro->n_ops, n_of = micro->n_tensors;
    sh_rc rc = SH_OK;

    g.of = sh_calloc((size_t)n_of, sizeof *g.of);
    g.depends = sh_calloc((size_t)n_of, sizeof *g.depends);
    for (int i = 0; i < n_of; i++)
        g.of[i] = SH_NONE;
    find_dependent(&g, n_forward, n_of);
    for (int i = n_forward - 1; i >= 0 && rc == SH_OK; i--) {
        g.fwd = micro->ops[i];
        g.fwd_index = i;
        rc = run_rule(b, &g);
    }
    free(g.of);
    free(g.depends);
    return rc;
}
