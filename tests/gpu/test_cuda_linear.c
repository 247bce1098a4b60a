/* Linear layers of CUDA against the reference, on the double of cuBLASLt: both storage orders, bias, residual
 * gradient, sums that continue, operands at any address, more shapes than are remembered; products that cuBLASLt
 * refuses, and the kernels that then compute them. */
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "src/base/log.h"
#include "tests/gpu/optest_device.h"
#include "tests/op/calls.h"

#include <math.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return call->kind == SH_OP_LORA || call->kind == SH_OP_LORA_BWD ? sh_cuda_lora_work_bytes(call)
                                                                    : sh_cuda_linear_work_bytes(call);
}

/* clang-format off */
static const struct sh_kernel_table table = {
    .name = "cuda",
    .run = {
        [SH_OP_LINEAR] = sh_cuda_linear,
        [SH_OP_LINEAR_BWD_X] = sh_cuda_linear_bwd_x,
        [SH_OP_LINEAR_BWD_W] = sh_cuda_linear_bwd_w,
        [SH_OP_LORA] = sh_cuda_lora,
        [SH_OP_LORA_BWD] = sh_cuda_lora_bwd,
    },
    .prepare = sh_cuda_product_prepare,
    .work_bytes = work_bytes,
};
/* clang-format on */

struct shape {
    int64_t batch, seq, in, out;
};

/* With SHERD_FEW_SHAPES in the environment only some of each, for a simulator, which is slow. */
static bool few;

static const struct shape shapes[] = {{1, 1, 1, 1}, {2, 5, 7, 3}, {1, 33, 16, 48}, {3, 11, 65, 17}, {2, 32, 40, 8}};

struct way {
    bool w_in_out, extra; /* extra: a bias, a residual gradient, an earlier value */
    int shift;
};

static const struct way ways[] = {{false, false, 0}, {true, true, 0}, {false, true, 1}, {true, false, 3}};

static void weight(struct optest *t, int i, bool out, enum sh_dtype dtype, struct shape s, bool w_in_out)
{
    int64_t first = w_in_out ? s.in : s.out, second = w_in_out ? s.out : s.in;
    if (out)
        optest_out(t, i, dtype, DIMS(first, second));
    else
        optest_in(t, i, dtype, DIMS(first, second));
}

static double begin(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, struct shape s, struct way way)
{
    optest_begin(t, kind);
    t->attr.linear.w_in_out = way.w_in_out;
    optest_in(t, 0, act, DIMS(s.batch, s.seq, kind == SH_OP_LINEAR ? s.in : s.out));
    if (kind == SH_OP_LINEAR_BWD_W) {
        optest_in(t, 1, act, DIMS(s.batch, s.seq, s.in));
        weight(t, 0, true, SH_F32, s, way.w_in_out);
        if (way.extra)
            optest_add_to(t, 0);
        return (double)(s.batch * s.seq);
    }
    weight(t, 1, false, act, s, way.w_in_out);
    if (kind == SH_OP_LINEAR) {
        if (way.extra)
            optest_in(t, 2, act, DIMS(s.out));
        optest_out(t, 0, act, DIMS(s.batch, s.seq, s.out));
        return (double)s.in;
    }
    if (way.extra)
        optest_in(t, 2, act, DIMS(s.batch, s.seq, s.in));
    optest_out(t, 0, act, DIMS(s.batch, s.seq, s.in));
    return (double)s.out;
}

/* The largest element of the product alone. */
static double largest_product(const struct optest *t)
{
    struct optest alone;
    double most = 0;
    optest_copy(&alone, t);
    struct sh_operand added = alone.call.in[2];
    alone.call.in[2] = (struct sh_operand){0};
    assert_int_equal(sh_kernels_ref.run[alone.call.kind](&alone.call), SH_OK);
    alone.call.in[2] = added;
    for (int64_t k = 0; k < optest_elems(&alone.call.out[0]); k++)
        most = fmax(most, fabs(optest_get(&alone.call.out[0], k)));
    optest_end(&alone);
    return most;
}

/* On an H100 cuBLASLt rounds a product to bf16 before it adds an addend in bf16, or a bias to a sum in parts, and then
 * rounds the sum. */
static void check_close(const struct optest *ref, const struct optest *t, double terms)
{
    bool twice = t->call.kind != SH_OP_LINEAR_BWD_W && t->call.in[2].data && t->call.out[0].dtype == SH_BF16;

    if (twice)
        optest_within(ref, t, 0, 0x1p-23 * (terms + 4) + 0x1p-9 * largest_product(ref), 2 * sh_bound_eps(SH_BF16));
    else
        optest_close(ref, t, 0, terms);
}

static void check(enum sh_op_kind kind, enum sh_dtype act, struct shape s, struct way way)
{
    struct optest t, ref;
    double terms = begin(&t, kind, act, s, way);
    optest_shift(&t, way.shift);
    optest_copy(&ref, &t);
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_device_run(&t, &table);
    check_close(&ref, &t, terms);
    optest_end(&t);
    optest_end(&ref);
}

static void check_all(enum sh_dtype act)
{
    static const enum sh_op_kind kinds[] = {SH_OP_LINEAR, SH_OP_LINEAR_BWD_X, SH_OP_LINEAR_BWD_W};
    for (int kind = 0; kind < 3; kind++)
        for (size_t i = 0; i < (few ? 3 : sizeof shapes / sizeof shapes[0]); i++)
            for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++)
                check(kinds[kind], act, shapes[i], ways[w]);
}

/* On a GPU cuBLASLt refuses as it likes. */
static void refuse(const char *what)
{
    if (what)
        setenv("SHERD_EMULATED_LT_REFUSE", what, 1);
    else
        unsetenv("SHERD_EMULATED_LT_REFUSE");
}

static void test_f32(void **state)
{
    (void)state;
    optest_seed(41);
    check_all(SH_F32);
}

static void test_bf16(void **state)
{
    (void)state;
    optest_seed(42);
    check_all(SH_BF16);
}

/* dx in the storage of dres, where the place pass may put it. */
static void test_in_place(void **state)
{
    (void)state;
    optest_seed(43);
    struct optest t, ref;
    begin(&t, SH_OP_LINEAR_BWD_X, SH_BF16, (struct shape){1, 9, 8, 16}, (struct way){.extra = true});
    optest_copy(&ref, &t);
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_alias(&t, 2, 0);
    optest_device_run(&t, &table);
    check_close(&ref, &t, 16);
    optest_end(&t);
    optest_end(&ref);
}

/* A bias that starts where the output could not: in a unit, in which parameters are packed end to end. */
static void test_shifted_bias(void **state)
{
    enum { ROWS = 4, COLS = 16, SHIFT = 1 };
    float x[ROWS], w[COLS], b[SHIFT + COLS], y[ROWS * COLS];
    void *work = device_alloc(SH_CUBLASLT_WORK_BYTES, 0), *dx = device_alloc(sizeof x, 0),
         *dw = device_alloc(sizeof w, 0), *db = device_alloc(sizeof b, 0), *dy = device_alloc(sizeof y, 0);
    /* clang-format off */
    struct sh_matmul p = {
        .m = ROWS, .n = COLS, .k = 1, .in_dtype = SH_F32, .out_dtype = SH_F32,
        .a = dx, .lda = 1, .b = dw, .ldb = 1, .trans_b = true, .c = dy, .ldc = COLS, .bias = (float *)db + SHIFT,
    };
    /* clang-format on */

    (void)state;
    for (int i = 0; i < ROWS; i++)
        x[i] = (float)i;
    for (int i = 0; i < COLS; i++)
        w[i] = b[SHIFT + i] = (float)(i + 1);
    b[0] = -1;
    device_put(dx, x, sizeof x);
    device_put(dw, w, sizeof w);
    device_put(db, b, sizeof b);
    assert_int_equal(sh_cuda_product_prepare(NULL), SH_OK);
    assert_int_equal(sh_cublaslt_run(&p, work, SH_CUBLASLT_WORK_BYTES, NULL), SH_OK);
    device_get(y, dy, sizeof y);
    for (int i = 0; i < ROWS * COLS; i++)
        assert_float_equal(y[i], x[i / COLS] * w[i % COLS] + w[i % COLS], 0);
    device_free(work);
    device_free(dx);
    device_free(dw);
    device_free(db);
    device_free(dy);
}

/* On the device and by the reference; output 0 in the storage of input alias_in (-1: separate). */
static void check_lora(struct optest *t, int alias_in)
{
    struct optest ref;
    optest_copy(&ref, t);
    optest_run(&ref, &sh_kernels_ref, 1);
    if (alias_in >= 0)
        optest_alias(t, alias_in, 0);
    optest_device_run(t, &table);
    for (int o = 0; o < 3; o++)
        if (ref.call.out[o].data)
            optest_within(&ref, t, o, lora_bound(t, o), lora_relative(t));
    optest_end(t);
    optest_end(&ref);
}

static void test_lora(void **state)
{
    (void)state;
    optest_seed(46);
    for (int i = 0; i < LORA_SHAPES * 2; i++) {
        enum sh_dtype act = i % 2 ? SH_BF16 : SH_F32;
        struct optest t;
        for (int alias = -1; alias < 1; alias++) {
            lora_forward(&t, act, &lora_shapes[i / 2]);
            optest_shift(&t, alias + 1);
            check_lora(&t, alias);
        }
        for (int v = 0; v < 4; v++) {
            bool dx = v != 3, dres = v & 1;
            lora_backward(&t, act, &lora_shapes[i / 2], dx, dx && dres, v & 2);
            check_lora(&t, dx && dres ? 5 : -1);
        }
    }
}

/* Twice through more shapes than there is room for: the second time round, the first ones are chosen again. */
static void test_many_shapes(void **state)
{
    (void)state;
    float x[300], w[6], y[450];
    void *work = device_alloc(SH_CUBLASLT_WORK_BYTES, 0), *dx = device_alloc(sizeof x, 0),
         *dw = device_alloc(sizeof w, 0), *dy = device_alloc(sizeof y, 0);
    assert_int_equal(sh_cuda_product_prepare(NULL), SH_OK);
    for (int i = 0; i < 300; i++)
        x[i] = (float)i;
    for (int i = 0; i < 6; i++)
        w[i] = (float)(i + 1);
    device_put(dx, x, sizeof x);
    device_put(dw, w, sizeof w);
    for (int64_t n = 0; n < 300; n++) {
        int64_t rows = n % 150 + 1, r = rows - 1;
        /* clang-format off */
        struct sh_matmul p = {
            .m = rows, .n = 3, .k = 2, .in_dtype = SH_F32, .out_dtype = SH_F32,
            .a = dx, .lda = 2, .b = dw, .ldb = 2, .trans_b = true, .c = dy, .ldc = 3,
        };
        /* clang-format on */
        assert_int_equal(sh_cublaslt_run(&p, work, SH_CUBLASLT_WORK_BYTES, NULL), SH_OK);
        device_get(y, dy, sizeof y);
        for (int o = 0; o < 3; o++)
            assert_float_equal(y[r * 3 + o], x[r * 2] * w[o * 2] + x[r * 2 + 1] * w[o * 2 + 1], 0);
    }
    device_free(work);
    device_free(dx);
    device_free(dw);
    device_free(dy);
}

/* Every way in which cuBLASLt has no answer: the results are within the same bounds. Its choices are kept, so other
 * shapes must drive them out first. */
static void test_refused(void **state)
{
    static const char *const what[] = {"bias none", "bias status", "bias unusable", "all none", "all status"};
    optest_seed(47);
    for (size_t i = 0; i < sizeof what / sizeof what[0]; i += few ? 3 : 1) {
        test_many_shapes(state);
        refuse(what[i]);
        check_all(SH_F32);
        check_all(SH_BF16);
        test_in_place(state);
        if (!few)
            test_lora(state);
        refuse(NULL);
    }
    test_many_shapes(state);
}

/* An error that is not a refusal stays one. */
static void test_other_errors(void **state)
{
#ifdef SH_CUDA_EMULATED
    struct sh_matmul p = {.m = 77, .n = 1, .k = 1, .lda = 1, .ldb = 1, .ldc = 1};
    char work[1];
    assert_int_equal(sh_cuda_product_prepare(NULL), SH_OK);
    refuse("all error");
    assert_int_equal(sh_cublaslt_run(&p, work, SH_CUBLASLT_WORK_BYTES, NULL), SH_E_BUG);
    assert_non_null(strstr(sh_error_text(), "[77,1] = [77,1] [1,1] of f32: failed"));
    refuse(NULL);
#endif
    (void)state;
}

/* A product whose operands are a call's: a, b and an addend are inputs, c an output. */
static struct sh_matmul product_of(struct optest *t, struct sh_matmul p)
{
    enum { PAD = 3 }; /* rows are longer than they need be */
    p.lda = (p.trans_a ? p.m : p.k) + PAD, p.ldb = (p.trans_b ? p.k : p.n) + PAD, p.ldc = p.n + PAD;
    optest_begin(t, SH_OP_LINEAR);
    optest_in(t, 0, p.in_dtype, DIMS(p.trans_a ? p.k : p.m, p.lda));
    optest_in(t, 1, p.in_dtype, DIMS(p.trans_b ? p.n : p.k, p.ldb));
    optest_in(t, 2, p.out_dtype, DIMS(p.m, p.ldc));
    return p;
}

/* Element (i, j) in float64. */
static double exact(const struct optest *t, const struct sh_matmul *p, int64_t i, int64_t j)
{
    double sum = p->addend ? optest_get(&t->call.in[2], i * p->ldc + j) : 0;
    for (int64_t k = 0; k < p->k; k++)
        sum += optest_get(&t->call.in[0], p->trans_a ? k * p->lda + i : i * p->lda + k) *
               optest_get(&t->call.in[1], p->trans_b ? j * p->ldb + k : k * p->ldb + j);
    return sum;
}

/* Kernels: Sherd's own, in several orders, and cuBLASLt's. c starts as the addend; what lies between its rows stays. */
enum { OWN_RUNS = OPTEST_ORDERS, RUNS };
static void run_product(struct optest *t, struct sh_matmul p, bool addend, int which, struct optest *out)
{
    size_t bytes[3], work_bytes = which < OWN_RUNS ? 0 : SH_CUBLASLT_WORK_BYTES;
    void *at[3], *work = device_alloc(work_bytes, 0);
    optest_copy(out, t);
    for (int i = 0; i < 3; i++) {
        const struct sh_operand *o = &t->call.in[i];
        bytes[i] = (size_t)(optest_elems(o) * sh_dtype_bytes(o->dtype));
        at[i] = device_alloc(bytes[i], 0);
        device_put(at[i], o->data, bytes[i]);
    }
    p.a = at[0], p.b = at[1], p.c = at[2], p.addend = addend ? at[2] : NULL;
    optest_device_order(which < OWN_RUNS ? which : 0);
    assert_int_equal(sh_cuda_product_prepare(NULL), SH_OK);
    assert_int_equal(
        which < OWN_RUNS ? sh_cuda_product(&p, NULL) : sh_cublaslt_run(&p, work, (int64_t)work_bytes, NULL), SH_OK);
    device_get(out->call.in[2].data, at[2], bytes[2]);
    optest_device_order(0);
    for (int i = 0; i < 3; i++)
        device_free(at[i]);
    device_free(work);
}

static void check_product(struct sh_matmul p, bool addend)
{
    struct optest t, out[RUNS];
    p = product_of(&t, p);
    for (int which = 0; which < RUNS; which++)
        run_product(&t, p, addend, which, &out[which]);
    const struct sh_operand *first = &out[0].call.in[2];
    p.addend = addend ? first : NULL;
    for (int which = 1; which < OWN_RUNS; which++)
        assert_memory_equal(first->data, out[which].call.in[2].data,
                            (size_t)(optest_elems(first) * sh_dtype_bytes(first->dtype)));
    for (int which = 0; which < RUNS; which += OWN_RUNS)
        for (int64_t i = 0; i < p.m * p.ldc; i++) {
            bool inside = i % p.ldc < p.n;
            double want = inside ? exact(&t, &p, i / p.ldc, i % p.ldc) : optest_get(&t.call.in[2], i);
            double bound = inside ? (double)(p.k + 1) * 0x1p-21 + sh_bound_eps(p.out_dtype) * (want < 0 ? -want : want)
                                  : 0;
            double off = optest_get(&out[which].call.in[2], i) - want;
            if (!(off <= bound && -off <= bound))
                fail_msg("%s: element %d is off by %g, of %g", which ? "cuBLASLt" : "own kernel", (int)i, off, want);
        }
    for (int which = 0; which < RUNS; which++)
        optest_end(&out[which]);
    optest_end(&t);
}

/* Sizes around the edges of tiles, more tiles than blocks, both storage orders, all types. */
static void test_own_kernel(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {64, 64, 16}, {65, 63, 17}, {3, 130, 40}, {130, 129, 5}};
    static const enum sh_dtype types[][2] = {{SH_F32, SH_F32}, {SH_BF16, SH_BF16}, {SH_BF16, SH_F32}};
    (void)state;
    optest_seed(48);
    for (size_t i = 0; i < (few ? 3 : sizeof sizes / sizeof sizes[0]); i++)
        for (int way = 0; way < 3 * 8; way += few ? 5 : 1)
            check_product((struct sh_matmul){.m = sizes[i][0],
                                             .n = sizes[i][1],
                                             .k = sizes[i][2],
                                             .in_dtype = types[way % 3][0],
                                             .out_dtype = types[way % 3][1],
                                             .trans_a = way / 3 & 1,
                                             .trans_b = way / 6 & 1},
                          way / 12);
}

static void test_too_little_work(void **state)
{
    (void)state;
    optest_seed(45);
    struct optest t;
    begin(&t, SH_OP_LINEAR, SH_F32, shapes[1], ways[0]);
    t.call.work_bytes = SH_CUBLASLT_WORK_BYTES - 1;
    assert_int_equal(sh_cuda_linear(&t.call), SH_E_BUG);
    optest_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lora),         cmocka_unit_test(test_f32),         cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_in_place),     cmocka_unit_test(test_many_shapes), cmocka_unit_test(test_too_little_work),
        cmocka_unit_test(test_shifted_bias), cmocka_unit_test(test_refused),     cmocka_unit_test(test_own_kernel),
        cmocka_unit_test(test_other_errors),
    };
    few = getenv("SHERD_FEW_SHAPES") != NULL;
    if (!optest_device_there())
        return 0;
    /* Scratch is 32 MiB per call: keep pages once they are allocated. */
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    sh_log_set_rank(1, 2); /* rank 0 would print a line for each shape that is refused */
    return cmocka_run_group_tests_name("cuda_linear", tests, NULL, NULL);
}
