/* Linear layers: three products on the weight in either storage order. Floor: 2*N*I*O operations each; gemm_engine.c
 * has figures of the engines. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/gemv.h"

#include <stddef.h>

static int64_t last_dim(const struct sh_operand *t)
{
    return t->dim[t->ndim - 1];
}

static int64_t rows_of(const struct sh_operand *t)
{
    int64_t rows = 1;
    for (int i = 0; i < t->ndim - 1; i++)
        rows *= t->dim[i];
    return rows;
}

/* y [N,O] = x [N,I] w' + b */
static struct sh_matmul forward_of(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1], *b = &call->in[2], *y = &call->out[0];
    bool w_in_out = call->attr->linear.w_in_out;

    /* clang-format off */
    return (struct sh_matmul){
        .m = rows_of(x), .n = last_dim(y), .k = last_dim(x),
        .in_dtype = x->dtype, .out_dtype = y->dtype,
        .a = x->data, .lda = last_dim(x),
        .b = w->data, .ldb = last_dim(w), .trans_b = !w_in_out,
        .c = y->data, .ldc = last_dim(y),
        .bias = b->data,
    };
    /* clang-format on */
}

/* dx [N,I] = dy [N,O] w + dres */
static struct sh_matmul bwd_x_of(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *w = &call->in[1], *dres = &call->in[2], *dx = &call->out[0];
    bool w_in_out = call->attr->linear.w_in_out;

    /* clang-format off */
    return (struct sh_matmul){
        .m = rows_of(dy), .n = last_dim(dx), .k = last_dim(dy),
        .in_dtype = dy->dtype, .out_dtype = dx->dtype,
        .a = dy->data, .lda = last_dim(dy),
        .b = w->data, .ldb = last_dim(w), .trans_b = w_in_out,
        .c = dx->data, .ldc = last_dim(dx),
        .addend = dres->data,
    };
    /* clang-format on */
}

/* dw [O,I] (+)= dy' x, or dw [I,O] (+)= x' dy */
static struct sh_matmul bwd_w_of(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1], *dw = &call->out[0];
    const struct sh_operand *a = call->attr->linear.w_in_out ? x : dy, *b = call->attr->linear.w_in_out ? dy : x;

    /* clang-format off */
    return (struct sh_matmul){
        .m = last_dim(a), .n = last_dim(b), .k = rows_of(dy),
        .in_dtype = dy->dtype, .out_dtype = dw->dtype,
        .a = a->data, .lda = last_dim(a), .trans_a = true,
        .b = b->data, .ldb = last_dim(b),
        .c = dw->data, .ldc = last_dim(b),
        .addend = sh_op_adds(call, 0) ? dw->data : NULL,
    };
    /* clang-format on */
}

sh_rc sh_cpu_linear(const struct sh_op_call *call)
{
    struct sh_matmul g = forward_of(call);

    if (sh_gemv_takes(&g)) {
        sh_gemv_run(&g);
        return SH_OK;
    }
    return sh_gemm_run(&g, call->work, call->work_bytes);
}

sh_rc sh_cpu_linear_bwd_x(const struct sh_op_call *call)
{
    struct sh_matmul g = bwd_x_of(call);

    return sh_gemm_run(&g, call->work, call->work_bytes);
}

sh_rc sh_cpu_linear_bwd_w(const struct sh_op_call *call)
{
    struct sh_matmul g = bwd_w_of(call);

    return sh_gemm_run(&g, call->work, call->work_bytes);
}

int64_t sh_cpu_linear_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_matmul g = forward_of(call);

    return sh_gemm_work_bytes(&g, threads);
}

int64_t sh_cpu_linear_bwd_x_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_matmul g = bwd_x_of(call);

    return sh_gemm_work_bytes(&g, threads);
}

int64_t sh_cpu_linear_bwd_w_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_matmul g = bwd_w_of(call);

    return sh_gemm_work_bytes(&g, threads);
}
