/* Linear layers: three products on the weight in either storage order. The bias is added by the product's epilogue,
 * dres and the gradient's earlier value by its beta, so nothing is read or written twice. Floor: 2*N*I*O operations
 * each; at N = 8192 rows a layer of 4096 x 4096 does 1638 operations per byte in bf16, far more than any GPU needs to
 * be bound by arithmetic. */
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/operand.h"

#include <stddef.h>

/* y [N,O] = x [N,I] w' + b */
sh_rc sh_cuda_linear(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1], *b = &call->in[2], *y = &call->out[0];
    /* clang-format off */
    struct sh_matmul p = {
        .m = sh_cuda_rows(x), .n = sh_cuda_last_dim(y), .k = sh_cuda_last_dim(x),
        .in_dtype = x->dtype, .out_dtype = y->dtype,
        .a = x->data, .lda = sh_cuda_last_dim(x),
        .b = w->data, .ldb = sh_cuda_last_dim(w), .trans_b = !call->attr->linear.w_in_out,
        .c = y->data, .ldc = sh_cuda_last_dim(y),
        .bias = b->data,
    };
    /* clang-format on */
    return sh_cublaslt_run(&p, call->work, call->work_bytes, call->queue);
}

/* dx [N,I] = dy [N,O] w + dres */
sh_rc sh_cuda_linear_bwd_x(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *w = &call->in[1], *dres = &call->in[2], *dx = &call->out[0];
    /* clang-format off */
    struct sh_matmul p = {
        .m = sh_cuda_rows(dy), .n = sh_cuda_last_dim(dx), .k = sh_cuda_last_dim(dy),
        .in_dtype = dy->dtype, .out_dtype = dx->dtype,
        .a = dy->data, .lda = sh_cuda_last_dim(dy),
        .b = w->data, .ldb = sh_cuda_last_dim(w), .trans_b = call->attr->linear.w_in_out,
        .c = dx->data, .ldc = sh_cuda_last_dim(dx),
        .addend = dres->data,
    };
    /* clang-format on */
    return sh_cublaslt_run(&p, call->work, call->work_bytes, call->queue);
}

/* dw [O,I] (+)= dy' x, or dw [I,O] (+)= x' dy */
sh_rc sh_cuda_linear_bwd_w(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1], *dw = &call->out[0];
    const struct sh_operand *a = call->attr->linear.w_in_out ? x : dy, *b = call->attr->linear.w_in_out ? dy : x;
    /* clang-format off */
    struct sh_matmul p = {
        .m = sh_cuda_last_dim(a), .n = sh_cuda_last_dim(b), .k = sh_cuda_rows(dy),
        .in_dtype = dy->dtype, .out_dtype = dw->dtype,
        .a = a->data, .lda = sh_cuda_last_dim(a), .trans_a = true,
        .b = b->data, .ldb = sh_cuda_last_dim(b),
        .c = dw->data, .ldc = sh_cuda_last_dim(b),
        .addend = sh_op_adds(call, 0) ? dw->data : NULL,
    };
    /* clang-format on */
    return sh_cublaslt_run(&p, call->work, call->work_bytes, call->queue);
}
