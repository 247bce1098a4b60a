/* The router: one product, then the scores and the choice of each row (route.cu); in the backward the gradients of the
 * rows, then both products of its linear layer. Those gradients are small differences, in f32. With bf16 a number is
 * split into three of bf16, which keep its 24 bits: tensor cores then multiply three times as much, still far less time
 * than a product in f32 takes. Floor: 2 N C E operations, and 4 N C E in the backward (12 N C E done with bf16). */
#include "kernels/cuda/moe/route.h"

#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/operand.h"
#include "kernels/cuda/gemm/work_product.h"

#include <stddef.h>

/* Whether any row has k experts to choose from. */
static bool can_choose(const struct sh_op_call *call, int64_t E)
{
    int groups = call->attr->route.groups, top = call->attr->route.top_groups;

    if (!groups)
        return call->attr->route.chosen <= E;
    return groups <= SH_ROUTE_GROUPS && E % groups == 0 && top <= groups &&
           call->attr->route.chosen <= top * (E / groups);
}

/* Logits [N,E] f32 = x [N,C] w', in the place of the scores. Nothing is launched while products are collected. */
sh_rc sh_cuda_route(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1];
    int64_t E = w->dim[0], C = w->dim[1];
    /* clang-format off */
    struct sh_matmul logits = {
        .m = sh_cuda_rows(&call->out[2]), .n = E, .k = C,
        .in_dtype = x->dtype, .out_dtype = SH_F32,
        .a = x->data, .lda = C,
        .b = w->data, .ldb = C, .trans_b = true,
        .c = call->out[2].data, .ldc = E,
    };
    /* clang-format on */

    SH_REQUIRE(can_choose(call, E));
    SH_TRY(sh_cublaslt_run(&logits, call->work, call->work_bytes, call->queue));
    return sh_cublaslt_is_asking() ? SH_OK : sh_cuda_route_rows(call);
}

struct route_bwd {
    const struct sh_op_call *call;
    struct sh_cuda_route_work at;
    enum sh_dtype act;
    int64_t N, C, E, K; /* K: E times the numbers that one is split into */
    char *work;
};

static sh_rc product(const struct route_bwd *r, const struct sh_matmul *p)
{
    return sh_cublaslt_run(p, r->work + r->at.product, SH_CUBLASLT_WORK_BYTES, r->call->queue);
}

/* dw [E,C] (+)= d' x, of one part after the other. */
static sh_rc make_dw(const struct route_bwd *r)
{
    float *dw = r->call->out[1].data;

    for (int64_t part = 0; part < r->K / r->E; part++) {
        /* clang-format off */
        struct sh_matmul p = {
            .m = r->E, .n = r->C, .k = r->N,
            .in_dtype = r->act, .out_dtype = SH_F32,
            .a = r->work + part * r->E * sh_dtype_bytes(r->act), .lda = r->K, .trans_a = true,
            .b = r->call->in[4].data, .ldb = r->C,
            .c = dw, .ldc = r->C,
            .addend = part || sh_op_adds(r->call, 1) ? dw : NULL,
        };
        /* clang-format on */
        SH_TRY(product(r, &p));
    }
    return SH_OK;
}

/* w under w under w, so that the sum over the parts is in the product. */
static sh_rc stack_w(const struct route_bwd *r)
{
    struct sh_operand w = r->call->in[5], to = w;

    for (int64_t part = 0; part < r->K / r->E && !sh_cublaslt_is_asking(); part++) {
        struct sh_op_call copy = {.kind = SH_OP_COPY, .attr = r->call->attr, .queue = r->call->queue};
        to.data = r->work + r->at.w + part * r->E * r->C * sh_dtype_bytes(r->act);
        copy.in[0] = w, copy.out[0] = to;
        SH_TRY(sh_cuda_copy(&copy));
    }
    return SH_OK;
}

/* dx [N,C] = d w + dres */
static sh_rc make_dx(const struct route_bwd *r)
{
    bool stacked = r->K > r->E;
    /* clang-format off */
    struct sh_matmul p = {
        .m = r->N, .n = r->C, .k = r->K,
        .in_dtype = r->act, .out_dtype = r->act,
        .a = r->work, .lda = r->K,
        .b = stacked ? r->work + r->at.w : r->call->in[5].data, .ldb = r->C,
        .c = r->call->out[0].data, .ldc = r->C,
        .addend = r->call->in[6].data,
    };
    /* clang-format on */

    if (stacked)
        SH_TRY(stack_w(r));
    return product(r, &p);
}

sh_rc sh_cuda_route_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[4], *w = &call->in[5];
    struct route_bwd r = {.call = call,
                          .at = sh_cuda_route_work(call),
                          .act = x->dtype,
                          .N = sh_cuda_rows(&call->in[2]),
                          .C = w->dim[1],
                          .E = w->dim[0],
                          .work = call->work};

    SH_REQUIRE(call->attr->route.z == 0 || (call->in[3].data && !call->attr->route.sigmoid));
    SH_REQUIRE(call->work_bytes >= r.at.bytes);
    r.K = r.at.parts * r.E;
    r.work += -(uintptr_t)r.work & 255; /* as cuBLASLt requires */
    if (!sh_cublaslt_is_asking())
        SH_TRY(sh_cuda_route_bwd_rows(call, (int32_t *)(void *)(r.work + r.at.count), r.work));
    if (call->out[2].data && !sh_cublaslt_is_asking()) /* before any product, in its scratch */
        SH_TRY(sh_cuda_route_db(call, r.work, r.work + r.at.product, SH_CUBLASLT_WORK_BYTES));
    if (call->out[1].data)
        SH_TRY(make_dw(&r));
    return call->out[0].data ? make_dx(&r) : SH_OK;
}
