/* Consecutive operations become one if the device has a kernel for the pair, so that the second one finds its input in
 * the caches. A fused kind has the inputs of the first, then the remaining ones of the second; its outputs are those of
 * the first, then those of the second. Its bits are those of the pair.
 *
 * Products are left alone. GELU on each square of C, or on all squares of a slice, took two to six times as long as a
 * separate pass (AMX, bfloat16, gpt2-124m): the L2 cache is full of what the product reads again, and rows of C lie 6
 * KiB apart. */
#include "src/pass/build.h"

#include <string.h>

static const struct pair {
    enum sh_op_kind first, second, fused;
    int chief; /* 0: the first, 1: the second: the operation whose attributes count */
} pairs[] = {
    {SH_OP_ADD, SH_OP_NORM, SH_OP_ADD_NORM, 1},
    {SH_OP_NORM_BWD, SH_OP_BIAS_BWD, SH_OP_NORM_BWD_BIAS, 0},
    {SH_OP_GELU_BWD, SH_OP_BIAS_BWD, SH_OP_GELU_BWD_BIAS, 0},
};

bool sh_fuse_pair(enum sh_op_kind fused, enum sh_op_kind *first, enum sh_op_kind *second)
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].fused == fused) {
            *first = pairs[i].first;
            *second = pairs[i].second;
            return true;
        }
    return false;
}

/* Whether tensor t is the first input of `op`, all of it, possibly in another shape. */
static bool goes_into(const struct sh_program *p, int t, const struct sh_op *op)
{
    int in = op->in[0];

    return sh_tensor_root(p, in) == sh_tensor_root(p, t) &&
           sh_tensor_elems(&p->tensors[in]) == sh_tensor_elems(&p->tensors[t]);
}

/* The unit of the parameters whose gradients an operation makes. */
static int unit_of_grads(const struct sh_program *p, const struct sh_op *op)
{
    for (int k = 0; k < SH_OP_MAX_OUT; k++) {
        int param = op->out[k] == SH_NONE ? SH_NONE : p->tensors[op->out[k]].grad_of;

        if (param != SH_NONE)
            return p->params[param].unit;
    }
    return SH_NONE;
}

/* Gradients of two units at once would keep one more unreduced unit in memory. */
static bool one_unit(const struct sh_program *p, const struct sh_op *op)
{
    int first = unit_of_grads(p, &op[0]), second = unit_of_grads(p, &op[1]);

    return first == SH_NONE || second == SH_NONE || first == second;
}

/* The pair that op[0] and op[1] form; NULL: none. */
static const struct pair *pair_of(const struct sh_program *p, const struct sh_op *op,
                                  const struct sh_kernel_table *kernels)
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (op[0].kind == pairs[i].first && op[1].kind == pairs[i].second && op[0].phase == op[1].phase &&
            kernels->run[pairs[i].fused] && goes_into(p, op[0].out[0], &op[1]) && one_unit(p, op))
            return &pairs[i];
    return NULL;
}

/* The attributes are the chief's. Bits of `accumulate` move with their outputs: those of the second begin after n_out
 * of the first. */
static struct sh_op join(const struct pair *pair, const struct sh_op *op)
{
    const struct sh_op_info *first = sh_op_info(pair->first), *second = sh_op_info(pair->second);
    struct sh_op fused = op[pair->chief];

    fused.kind = pair->fused;
    fused.attr.accumulate = op[0].attr.accumulate | op[1].attr.accumulate << first->n_out;
    memcpy(fused.in, op[0].in, sizeof fused.in);
    memcpy(fused.out, op[0].out, sizeof fused.out);
    for (int k = 1; k < second->n_in; k++)
        fused.in[first->n_in + k - 1] = op[1].in[k];
    for (int k = 0; k < second->n_out; k++)
        fused.out[first->n_out + k] = op[1].out[k];
    return fused;
}

/* In place: the list only gets shorter, so n never passes i. */
sh_rc sh_pass_fuse(const struct sh_build *b, struct sh_program *micro)
{
    int n = 0;

    for (int i = 0; i < micro->n_ops; i++, n++) {
        const struct sh_op *op = &micro->ops[i];
        const struct pair *pair = i + 1 < micro->n_ops ? pair_of(micro, op, b->kernels) : NULL;

        micro->ops[n] = pair ? join(pair, op) : *op;
        i += pair != NULL;
    }
    micro->n_ops = n;
    return SH_OK;
}
