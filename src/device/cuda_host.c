/* An operation that a GPU cannot run, because it calls a function of the host: the loss of a plug-in. Its operands, 32 bytes
 * a token at most, come to the host, the CPU's kernel runs, and what it has made goes back; the host waits for the queue, and
 * the GPU for the host. So a loss has the CPU's bits for the same log-probabilities. */
#include "src/device/cuda.h"

#include "src/base/mem.h"

#include <stdlib.h>

/* To a multiple of 64. */
static int64_t bytes_of(const struct sh_operand *o)
{
    return o->data ? (sh_operand_elems(o) * sh_dtype_bytes(o->dtype) + 63) / 64 * 64 : 0;
}

static int64_t all_bytes(const struct sh_op_call *call)
{
    int64_t bytes = 0;

    for (int i = 0; i < SH_OP_MAX_IN; i++)
        bytes += bytes_of(&call->in[i]);
    for (int i = 0; i < SH_OP_MAX_OUT; i++)
        bytes += bytes_of(&call->out[i]);
    return bytes;
}

/* Give an operand the next place in the host's memory, and bring what is read. */
static void bring(const struct sh_op_call *call, struct sh_operand *o, bool reads, char **memory)
{
    if (!o->data)
        return;
    if (reads)
        sh_cudart_get(call->queue, *memory, o->data, sh_operand_elems(o) * sh_dtype_bytes(o->dtype));
    o->data = *memory;
    *memory += bytes_of(o);
}

sh_rc sh_cudart_run_on_host(const struct sh_op_call *call)
{
    struct sh_op_call here = *call;
    char *memory = sh_calloc((size_t)all_bytes(call) + 64, 1), *next = memory;
    sh_rc rc;

    here.queue = NULL;
    for (int i = 0; i < SH_OP_MAX_IN; i++)
        bring(call, &here.in[i], true, &next);
    for (int i = 0; i < SH_OP_MAX_OUT; i++)
        bring(call, &here.out[i], sh_op_adds(call, i), &next);
    rc = sh_kernels_cpu.run[call->kind](&here);
    for (int i = 0; i < SH_OP_MAX_OUT && rc == SH_OK; i++)
        if (here.out[i].data)
            sh_cudart_put(call->queue, call->out[i].data, here.out[i].data,
                          sh_operand_elems(&here.out[i]) * sh_dtype_bytes(here.out[i].dtype));
    free(memory);
    return rc;
}
