#include "tests/unit/exchange.h"

#include "src/model/model.h"

#include <stdlib.h>
#include <string.h>

struct exchanged exchanged;

void __real_sh_model_emit(const struct sh_model *m, const struct sh_model_batch *b, struct sh_program *p);
void __wrap_sh_model_emit(const struct sh_model *m, const struct sh_model_batch *b, struct sh_program *p);

static int sent(struct sh_program *p, const struct sh_op *before, enum sh_op_kind kind, int x, int64_t elems)
{
    struct sh_tensor y = p->tensors[x];
    struct sh_op op = sh_program_op(kind);

    y.base = SH_NONE;
    y.mem = SH_MEM_ACT;
    if (elems) {
        y.ndim = 1;
        y.dim[0] = elems;
    }
    op.in[0] = x;
    op.out[0] = sh_program_add_tensor(p, &y);
    op.phase = before->phase;
    op.block = before->block;
    if (sh_op_info(kind)->async) {
        op.attr.group = exchanged.group;
        op.stream = p->n_streams - 1;
    } else {
        op.attr.scale.by = 1.0f / (float)exchanged.ranks;
    }
    sh_program_add_op(p, &op);
    return op.out[0];
}

static int there_and_back(struct sh_program *p, const struct sh_op *before, int x)
{
    return sent(p, before, SH_OP_ALL_TO_ALL, sent(p, before, SH_OP_ALL_TO_ALL, x, 0), 0);
}

static int gathered_and_summed(struct sh_program *p, const struct sh_op *before, int x)
{
    int64_t elems = sh_tensor_elems(&p->tensors[x]);
    int all = sent(p, before, SH_OP_ALL_GATHER, x, elems * exchanged.ranks), sum;
    struct sh_tensor shape = p->tensors[x];

    sum = sent(p, before, SH_OP_REDUCE_SCATTER, all, elems);
    p->tensors[sum].ndim = shape.ndim;
    memcpy(p->tensors[sum].dim, shape.dim, sizeof shape.dim);
    return sent(p, before, SH_OP_SCALE, sum, 0);
}

void __wrap_sh_model_emit(const struct sh_model *m, const struct sh_model_batch *b, struct sh_program *p)
{
    struct sh_op *ops;
    int n;

    __real_sh_model_emit(m, b, p);
    if (!exchanged.group)
        return;
    n = p->n_ops;
    ops = calloc((size_t)n, sizeof *ops);
    memcpy(ops, p->ops, (size_t)n * sizeof *ops);
    p->n_ops = 0;
    sh_program_add_stream(p, "rows", SH_RUNS_COLLECTIVES);
    for (int i = 0; i < n; i++) {
        if (ops[i].kind == SH_OP_ATTENTION)
            ops[i].in[0] = there_and_back(p, &ops[i], ops[i].in[0]);
        if (ops[i].kind == SH_OP_LINEAR && ops[i].block % 2 == 0)
            ops[i].in[0] = gathered_and_summed(p, &ops[i], ops[i].in[0]);
        sh_program_add_op(p, &ops[i]);
    }
    free(ops);
}
