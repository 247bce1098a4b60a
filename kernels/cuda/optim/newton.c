/* Orthogonal factors of matrices, by products of cuBLASLt. A matrix is copied as it lies, never turned: with x [lines,length]
 * and lines <= length
 *
 *     gram = x x', square = gram gram, gram = a I + b gram + c square, next = gram x
 *
 * and otherwise gram = x' x and next = x gram, which is the same for the transpose. Values are f32, or bf16 with sums in f32
 * that are rounded once (attr->ortho.narrow); the square is f32 in any case. What a matrix becomes follows from its
 * elements and its shape. Matrices follow one another on one queue, so they share their scratch. */
#include "kernels/cuda/optim/newton.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/gemm/work_product.h"

#include <stddef.h>

struct room {
    const struct sh_op_call *call;
    enum sh_dtype type;
    char *x, *next, *gram, *product;
    float *square;
    double *sums;
};

/* Scratch starts at a multiple of 256, as cuBLASLt requires. */
static struct room room_of(const struct sh_op_call *call)
{
    struct sh_cuda_ortho_work at = sh_cuda_ortho_work(call);
    char *work = (char *)call->work + (-(uintptr_t)call->work & 255);

    return (struct room){.call = call,
                         .type = at.type,
                         .x = work,
                         .next = work + at.next,
                         .gram = work + at.gram,
                         .product = work + at.product,
                         .square = (float *)(void *)(work + at.square),
                         .sums = (double *)(void *)(work + at.sums)};
}

static sh_rc multiply(const struct room *r, struct sh_matmul p)
{
    p.in_dtype = r->type;
    return sh_cublaslt_run(&p, r->product, SH_CUBLASLT_WORK_BYTES, r->call->queue);
}

/* gram = x x' or x' x, and its square. */
static sh_rc squares(const struct room *r, const struct sh_cuda_lines *x, int64_t ld, int64_t m, int64_t ldm)
{
    bool wide = x->lines <= x->length;

    SH_TRY(multiply(r, (struct sh_matmul){.m = m,
                                          .n = m,
                                          .k = wide ? x->length : x->lines,
                                          .a = r->x,
                                          .b = r->x,
                                          .lda = ld,
                                          .ldb = ld,
                                          .trans_a = !wide,
                                          .trans_b = wide,
                                          .out_dtype = r->type,
                                          .c = r->gram,
                                          .ldc = ldm}));
    return multiply(r, (struct sh_matmul){.m = m,
                                          .n = m,
                                          .k = m,
                                          .a = r->gram,
                                          .b = r->gram,
                                          .lda = ldm,
                                          .ldb = ldm,
                                          .out_dtype = SH_F32,
                                          .c = r->square,
                                          .ldc = ldm});
}

/* next = gram x or x gram. */
static sh_rc apply(const struct room *r, const struct sh_cuda_lines *x, int64_t ld, int64_t m, int64_t ldm)
{
    bool wide = x->lines <= x->length;

    return multiply(r, (struct sh_matmul){.m = x->lines,
                                          .n = x->length,
                                          .k = m,
                                          .a = wide ? r->gram : r->x,
                                          .b = wide ? r->x : r->gram,
                                          .lda = wide ? ldm : ld,
                                          .ldb = wide ? ld : ldm,
                                          .out_dtype = r->type,
                                          .c = r->next,
                                          .ldc = ld});
}

/* Nothing is launched while products are being collected. */
static sh_rc make_orthogonal(struct room r, const struct sh_cuda_lines *x)
{
    int64_t m = x->lines < x->length ? x->lines : x->length, ldm = sh_cuda_ortho_ld(m),
            ld = sh_cuda_ortho_ld(x->length);
    const int kind = r.call->attr->ortho.kind;
    void *queue = r.call->queue;
    bool launches = !sh_cublaslt_is_asking();

    if (launches) {
        SH_TRY(sh_cuda_newton_norm(x, sh_ortho_row_of(kind)->room, r.sums, queue));
        SH_TRY(sh_cuda_newton_take(x, r.sums + x->lines, r.type, r.x, ld, queue));
    }
    for (int i = 0; i < r.call->attr->ortho.steps; i++) {
        char *was = r.x;

        SH_TRY(squares(&r, x, ld, m, ldm));
        if (launches)
            SH_TRY(sh_cuda_newton_combine(sh_ortho_step(kind, i), m, ldm, r.square, r.type, r.gram, queue));
        SH_TRY(apply(&r, x, ld, m, ldm));
        r.x = r.next;
        r.next = was;
    }
    return launches ? sh_cuda_newton_put(x, r.type, r.x, ld, queue) : SH_OK;
}

sh_rc sh_cuda_ortho(const struct sh_op_call *call)
{
    struct room r = room_of(call);

    SH_REQUIRE(call->work_bytes >= sh_cuda_ortho_work_bytes(call));
    for (int i = 0; i < call->attr->ortho.count; i++)
        for (int64_t k = 0; k < call->matrices[i].repeat; k++) {
            struct sh_cuda_lines x = sh_cuda_lines_of(call, &call->matrices[i], k);

            SH_TRY(make_orthogonal(r, &x));
        }
    return SH_OK;
}
