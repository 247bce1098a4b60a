/* Low-rank adapters: thin matrix products in addition to those of the matrices that they adapt, as in
 * kernels/cpu/lora.c. Scaled values are computed in f32 and rounded once, by a kernel between the products. There are
 * 2 R operations for each element of x, y and dy, so all products are bound by memory for R up to a hundred. */
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/operand.h"
#include "kernels/cuda/gemm/work_product.h"
#include "kernels/lora.h"

#include <stddef.h>

static sh_rc run(const struct sh_lora *l, const struct sh_matmul *p)
{
    return sh_cublaslt_run(p, l->work, l->work_bytes, l->call->queue);
}

/* Scratch starts at a multiple of 256, as cuBLASLt requires. The products run one after another on one queue, so they share
 * theirs. */
static struct sh_lora lora_of(const struct sh_op_call *call, struct sh_cuda_lora_work *at)
{
    struct sh_lora l = sh_lora_of(call);
    char *work = call->work;

    *at = sh_cuda_lora_work(call);
    work += -(uintptr_t)work & 255;
    l.sums = (float *)(void *)work;
    l.work = work + at->product;
    l.work_bytes = SH_CUBLASLT_WORK_BYTES;
    l.run = run;
    return l;
}

/* to [N,K] = scale times the sums. Nothing is launched while products are being collected. */
static sh_rc scale_into(const struct sh_lora *l, void *to)
{
    return sh_cublaslt_is_asking()
               ? SH_OK
               : sh_cuda_scale_into(l->sums, l->call->attr->lora.scale, l->N * l->K, l->act, to, l->call->queue);
}

/* If z has its own storage, copy all columns of y; the parts' columns are then added to. */
static sh_rc copy_rows(const struct sh_op_call *call)
{
    struct sh_op_call copy = {
        .kind = SH_OP_COPY, .attr = call->attr, .in = {call->in[0]}, .out = {call->out[0]}, .queue = call->queue};
    return call->in[0].data == call->out[0].data || sh_cublaslt_is_asking() ? SH_OK : sh_cuda_copy(&copy);
}

/* u = scale x a', z' = y' + u' b' */
sh_rc sh_cuda_lora(const struct sh_op_call *call)
{
    struct sh_cuda_lora_work at;
    struct sh_lora l = lora_of(call, &at);

    SH_REQUIRE(call->work_bytes >= at.bytes);
    SH_TRY(sh_lora_down(&l));
    SH_TRY(scale_into(&l, call->out[1].data));
    SH_TRY(copy_rows(call));
    return sh_lora_up(&l);
}

sh_rc sh_cuda_lora_bwd(const struct sh_op_call *call)
{
    struct sh_cuda_lora_work at;
    struct sh_lora l = lora_of(call, &at);
    char *du = (char *)(void *)l.sums + at.scaled;

    SH_REQUIRE(call->work_bytes >= at.bytes);
    SH_TRY(sh_lora_bwd_parts(&l));
    SH_TRY(scale_into(&l, du));
    return sh_lora_bwd_down(&l, du);
}
