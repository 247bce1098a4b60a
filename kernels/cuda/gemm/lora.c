/* Low-rank adapters: thin matrix products in addition to those of the matrices that they adapt, as in
 * kernels/cpu/lora.c. Scaled values are computed in f32 and rounded once, by a kernel between the products. There are
 * 2 R operations for each element of x, y and dy, so all products are bound by memory for R up to a hundred. */
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/operand.h"
#include "kernels/cuda/gemm/work_product.h"

#include <stddef.h>

struct lora {
    const struct sh_op_call *call;
    struct sh_cuda_lora_work at;
    enum sh_dtype act;
    int64_t N, M, I, R, K; /* K: R times the parts */
    char *work;
};

/* Scratch starts at a multiple of 256, as cuBLASLt requires. */
static struct lora lora_of(const struct sh_op_call *call)
{
    const struct sh_operand *y = &call->in[0], *x = &call->in[1];
    const struct sh_operand *b = &call->in[call->kind == SH_OP_LORA ? 3 : 4];
    char *work = call->work;
    work += -(uintptr_t)work & 255;
    return (struct lora){.call = call,
                         .at = sh_cuda_lora_work(call),
                         .act = y->dtype,
                         .N = y->dim[0],
                         .M = y->dim[1],
                         .I = x->dim[1],
                         .R = b->dim[1],
                         .K = b->dim[1] * call->attr->lora.parts,
                         .work = work};
}

/* The products run one after another on one queue, so they share their scratch. */
static sh_rc product(const struct lora *l, const struct sh_cublaslt_product *p)
{
    return sh_cublaslt_run(p, l->work + l->at.product, SH_CUBLASLT_WORK_BYTES, l->call->queue);
}

/* to [N,K] = scale times the sums. Nothing is launched while products are being collected. */
static sh_rc scale_into(const struct lora *l, void *to)
{
    return sh_cublaslt_is_asking() ? SH_OK
                                   : sh_cuda_scale_into((const float *)(const void *)l->work, l->call->attr->lora.scale,
                                                        l->N * l->K, l->act, to, l->call->queue);
}

/* If z has its own storage, copy all columns of y; the parts' columns are then added to. */
static sh_rc copy_rows(const struct sh_op_call *call)
{
    struct sh_op_call copy = {
        .kind = SH_OP_COPY, .attr = call->attr, .in = {call->in[0]}, .out = {call->out[0]}, .queue = call->queue};
    return call->in[0].data == call->out[0].data || sh_cublaslt_is_asking() ? SH_OK : sh_cuda_copy(&copy);
}

/* Three steps, where K is R times the parts, and y' are the columns of a part:
 *
 *     sums [N,K] f32 = x [N,I] A' [I,K]        all parts at once: x is read once
 *     u [N,K] act    = scale sums
 *     z' [N,width]   = y' + u' [N,R] B'        part by part, in place if z is y */
sh_rc sh_cuda_lora(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[1], *a = &call->in[2], *b = &call->in[3], *z = &call->out[0],
                            *u = &call->out[1];
    struct lora l = lora_of(call);
    struct sh_cublaslt_product down = {
        .m = l.N,
        .n = l.K,
        .k = l.I,
        .in_dtype = l.act,
        .out_dtype = SH_F32,
        .a = x->data,
        .lda = l.I,
        .b = a->data,
        .ldb = l.I,
        .trans_b = true,
        .c = l.work,
        .ldc = l.K,
    };

    SH_REQUIRE(call->work_bytes >= l.at.bytes);
    SH_TRY(product(&l, &down));
    SH_TRY(scale_into(&l, u->data));
    SH_TRY(copy_rows(call));
    for (int64_t p = 0, row = 0; p < call->attr->lora.parts; row += call->attr->lora.width[p++]) {
        void *columns = sh_cuda_at(z, call->attr->lora.first[p]);
        struct sh_cublaslt_product up = {
            .m = l.N,
            .n = call->attr->lora.width[p],
            .k = l.R,
            .in_dtype = l.act,
            .out_dtype = l.act,
            .a = sh_cuda_at(u, p * l.R),
            .lda = l.K,
            .b = sh_cuda_at(b, row * l.R),
            .ldb = l.R,
            .trans_b = true,
            .c = columns,
            .ldc = l.M,
            .addend = columns,
        };
        SH_TRY(product(&l, &up));
    }
    return SH_OK;
}

/* For part p, whose rows of b start at `row`: db (+)= dy' u, and the part's columns of dy b, not yet scaled. */
static sh_rc part_backward(const struct lora *l, int64_t p, int64_t row)
{
    const struct sh_op_call *call = l->call;
    const struct sh_operand *dy = &call->in[0], *u = &call->in[2], *b = &call->in[4], *db = &call->out[2];
    struct sh_cublaslt_product g = {
        .m = call->attr->lora.width[p],
        .n = l->R,
        .k = l->N,
        .in_dtype = l->act,
        .out_dtype = SH_F32,
        .a = sh_cuda_at(dy, call->attr->lora.first[p]),
        .lda = l->M,
        .trans_a = true,
        .b = sh_cuda_at(u, p * l->R),
        .ldb = l->K,
        .c = sh_cuda_at(db, row * l->R),
        .ldc = l->R,
        .addend = sh_op_adds(call, 2) ? sh_cuda_at(db, row * l->R) : NULL,
    };

    SH_TRY(product(l, &g));
    g = (struct sh_cublaslt_product){
        .m = l->N,
        .n = l->R,
        .k = call->attr->lora.width[p],
        .in_dtype = l->act,
        .out_dtype = SH_F32,
        .a = sh_cuda_at(dy, call->attr->lora.first[p]),
        .lda = l->M,
        .b = sh_cuda_at(b, row * l->R),
        .ldb = l->R,
        .c = (float *)(void *)l->work + p * l->R,
        .ldc = l->K,
    };
    return product(l, &g);
}

/* da (+)= du' x, dx = du a + dres */
static sh_rc through_a(const struct lora *l, const void *du)
{
    const struct sh_op_call *call = l->call;
    const struct sh_operand *x = &call->in[1], *a = &call->in[3], *dx = &call->out[0], *da = &call->out[1];
    struct sh_cublaslt_product g = {
        .m = l->K,
        .n = l->I,
        .k = l->N,
        .in_dtype = l->act,
        .out_dtype = SH_F32,
        .a = du,
        .lda = l->K,
        .trans_a = true,
        .b = x->data,
        .ldb = l->I,
        .c = da->data,
        .ldc = l->I,
        .addend = sh_op_adds(call, 1) ? da->data : NULL,
    };

    SH_TRY(product(l, &g));
    if (!dx->data)
        return SH_OK;
    g = (struct sh_cublaslt_product){
        .m = l->N,
        .n = l->I,
        .k = l->K,
        .in_dtype = l->act,
        .out_dtype = l->act,
        .a = du,
        .lda = l->K,
        .b = a->data,
        .ldb = l->I,
        .c = dx->data,
        .ldc = l->I,
        .addend = call->in[5].data,
    };
    return product(l, &g);
}

/* du of all parts is computed before da and dx, each of which is then one product: x is read once, and dx is written
 * once. */
sh_rc sh_cuda_lora_bwd(const struct sh_op_call *call)
{
    struct lora l = lora_of(call);
    char *du = l.work + l.at.scaled;

    SH_REQUIRE(call->work_bytes >= l.at.bytes);
    for (int64_t p = 0, row = 0; p < call->attr->lora.parts; row += call->attr->lora.width[p++])
        SH_TRY(part_backward(&l, p, row));
    SH_TRY(scale_into(&l, du));
    return through_a(&l, du);
}
