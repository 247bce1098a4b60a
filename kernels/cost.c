/* What a call costs at least: additions and multiplications, by its row's formula, and bytes that must cross the memory
 * once. The planner divides them by measured rates; they are floors, not predictions.
 *
 * Of the pairs (query, key) of attention those that the causal mask leaves are counted, T(T+1)/2 of T*T, as only they need
 * be looked at, and of these those that a window leaves. Document masks leave still fewer; the shapes do not tell. */
#include "kernels/shape.h"

static double bytes(const struct sh_operand *t)
{
    double n = t->ndim > 0 ? sh_dtype_bytes(t->dtype) : 0;

    for (int i = 0; i < t->ndim; i++)
        n *= (double)t->dim[i];
    return n;
}

/* Bytes of the elements that the call touches: all, but for tables of which only some rows are looked up. */
static double touched(const struct sh_op_call *c, const struct sh_operand_row *row, const struct sh_operand *t,
                      const struct sh_letters *letters)
{
    if (!t->ndim || !row->touched.n)
        return bytes(t);
    return sh_formula_value(&row->touched, letters, c) * sh_dtype_bytes(t->dtype);
}

/* Bytes of an output that are written, and read where the earlier value counts. One of which some rows are added to is
 * first set to zero. */
static double written(const struct sh_op_call *c, int i, const struct sh_letters *letters)
{
    const struct sh_operand_row *row = &sh_op_shape(c->kind)->out[i];
    bool earlier = sh_op_adds(c, i) || row->inout;
    double some = touched(c, row, &c->out[i], letters);

    if (row->touched.n && c->out[i].ndim)
        return earlier ? 2 * some : bytes(&c->out[i]) + 2 * some;
    return earlier ? 2 * some : some;
}

/* T(T+1)/2 pairs less those of the T-W queries that see no more than W keys. */
static double share_of_pairs(const struct sh_op_call *c)
{
    double T, W = c->attr->attn.window, hidden;

    if (c->kind != SH_OP_ATTENTION && c->kind != SH_OP_ATTENTION_BWD)
        return 1;
    T = (double)c->in[c->kind == SH_OP_ATTENTION ? 0 : 1].dim[1];
    hidden = W > 0 && W < T ? (T - W) * (T - W + 1) / 2 : 0;
    return 1 - hidden / (T * (T + 1) / 2);
}

struct sh_op_cost sh_op_cost(const struct sh_op_call *call)
{
    const struct sh_op_shape *s = sh_op_shape(call->kind);
    struct sh_op_cost cost = {0};
    struct sh_letters letters;

    if (sh_op_info(call->kind)->marker)
        return cost;
    sh_shape_letters(call, &letters);
    cost.flops = sh_formula_value(&s->flops, &letters, call) * share_of_pairs(call);
    for (int i = 0; i < s->n_in; i++)
        cost.bytes += touched(call, &s->in[i], &call->in[i], &letters);
    for (int i = 0; i < s->n_out; i++)
        cost.bytes += written(call, i, &letters);
    return cost;
}
