/* The least a call can cost: additions and multiplications, by its row's formula, and bytes that must cross the
 * memory once. The planner divides them by measured rates; they are floors, not predictions.
 *
 * Attention counts only the (query, key) pairs that the causal mask leaves, T(T+1)/2 of T*T, since no others need to
 * be looked at, and of these only the ones inside the window. Document masks leave still fewer pairs, but the shapes
 * do not tell. */
#include "kernels/muon.h"
#include "kernels/rows.h"

#include <math.h>

static double bytes(const struct sh_operand *t)
{
    double n = t->ndim > 0 ? sh_dtype_bytes(t->dtype) : 0;

    for (int i = 0; i < t->ndim; i++)
        n *= (double)t->dim[i];
    return n;
}

/* The share of the M rows of experts that are expected to live. Without any a call does nothing. */
static double share_of_rows(const struct sh_op_call *c)
{
    if (!sh_op_has_rows(c->kind))
        return 1;
    if (c->attr->rows.expected < 0)
        return 0;
    if (c->attr->rows.expected > 0 && c->attr->rows.expected < c->in[0].dim[0])
        return (double)c->attr->rows.expected / (double)c->in[0].dim[0];
    return 1;
}

/* Bytes of the elements that the call touches: all of them, except for tables in which only some rows are looked up,
 * and for rows that are not expected to live. */
static double touched(const struct sh_op_call *c, const struct sh_operand_row *row, const struct sh_operand *t,
                      const struct sh_letters *letters)
{
    if (!t->ndim || !row->touched.n)
        return bytes(t) * (sh_formula_letter(&row->dim[0]) == 'M' ? share_of_rows(c) : 1);
    return sh_formula_value(&row->touched, letters, c) * sh_dtype_bytes(t->dtype);
}

/* Bytes of an output that are written, plus those read if its earlier value counts. An output of which only some rows
 * are added to is set to zero first, unless it accumulates. A sum over rows is added to by each block after the first. */
static double written(const struct sh_op_call *c, int i, const struct sh_letters *letters)
{
    const struct sh_operand_row *row = &sh_op_shape(c->kind)->out[i];
    bool earlier = sh_op_adds(c, i) || row->inout, near = c->kind == SH_OP_ROW_GATHER && i == 1;
    double some = touched(c, row, &c->out[i], letters);
    int64_t divided = sh_rows_to_divide(c);

    if (near) /* its rows are counted as those of xs */
        return 0;
    if (divided && !sh_rows_in(row))
        return 2 * some * (double)((divided - 1) / c->attr->row_block + earlier) + (earlier ? 0 : some);

    if (row->touched.n && c->out[i].ndim)
        return earlier ? 2 * some : bytes(&c->out[i]) + 2 * some;
    return earlier ? 2 * some : some;
}

/* The share of T*T that is counted: T(T+1)/2 pairs, less those hidden from the T-W queries that see no more than W
 * keys. Runs of queries from both ends have their part of it. */
static double share_of_pairs(const struct sh_op_call *c)
{
    double T, W = c->attr->attn.window, hidden;

    switch (c->kind) {
    case SH_OP_ATTENTION: T = (double)c->in[0].dim[1]; break;
    case SH_OP_ATTENTION_BWD:
    case SH_OP_ATTENTION_ROWS: T = (double)c->in[1].dim[1]; break;
    case SH_OP_ATTENTION_ROWS_BWD: T = (double)c->in[2].dim[1]; break;
    default: return 1;
    }
    hidden = W > 0 && W < T ? (T - W) * (T - W + 1) / 2 : 0;
    return 1 - hidden / (T * (T + 1) / 2);
}

/* Of the matrices that this rank has, which no letters describe. */
static double flops_of_matrices(const struct sh_op_call *c)
{
    double flops = 0;

    for (int i = 0; c->kind == SH_OP_ORTHO && i < c->attr->ortho.count; i++)
        flops += sh_matrix_flops(&c->matrices[i], c->attr->ortho.steps);
    for (int i = 0; c->kind == SH_OP_ORTHO_ROWS && i < c->attr->ortho.count; i++)
        flops += sh_matrix_row_flops(&c->matrices[i]);
    return flops;
}

double sh_op_copied(const struct sh_op_call *c)
{
    double flops = 0;

    for (int i = 0; c->kind == SH_OP_ORTHO && i < c->attr->ortho.count; i++)
        flops += sh_matrix_copied(&c->matrices[i], c->attr->ortho.steps);
    return flops;
}

/* Other ranks or replicas have them: it returns at once. */
static bool has_no_matrices(const struct sh_op_call *c)
{
    return (c->kind == SH_OP_ORTHO || c->kind == SH_OP_ORTHO_ROWS) && c->attr->ortho.count == 0;
}

struct sh_op_cost sh_op_cost(const struct sh_op_call *call)
{
    const struct sh_op_shape *s = sh_op_shape(call->kind);
    struct sh_op_cost cost = {0};
    struct sh_letters letters;

    if (sh_op_info(call->kind)->marker || share_of_rows(call) == 0 || has_no_matrices(call))
        return cost;
    sh_shape_letters(call, &letters);
    cost.flops = sh_formula_value(&s->flops, &letters, call) * share_of_pairs(call) * share_of_rows(call) +
                 flops_of_matrices(call);
    for (int i = 0; i < s->n_in; i++)
        cost.bytes += touched(call, &s->in[i], &call->in[i], &letters);
    for (int i = 0; i < s->n_out; i++)
        cost.bytes += written(call, i, &letters);
    return cost;
}

/* A query at t, counted from 1, sees mean (1 - q^t) keys, with q = 1 - 1 / mean. */
double sh_op_pairs_in_documents(double mean, double T)
{
    double q = 1 - 1 / mean;

    return mean * (T - mean * q * (1 - pow(q, T)));
}
