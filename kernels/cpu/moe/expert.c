/* The experts' products: threads share the tiles of all groups of rows (gemm.h), those of an expert one after the other,
 * since its weight is in the caches then. A row's bits depend on how many rows its group has (gemm.h), and on nothing
 * else. Floor: 2 M I O operations each, and the weights of all experts with rows; one core of an EPYC with AVX-512 bf16
 * made 83 GFLOP/s with 8 rows per expert, 264 with 64 and 366 with 512 (I 2048, O 1536). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/gemv.h"
#include "kernels/cpu/base/stage.h"

#include <string.h>

/* Rows of the activations, groups of them, experts, and the sizes of a weight. */
struct experts {
    const struct sh_op_call *call;
    const struct sh_operand *w; /* [E,O,I], or [E,I,O]: then O and I stand for each other */
    const int32_t *first;
    int64_t M, G, E, O, I;
};

static struct experts experts_of(const struct sh_op_call *call)
{
    bool bwd_w = call->kind == SH_OP_EXPERT_LINEAR_BWD_W;
    const struct sh_operand *w = bwd_w ? &call->out[0] : &call->in[2], *first = &call->in[bwd_w ? 2 : 1];

    return (struct experts){.call = call,
                            .w = w,
                            .first = first->data,
                            .M = call->in[0].dim[0],
                            .G = sh_cpu_elems(first) - 1,
                            .E = w->dim[0],
                            .O = w->dim[1],
                            .I = w->dim[2]};
}

static void *at(const struct sh_operand *t, int64_t i)
{
    return sh_cpu_at(t->data, t->dtype, i);
}

/* y = x w[e]', or dx = dy w[e], of `rows` rows from `row` on. */
static struct sh_matmul product_of_rows(const struct experts *x, int64_t e, int64_t row, int64_t rows)
{
    const struct sh_operand *from = &x->call->in[0], *to = &x->call->out[0];
    int64_t wide = from->dim[1], n = to->dim[1];

    /* clang-format off */
    return (struct sh_matmul){
        .m = rows, .n = n, .k = wide,
        .in_dtype = from->dtype, .out_dtype = to->dtype,
        .a = at(from, row * wide), .lda = wide,
        .b = at(x->w, e * x->O * x->I), .ldb = x->I,
        .trans_b = (x->call->kind == SH_OP_EXPERT_LINEAR) != x->call->attr->rows.w_in_out,
        .c = at(to, row * n), .ldc = n, .c_rows = x->M,
    };
    /* clang-format on */
}

/* dw[e] (+)= dy' x, or x' dy */
static struct sh_matmul product_of_w(const struct experts *x, int64_t e, int64_t row, int64_t rows, bool add)
{
    bool in_out = x->call->attr->rows.w_in_out;
    const struct sh_operand *dy = &x->call->in[in_out], *in = &x->call->in[!in_out];
    void *dw = at(x->w, e * x->O * x->I);

    /* clang-format off */
    return (struct sh_matmul){
        .m = x->O, .n = x->I, .k = rows,
        .in_dtype = dy->dtype, .out_dtype = SH_F32,
        .a = at(dy, row * x->O), .lda = x->O, .trans_a = true,
        .b = at(in, row * x->I), .ldb = x->I,
        .c = dw, .ldc = x->I, .c_rows = x->E * x->O,
        .addend = add ? dw : NULL,
    };
    /* clang-format on */
}

/* Of `rows` rows from `row` on; add: to dw. */
static struct sh_matmul product_of(const struct experts *x, int64_t e, int64_t row, int64_t rows, bool add)
{
    if (x->call->kind == SH_OP_EXPERT_LINEAR_BWD_W)
        return product_of_w(x, e, row, rows, add);
    return product_of_rows(x, e, row, rows);
}

/* One group may get all rows, or each thread a group of its own. */
int64_t sh_cpu_expert_work_bytes(const struct sh_op_call *call, int threads)
{
    struct experts x = experts_of(call);
    struct sh_matmul all = product_of(&x, 0, 0, x.M, false);
    struct sh_matmul part = product_of(&x, 0, 0, x.M / ((int64_t)SH_GEMM_OF_SEVERAL * threads), false);
    int64_t bytes = sh_gemm_work_bytes(&all, threads), parts = threads * sh_cpu_round64(sh_gemm_work_bytes(&part, 1));

    return bytes > parts || threads == 1 ? bytes : parts;
}

/* Whether threads may be in the products of different groups: sums of one gradient come one after the other. */
static bool are_apart(const struct experts *x)
{
    return x->call->kind != SH_OP_EXPERT_LINEAR_BWD_W || x->G == x->E;
}

/* The i-th group's product, expert by expert; none if it has no rows, or is one of those that gemv takes. */
static struct sh_matmul product_apart(const void *from, int64_t i)
{
    const struct experts *x = from;
    int64_t each = x->G / x->E, e = i / each, g = e + i % each * x->E, row = x->first[g];
    struct sh_matmul product = product_of(x, e, row, x->first[g + 1] - row, sh_op_adds(x->call, 0));

    product.m = x->first[g + 1] == row || sh_gemv_takes(&product) ? 0 : product.m;
    return product;
}

static struct sh_matmul itself(const void *product, int64_t i)
{
    (void)i;
    return *(const struct sh_matmul *)product;
}

/* Group g, unless it is left to the threads: *later. *add: whether its product is added to the gradient of its expert, as
 * that of each later group is. Few rows are read by all threads. */
static sh_rc run_group(const struct experts *x, int64_t g, bool *add, bool *later)
{
    int64_t row = x->first[g], rows = x->first[g + 1] - row;
    struct sh_matmul product = product_of(x, g % x->E, row, rows, *add);
    struct sh_gemm_several one = {.n = 1, .at = itself, .from = &product}; /* with the bits that it has among others */

    SH_REQUIRE(row >= 0 && rows >= 0 && row + rows <= x->M);
    if (!rows)
        return SH_OK;
    *add = true;
    if (sh_gemv_takes(&product))
        sh_gemv_run(&product);
    else if (are_apart(x))
        *later = true;
    else
        return sh_gemm_run_several(&one, x->call->work, x->call->work_bytes);
    return SH_OK;
}

static void clear_gradient(const struct experts *x, int64_t e)
{
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < x->O; o++)
        memset(at(x->w, (e * x->O + o) * x->I), 0, (size_t)x->I * sizeof(float));
}

/* The three kinds (cpu.h). The gradient of an expert without rows is 0, or what it was. */
sh_rc sh_cpu_expert_linear(const struct sh_op_call *call)
{
    struct experts x = experts_of(call);
    struct sh_gemm_several products = {.n = x.G, .at = product_apart, .from = &x};
    bool later = false;

    SH_REQUIRE(x.G % x.E == 0);
    for (int64_t e = 0; e < x.E; e++) {
        bool add = sh_op_adds(call, 0);

        for (int64_t g = e; g < x.G; g += x.E)
            SH_TRY(run_group(&x, g, &add, &later));
        if (!add && call->kind == SH_OP_EXPERT_LINEAR_BWD_W)
            clear_gradient(&x, e);
    }
    return later ? sh_gemm_run_several(&products, call->work, call->work_bytes) : SH_OK;
}
