/* Operations that follow each other become one where the device has a kernel for the pair, so that the second one finds
 * its input in the caches. A fused kind has the inputs of the first, then the other ones of the second; its outputs are
 * the first's, where others read it too, and the second's. It has the bits of the pair. */
#include "src/base/mem.h"
#include "src/pass/pass.h"

#include <stdlib.h>
#include <string.h>

static const struct pair {
    enum sh_op_kind first, second, fused;
    bool keeps; /* the result of the first is an output as well */
} pairs[] = {
    {SH_OP_LINEAR, SH_OP_GELU, SH_OP_LINEAR_GELU, true},
    {SH_OP_LINEAR, SH_OP_ADD, SH_OP_LINEAR_ADD, false},
    {SH_OP_LINEAR_BWD_X, SH_OP_GELU_BWD, SH_OP_LINEAR_BWD_GELU, false},
};

static int root_of(const struct sh_program *p, int t)
{
    return t == SH_NONE ? SH_NONE : sh_tensor_root(p, t);
}

/* By storage root: how often it is read. */
static int *count_reads(const struct sh_program *p)
{
    int *reads = sh_calloc((size_t)p->n_tensors + 1, sizeof *reads);

    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            if (p->ops[i].in[k] != SH_NONE)
                reads[root_of(p, p->ops[i].in[k])]++;
    return reads;
}

/* The input of `op` that is all of tensor t and no other one reads; SH_NONE. */
static int input_from(const struct sh_program *p, const struct sh_op *op, int t)
{
    int at = SH_NONE;

    for (int k = 0; k < SH_OP_MAX_IN; k++) {
        if (root_of(p, op->in[k]) != t)
            continue;
        if (at != SH_NONE || sh_tensor_elems(&p->tensors[op->in[k]]) != sh_tensor_elems(&p->tensors[t]))
            return SH_NONE;
        at = k;
    }
    return at;
}

static const struct pair *pair_of(const struct sh_program *p, const struct sh_op *op, const int *reads,
                                  const struct sh_kernel_table *kernels)
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const struct pair *pair = &pairs[i];

        if (op[0].kind == pair->first && op[1].kind == pair->second && op[0].phase == op[1].phase &&
            kernels->run[pair->fused] && input_from(p, &op[1], op[0].out[0]) != SH_NONE &&
            (pair->keeps || reads[op[0].out[0]] == 1))
            return pair;
    }
    return NULL;
}

static struct sh_op join(const struct sh_program *p, const struct pair *pair, const struct sh_op *op)
{
    struct sh_op fused = op[0];
    int n = sh_op_info(pair->first)->n_in, between = input_from(p, &op[1], op[0].out[0]);

    fused.kind = pair->fused;
    for (int k = 0; k < sh_op_info(pair->second)->n_in; k++)
        if (k != between)
            fused.in[n++] = op[1].in[k];
    fused.out[pair->keeps] = op[1].out[0];
    return fused;
}

void sh_pass_fuse(struct sh_program *micro, const struct sh_kernel_table *kernels)
{
    int *reads = count_reads(micro), n = 0;

    for (int i = 0; i < micro->n_ops; i++, n++) {
        const struct sh_op *op = &micro->ops[i];
        const struct pair *pair = i + 1 < micro->n_ops ? pair_of(micro, op, reads, kernels) : NULL;

        micro->ops[n] = pair ? join(micro, pair, op) : *op;
        i += pair != NULL;
    }
    micro->n_ops = n;
    free(reads);
}
