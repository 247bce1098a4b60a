/* What a call costs at least: additions and multiplications, and bytes that must cross the memory once. The planner
 * divides them by measured rates; they are floors, not predictions. */
#include "kernels/op.h"

static double elems(const struct sh_operand *t)
{
    double n = t->ndim > 0 ? 1 : 0;
    for (int i = 0; i < t->ndim; i++)
        n *= (double)t->dim[i];
    return n;
}

static double bytes(const struct sh_operand *t)
{
    return elems(t) * sh_dtype_bytes(t->dtype);
}

/* Elementwise kinds: operations for each element of one operand, counted from the formulas in kernels/ref, with an
 * exponential, a division or a root as one. Output operands are numbered from SH_OP_MAX_IN. */
enum { OUT0 = SH_OP_MAX_IN };

static const struct {
    double flops;
    int of;
} elementwise[SH_OP_KINDS] = {
    [SH_OP_EMBED] = {1, OUT0},     [SH_OP_EMBED_BWD] = {2, 0},    [SH_OP_NORM] = {7, 0},
    [SH_OP_NORM_BWD] = {14, 0},    [SH_OP_BIAS_BWD] = {1, 0},     [SH_OP_ROPE_TABLE] = {2, OUT0},
    [SH_OP_ROPE] = {3, 0},         [SH_OP_GELU] = {9, 0},         [SH_OP_GELU_BWD] = {17, 0},
    [SH_OP_SWIGLU] = {5, OUT0},    [SH_OP_SWIGLU_BWD] = {12, 0},  [SH_OP_ADD] = {1, 0},
    [SH_OP_ACCUMULATE] = {1, 0},   [SH_OP_SUMSQ] = {2, 0},        [SH_OP_ADAMW] = {15, 0},
    [SH_OP_SGD] = {7, 0},          [SH_OP_LION] = {11, 0},
    [SH_OP_ADD_NORM] = {8, 0},     [SH_OP_NORM_BWD_BIAS] = {15, 0}, [SH_OP_GELU_BWD_BIAS] = {18, 0},
    [SH_OP_EXACT_ROUND] = {3, 0},  [SH_OP_REDUCE_SCATTER] = {1, 0}, [SH_OP_ALL_REDUCE] = {1, OUT0},
};

/* One matrix product: `rows` rows of x against every element of w. */
static double product(double rows, const struct sh_operand *w)
{
    return 2 * rows * elems(w);
}

/* Pairs (query, key) of all heads that the causal mask leaves: T(T+1)/2 of T*T, so that about half the work of a full
 * square is counted, as only that half need be done. Document masks leave still fewer; the shapes do not tell. */
static double attention_pairs(const struct sh_op_call *c, const struct sh_operand *qkv)
{
    double b = (double)qkv->dim[0], t = (double)qkv->dim[1];
    return b * c->attr->heads * t * (t + 1) / 2;
}

static double flops_of(const struct sh_op_call *c)
{
    double d = c->attr->head_dim;
    switch (c->kind) {
    case SH_OP_LINEAR:
        return product((double)c->in[0].dim[0], &c->in[1]) + (c->in[2].ndim ? elems(&c->out[0]) : 0);
    case SH_OP_LINEAR_BWD_X:
        return product((double)c->in[0].dim[0], &c->in[1]);
    case SH_OP_LINEAR_BWD_W:
        return product((double)c->in[0].dim[0], &c->out[0]);
    case SH_OP_ATTENTION: /* products q k', p v; an exponential and five more for each pair */
        return attention_pairs(c, &c->in[0]) * (4 * d + 6);
    case SH_OP_ATTENTION_BWD: /* q k' again, do v', p' do, ds k, ds' q */
        return attention_pairs(c, &c->in[1]) * (10 * d + 6);
    case SH_OP_HEAD_LOSS:
        return product(elems(&c->in[2]), &c->in[1]);
    case SH_OP_HEAD_LOSS_GRAD:
        return 3 * product(elems(&c->in[2]), &c->in[1]);
    case SH_OP_LOGITS:
        return product((double)c->in[0].dim[0], &c->in[1]);
    default: {
        int of = elementwise[c->kind].of;
        return elementwise[c->kind].flops * elems(of < OUT0 ? &c->in[of] : &c->out[of - OUT0]);
    }
    }
}

/* Bytes of an input that are read: all of it, but for tables of which only some rows are looked up. */
static double bytes_read(const struct sh_op_call *c, int i)
{
    const struct sh_operand *t = &c->in[i];
    if (c->kind == SH_OP_EMBED && i == 1)
        return elems(&c->out[0]) * sh_dtype_bytes(t->dtype);
    if (c->kind == SH_OP_EMBED && i == 2 && t->ndim)
        return (double)(c->in[0].dim[1] * t->dim[1]) * sh_dtype_bytes(t->dtype);
    if (c->kind == SH_OP_LOGITS && i == 0)
        return (double)(t->dim[0] * t->dim[2]) * sh_dtype_bytes(t->dtype);
    return bytes(t);
}

/* Bytes of an output that are written, and read where the earlier value counts. */
static double bytes_written(const struct sh_op_call *c, int i)
{
    bool earlier = sh_op_adds(c, i) || ((sh_op_info(c->kind)->rw_out >> i) & 1u);
    double whole = bytes(&c->out[i]);
    if (c->kind == SH_OP_EMBED_BWD && i == 0 && c->out[0].ndim) {
        double rows = elems(&c->in[0]) * sh_dtype_bytes(c->out[0].dtype);
        return earlier ? 2 * rows : whole + 2 * rows;
    }
    return earlier ? 2 * whole : whole;
}

struct sh_op_cost sh_op_cost(const struct sh_op_call *call)
{
    const struct sh_op_info *info = sh_op_info(call->kind);
    struct sh_op_cost cost = {0};
    if (info->marker)
        return cost;
    cost.flops = flops_of(call);
    for (int i = 0; i < info->n_in; i++)
        cost.bytes += bytes_read(call, i);
    for (int i = 0; i < info->n_out; i++)
        cost.bytes += bytes_written(call, i);
    return cost;
}
