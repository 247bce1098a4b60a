/* Low-rank adapters: thin matrix products in addition to those of the matrices that they adapt; kernels/ref/lora.c
 * has the formulas. Scaled values are computed in f32 and rounded once. The parts' columns of y are in rows of the
 * whole stack, so a part is one product with the stack's leading dimension. Floor: x is read once, y and dy once per
 * part, for 2 R operations per element. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/base/wide.h"

#include <omp.h>
#include <string.h>

/* A call's sizes, and its scratch: f32 values before scaling, du in the compute type, scratch of the products. */
struct lora {
    const struct sh_op_call *call;
    enum sh_dtype act;
    int64_t N, M, I, R, K;                 /* K: R times the parts */
    int64_t sums, scaled, products, bytes; /* offsets and total length in bytes */
};

/* The most scratch that any of the products needs. */
static int64_t products_bytes(const struct lora *l, int threads)
{
    int64_t rows = l->N > l->M ? l->N : l->M, cols = l->I > l->K ? l->I : l->K, most = rows > cols ? rows : cols;
    struct sh_gemm act = {.m = most, .n = most, .k = most, .in_dtype = l->act, .out_dtype = l->act}, f32 = act;

    f32.out_dtype = SH_F32;
    int64_t a = sh_gemm_work_bytes(&act, threads), b = sh_gemm_work_bytes(&f32, threads);
    return a > b ? a : b;
}

static struct lora lora_of(const struct sh_op_call *call, int threads)
{
    const struct sh_operand *y = &call->in[0], *x = &call->in[1];
    const struct sh_operand *b = &call->in[call->kind == SH_OP_LORA ? 3 : 4];
    struct lora l = {.call = call, .act = y->dtype, .N = y->dim[0], .M = y->dim[1], .I = x->dim[1], .R = b->dim[1]};

    l.K = l.R * call->attr->lora.parts;
    l.scaled = sh_cpu_round64(l.N * l.K * (int64_t)sizeof(float));
    l.products = l.scaled + (call->kind == SH_OP_LORA ? 0 : sh_cpu_round64(l.N * l.K * sh_dtype_bytes(l.act)));
    l.bytes = l.products + products_bytes(&l, threads);
    return l;
}

/* The products need separate scratch. Both output types share it, since they do not run at the same time. */
int64_t sh_cpu_lora_work_bytes(const struct sh_op_call *call, int threads)
{
    int64_t bytes = lora_of(call, threads).bytes;

    if (call->in[0].dtype == SH_BF16 && sh_wide_lora()) {
        int64_t wide = sh_wide_lora_work_bytes(call, threads);
        return wide > bytes ? wide : bytes;
    }
    return bytes;
}

static void *at(const struct sh_operand *t, int64_t i)
{
    return sh_cpu_at(t->data, t->dtype, i);
}

static sh_rc product(const struct lora *l, const struct sh_gemm *g)
{
    return sh_gemm_run(g, (char *)l->call->work + l->products, l->bytes - l->products);
}

/* to [N,K] act = scale * sums, by all threads; in place if `to` is f32. */
static void scale_into(const struct lora *l, const struct sh_operand *to)
{
    const float *sums = (const float *)(const void *)((const char *)l->call->work + l->sums);
    float scale = l->call->attr->lora.scale;
    int64_t n = l->N * l->K;

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < sh_cpu_pieces(n); p++) {
        float room[SH_CPU_PIECE];
        int64_t first = p * SH_CPU_PIECE, here = sh_cpu_piece_elems(n, p);
        float *out = sh_cpu_stage_out(to, first, here, room);

        for (int64_t i = 0; i < here; i++)
            out[i] = scale * sums[first + i];
        sh_cpu_stage_put(to, first, here, out);
    }
}

/* If z has its own storage, copy all columns of y; the parts' columns are then added to. */
static void copy_rows(const struct lora *l)
{
    const struct sh_operand *y = &l->call->in[0], *z = &l->call->out[0];
    int64_t bytes = l->M * sh_dtype_bytes(l->act);

    if (z->data == y->data)
        return;
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < l->N; n++)
        memcpy((char *)z->data + n * bytes, (const char *)y->data + n * bytes, (size_t)bytes);
}

/* As in kernels/cuda/gemm/lora.c, with K as R times the parts:
 *
 *     sums [N,K] f32 = x [N,I] A' [I,K]        all parts at once: x is read once
 *     u [N,K] act    = scale sums
 *     z' [N,width]   = y' + u' [N,R] B'        part by part, in place if z is y */
sh_rc sh_cpu_lora(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[1], *a = &call->in[2], *b = &call->in[3], *z = &call->out[0],
                            *u = &call->out[1];
    struct lora l = lora_of(call, omp_get_max_threads());
    struct sh_gemm down = {
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
        .c = (char *)call->work + l.sums,
        .ldc = l.K,
    };

    SH_REQUIRE(call->work_bytes >= sh_cpu_lora_work_bytes(call, omp_get_max_threads()));
    copy_rows(&l);
    if (l.act == SH_BF16 && sh_wide_lora())
        return sh_wide_lora()(call);
    SH_TRY(product(&l, &down));
    scale_into(&l, u);
    for (int64_t p = 0, row = 0; p < call->attr->lora.parts; row += call->attr->lora.width[p++]) {
        void *columns = at(z, call->attr->lora.first[p]);
        struct sh_gemm up = {
            .m = l.N,
            .n = call->attr->lora.width[p],
            .k = l.R,
            .in_dtype = l.act,
            .out_dtype = l.act,
            .a = at(u, p * l.R),
            .lda = l.K,
            .b = at(b, row * l.R),
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
    struct sh_gemm g = {
        .m = call->attr->lora.width[p],
        .n = l->R,
        .k = l->N,
        .in_dtype = l->act,
        .out_dtype = SH_F32,
        .a = at(dy, call->attr->lora.first[p]),
        .lda = l->M,
        .trans_a = true,
        .b = at(u, p * l->R),
        .ldb = l->K,
        .c = at(db, row * l->R),
        .ldc = l->R,
        .addend = sh_op_adds(call, 2) ? at(db, row * l->R) : NULL,
    };

    SH_TRY(product(l, &g));
    g = (struct sh_gemm){
        .m = l->N,
        .n = l->R,
        .k = call->attr->lora.width[p],
        .in_dtype = l->act,
        .out_dtype = SH_F32,
        .a = at(dy, call->attr->lora.first[p]),
        .lda = l->M,
        .b = at(b, row * l->R),
        .ldb = l->R,
        .c = (float *)(void *)((char *)call->work + l->sums) + p * l->R,
        .ldc = l->K,
    };
    return product(l, &g);
}

/* da (+)= du' x, dx = du a + dres */
static sh_rc through_a(const struct lora *l, const struct sh_operand *du)
{
    const struct sh_op_call *call = l->call;
    const struct sh_operand *x = &call->in[1], *a = &call->in[3], *dx = &call->out[0], *da = &call->out[1];
    struct sh_gemm g = {
        .m = l->K,
        .n = l->I,
        .k = l->N,
        .in_dtype = l->act,
        .out_dtype = SH_F32,
        .a = du->data,
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
    g = (struct sh_gemm){
        .m = l->N,
        .n = l->I,
        .k = l->K,
        .in_dtype = l->act,
        .out_dtype = l->act,
        .a = du->data,
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
sh_rc sh_cpu_lora_bwd(const struct sh_op_call *call)
{
    struct lora l = lora_of(call, omp_get_max_threads());
    struct sh_operand du = {.data = (char *)call->work + l.scaled, .dtype = l.act, .ndim = 2, .dim = {l.N, l.K}};

    SH_REQUIRE(call->work_bytes >= sh_cpu_lora_work_bytes(call, omp_get_max_threads()));
    if (l.act == SH_BF16 && sh_wide_lora_bwd())
        return sh_wide_lora_bwd()(call);
    for (int64_t p = 0, row = 0; p < call->attr->lora.parts; row += call->attr->lora.width[p++])
        SH_TRY(part_backward(&l, p, row));
    scale_into(&l, &du);
    return through_a(&l, &du);
}
