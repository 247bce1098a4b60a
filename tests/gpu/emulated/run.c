/* Stands for src/device/cuda_run.c: the doubles see copies and collectives, but not what a kernel reads and writes. */
#include "src/device/cuda.h"

#include "kernels/cuda/cuda.h"
#include "kernels/rows.h"
#include "tests/gpu/emulated/emulated.h"

/* Tells the emulation which bytes a call touches, so that it can find accesses without an event between them. */
static void declare(const struct sh_op_call *call, const struct sh_operand *o, int write, const char *label)
{
    int64_t bytes = sh_dtype_bytes(o->dtype);

    for (int i = 0; i < o->ndim; i++)
        bytes *= o->dim[i];
    if (o->data)
        sh_emulated_access(call->queue, o->data, bytes, write, label);
}

static void declare_all(const struct sh_op_call *call, const char *label)
{
    const struct sh_op_info *info = sh_op_info(call->kind);

    for (int i = 0; i < info->n_in; i++)
        declare(call, &call->in[i], 0, label);
    for (int i = 0; i < info->n_out; i++) {
        if (sh_op_adds(call, i) || (info->rw_out >> i & 1))
            declare(call, &call->out[i], 0, label);
        declare(call, &call->out[i], 1, label);
    }
    if (call->work)
        sh_emulated_access(call->queue, call->work, call->work_bytes, 1, label);
}
sh_rc sh_cudart_run(const struct sh_op_call *call, const char *label)
{
    declare_all(call, label);
    return sh_rows_run(sh_kernels_cuda.run[call->kind], call);
}
