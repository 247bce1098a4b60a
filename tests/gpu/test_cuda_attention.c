/* Attention of CUDA against the reference: lengths around the edges of tiles, all ratios of heads, documents that
 * start anywhere, scores that are far apart; by tensor cores (bf16, head sizes of 32, 64, 96, 128) and by ordinary
 * arithmetic. The same bits in any order of threads and blocks. */
#include "kernels/cuda/cuda.h"
#include "tests/gpu/optest_device.h"
#include "tests/op/calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    if (call->kind == SH_OP_ATTENTION_ROWS)
        return 0;
    return call->kind == SH_OP_ATTENTION ? sh_cuda_attention_work_bytes(call) : sh_cuda_attention_bwd_work_bytes(call);
}

static const struct sh_kernel_table table = {
    .name = "cuda",
    .run = {[SH_OP_ATTENTION] = sh_cuda_attention,
            [SH_OP_ATTENTION_BWD] = sh_cuda_attention_bwd,
            [SH_OP_ATTENTION_ROWS] = sh_cuda_attention_rows,
            [SH_OP_ATTENTION_ROWS_BWD] = sh_cuda_attention_rows_bwd},
    .prepare = sh_cuda_attention_prepare,
    .work_bytes = work_bytes,
};

static const struct attention_shape any_shapes[] = {
    {1, 1, 1, 1, 8, false, 0},   {2, 17, 2, 1, 8, true, 0},    {1, 34, 2, 1, 290, true, 0},
    {1, 64, 3, 3, 16, false, 0}, {2, 65, 4, 2, 10, true, 0},   {1, 70, 2, 1, 80, true, 0},
    {1, 40, 6, 2, 40, false, 0}, {1, 35, 2, 1, 256, false, 0}, {1, 35, 2, 1, 512, false, 9},
    {2, 65, 2, 1, 10, false, 1}, {1, 70, 4, 2, 80, true, 7},   {1, 100, 2, 1, 40, false, 33},
};

/* clang-format off */
static const struct attention_shape tensor_shapes[] = {
    {1, 1, 1, 1, 32, false, 0},  {2, 63, 2, 1, 32, true, 0},   {1, 65, 3, 3, 32, false, 0}, {1, 200, 2, 1, 64, true, 0},
    {1, 129, 4, 2, 64, false, 0}, {2, 64, 2, 2, 128, false, 0}, {1, 131, 2, 1, 128, true, 0}, {1, 90, 1, 1, 96, false, 0},
    {1, 300, 1, 1, 32, true, 0},
    {2, 65, 2, 1, 32, false, 1}, {1, 200, 4, 2, 64, true, 7},   {1, 300, 2, 1, 32, false, 70}, {1, 131, 2, 1, 128, false, 64},
#ifndef SH_CUDA_EMULATED /* shapes of real models; without documents cuDNN takes them */
    {2, 512, 8, 2, 128, false, 0}, {1, 1024, 4, 4, 64, false, 0}, {1, 1024, 4, 1, 128, true, 0},
#endif
};
/* clang-format on */

/* With SHERD_FEW_SHAPES in the environment only the first of each, for programs that a sanitizer slows down. */
static size_t n_any = sizeof any_shapes / sizeof any_shapes[0],
              n_tensor = sizeof tensor_shapes / sizeof tensor_shapes[0];

static double size_of(const struct sh_operand *x)
{
    double sum = 0;
    for (int64_t i = 0; i < optest_elems(x); i++)
        sum += optest_get(x, i) * optest_get(x, i);
    return sqrt(sum / (double)optest_elems(x));
}

/* On a GPU cuDNN rounds dk and dv of each query head to bf16, and then adds those of a group. */
static double of_heads(const struct optest *t, const struct sh_operand *out)
{
    double most = 0;
#ifndef SH_CUDA_EMULATED
    int group = t->attr.attn.heads / t->attr.attn.kv_heads;
    for (int64_t k = 0; group > 1 && t->call.kind == SH_OP_ATTENTION_BWD && k < optest_elems(out); k++)
        most = fmax(most, group * fabs(optest_get(out, k)));
#endif
    (void)t, (void)out;
    return 0x1p-9 * most;
}

/* Weights and their gradients are rounded to bf16 before they are multiplied: an output is a sum of products, each
 * off by 2^-9 of itself, at random, of which the few largest matter. The output as a whole is then off by less than
 * 2^-8 of its size; one element by a few deviations of that. In f32, all errors are those of sums. */
static void check_near(const struct optest *ref, const struct optest *t, int i, double terms)
{
    const struct sh_operand *x = &ref->call.out[i], *y = &t->call.out[i];
    double size = size_of(x), sum = 0;
    if (x->dtype != SH_BF16) {
        optest_close(ref, t, i, terms);
        return;
    }
    for (int64_t k = 0; k < optest_elems(x); k++) {
        double off = optest_get(x, k) - optest_get(y, k);
        sum += off * off;
    }
    if (!(sqrt(sum / (double)optest_elems(x)) <= 0x1p-8 * size))
        fail_msg("%s output %d is off by %.3g of its size", sh_op_info(ref->call.kind)->name, i,
                 sqrt(sum / (double)optest_elems(x)) / size);
    optest_within(ref, t, i, 8 * 0x1p-8 * size + of_heads(t, x), 0x1p-7);
}

/* Check n outputs of the call against the reference, and for the same bits in all orders. */
static void check(const struct optest *t, int n, double terms)
{
    struct optest ref, first, other;
    optest_copy(&ref, t);
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_copy(&first, t);
    optest_device_run(&first, &table);
    for (int i = 0; i < n; i++)
        check_near(&ref, &first, i, terms);
    for (int order = 1; order < OPTEST_ORDERS; order++) {
        optest_copy(&other, t);
        optest_device_order(order);
        optest_device_run(&other, &table);
        optest_device_order(0);
        for (int i = 0; i < n; i++)
            optest_same(&first, &other, i);
        optest_end(&other);
    }
    optest_end(&first);
    optest_end(&ref);
}

static void check_shape(enum sh_dtype act, struct attention_shape s)
{
    struct optest t;
    attention_forward(&t, act, s);
    check(&t, 2, (double)(s.dim + s.seq));
    optest_end(&t);
    attention_backward(&t, act, s);
    check(&t, 1, (double)(4 * s.dim) + (double)s.seq * s.heads / s.kv_heads);
    optest_end(&t);
}

static void check_runs(enum sh_dtype act, struct runs_shape s)
{
    double keys = 2 * s.ranks * s.rows;
    struct optest t;
    runs_forward(&t, act, s);
    check(&t, 2, s.dim + keys);
    optest_end(&t);
    runs_backward(&t, act, s);
    check(&t, 2, 4 * s.dim + keys * s.heads / s.kv_heads);
    optest_end(&t);
}

static void test_f32(void **state)
{
    (void)state;
    optest_seed(31);
    for (size_t i = 0; i < n_any; i++)
        check_shape(SH_F32, any_shapes[i]);
}

static void test_any_bf16(void **state)
{
    (void)state;
    optest_seed(32);
    for (size_t i = 0; i < n_any; i++)
        check_shape(SH_BF16, any_shapes[i]);
}

static void test_tensor_cores(void **state)
{
    (void)state;
    optest_seed(33);
    for (size_t i = 0; i < n_tensor; i++)
        check_shape(SH_BF16, tensor_shapes[i]);
}

/* Scores with a soft cap: every shape, those of tensor cores too, goes to the kernels of any shape. With few shapes each
 * type has one of them. */
static void test_capped(void **state)
{
    static const struct runs_shape runs = {2, 2, 1, 70, 2, 1, 64, 9, true};
    static const enum sh_dtype acts[] = {SH_F32, SH_BF16};
    const bool few = n_any == 3;
    (void)state;
    optest_seed(38);
    attention_cap = 0.75f;
    for (size_t i = 0; i < 2; i++) {
        for (size_t k = 0; k < 3; k++) {
            if (!few || k == 1 + i)
                check_shape(acts[i], any_shapes[3 * k]);
            if (!few || k == 2 - i)
                check_shape(acts[i], tensor_shapes[3 * k]);
        }
        check_runs(acts[i], runs);
    }
    attention_cap = 0;
}

/* Runs that begin and end within tiles, each place, more sequences, shared heads, windows, documents; by tensor cores if
 * the type is bf16 and the head size one of theirs. */
static void test_runs(void **state)
{
    static const struct runs_shape some[] = {
        {2, 2, 1, 70, 2, 1, 64, 0, true},   {1, 3, 2, 33, 3, 3, 32, 40, false}, {2, 1, 0, 65, 4, 2, 32, 0, false},
        {1, 2, 0, 80, 2, 1, 96, 9, true},   {1, 2, 1, 64, 1, 1, 128, 0, false}, {2, 2, 0, 17, 2, 1, 10, 0, true},
        {1, 4, 1, 20, 4, 2, 80, 33, false}, {1, 2, 0, 17, 2, 1, 290, 0, true},
    };
    static const enum sh_dtype acts[] = {SH_F32, SH_BF16};
    (void)state;
    optest_seed(37);
    for (size_t i = 0; i < 2 * sizeof some / sizeof some[0] && i < 2 * n_any; i++)
        check_runs(acts[i % 2], some[i / 2]);
}

/* Scores of hundreds: exponentials overflow without the maximum, and rows' maxima grow from tile to tile. A row then
 * consists of one value, or few; lse is as large as the scores, whose sums of 32 products are off by f32's rounding. */
static void test_large_scores(void **state)
{
    (void)state;
    optest_seed(34);
    struct optest t, ref;
    attention_forward(&t, SH_BF16, (struct attention_shape){1, 200, 1, 1, 32, false, 0});
    optest_scale(&t.call.in[0], 16);
    optest_copy(&ref, &t);
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_device_run(&t, &table);
    optest_within(&ref, &t, 0, 16 * 4 * 0x1p-8, 0x1p-7);
    optest_within(&ref, &t, 1, 400 * 32 * 0x1p-23, 0x1p-20);
    optest_end(&ref);
    optest_end(&t);
}

/* A NaN in the last query affects no other row. */
static void test_nan_stays_in_its_row(void **state)
{
    static const enum sh_dtype acts[] = {SH_F32, SH_BF16};
    (void)state;
    for (int i = 0; i < 2; i++) {
        optest_seed(35);
        struct optest t, ref;
        attention_forward(&t, acts[i], (struct attention_shape){1, 140, 1, 1, 32, false, 0});
        optest_set(&t.call.in[0], 139 * 96, NAN);
        optest_copy(&ref, &t);
        optest_run(&ref, &sh_kernels_ref, 1);
        optest_device_run(&t, &table);
        for (int64_t k = 0; k < 140 * 32; k++)
            assert_int_equal(isnan(optest_get(&ref.call.out[0], k)), isnan(optest_get(&t.call.out[0], k)));
        assert_true(isnan(optest_get(&t.call.out[1], 139)));
        assert_false(isnan(optest_get(&t.call.out[1], 138)));
        optest_end(&ref);
        optest_end(&t);
    }
}

/* The size of a real layer, where thousands of blocks run at once. The reference would take minutes for it, so the
 * forward is the device's own. */
static const struct attention_shape full_shapes[] = {
#ifdef SH_CUDA_EMULATED
    {1, 200, 2, 1, 64, false, 0},
    {2, 65, 2, 2, 32, false, 0},
#else
    {8, 1024, 12, 12, 64, false, 0},
    {2, 4096, 32, 8, 128, false, 0},
#endif
};

static double distance(const struct sh_operand *x, const struct sh_operand *y)
{
    double sum = 0;
    for (int64_t i = 0; i < optest_elems(x); i++)
        sum += (optest_get(x, i) - optest_get(y, i)) * (optest_get(x, i) - optest_get(y, i));
    return sqrt(sum / (double)optest_elems(x));
}

#ifdef SH_CUDA_EMULATED /* nothing depends on chance */
enum { RUNS = 2 };
#else
enum { RUNS = 5 };
#endif

/* A fault in the order of additions shows only at full size: several runs in one order have the same bits, and a run in
 * any order is off from them by roundings only. */
static void check_full_size(struct attention_shape s)
{
    struct optest fwd, t, first, other;
    attention_forward(&fwd, SH_BF16, s);
    optest_device_run(&fwd, &table);
    attention_backward_of(&t, &fwd, s);
    optest_end(&fwd);
    optest_copy(&first, &t);
    optest_device_run(&first, &table);
    for (int run = 1; run <= RUNS; run++) {
        optest_copy(&other, &t);
        other.attr.attn.any_order = run == RUNS;
        optest_device_run(&other, &table);
        double off = distance(&first.call.out[0], &other.call.out[0]), size = size_of(&first.call.out[0]);
        if (run < RUNS)
            optest_same(&first, &other, 0);
        else if (!(off <= 0x1p-7 * size))
            fail_msg("the backward in any order is off by %.3g of its size", off / size);
        optest_end(&other);
    }
    optest_end(&first);
    optest_end(&t);
}

static void test_full_size(void **state)
{
    (void)state;
    optest_seed(36);
    for (size_t i = 0; i < sizeof full_shapes / sizeof full_shapes[0]; i++)
        check_full_size(full_shapes[i]);
}

/* A head that is too large for all kernels is refused, and so is one that is too large for the GPU's shared memory. */
static void test_head_too_large(void **state)
{
    static const struct {
        enum sh_dtype act;
        int dim;
        const char *kib, *refused; /* NULL: it is not */
    } heads[] = {
        {SH_F32, 520, "227", "head size 520 is too large"},
        {SH_F32, 512, "99", NULL},
        {SH_F32, 256, "99", NULL},
        {SH_BF16, 128, "66", NULL},
        {SH_F32, 160, "64", NULL},
        {SH_F32, 256, "64",
         "head size 256 takes 84224 bytes of shared memory, of which a block on an emulated GPU has 65536"},
        {SH_BF16, 128, "63", "head size 128 takes 65536 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct optest t;
#if !defined(SH_CUDA_EMULATED) || defined(SHERD_PTX) /* a GPU has what it has */
        if (i > 0)
            return;
#endif
        setenv("SHERD_EMULATED_SHARED_KIB", heads[i].kib, 1);
        attention_forward(&t, heads[i].act, (struct attention_shape){1, 4, 1, 1, heads[i].dim, false, 0});
        assert_int_equal(sh_cuda_attention_prepare(&t.call), heads[i].refused ? SH_E_USAGE : SH_OK);
        if (heads[i].refused)
            assert_non_null(strstr(sh_error_text(), heads[i].refused));
        optest_end(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_any_bf16),
        cmocka_unit_test(test_tensor_cores),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_nan_stays_in_its_row),
        cmocka_unit_test(test_full_size),
        cmocka_unit_test(test_capped),
        cmocka_unit_test(test_head_too_large),
    };
    if (!optest_device_there())
        return 0;
    /* The least that a GPU since sm_80 has. */
    setenv("SHERD_EMULATED_SHARED_KIB", "99", 0);
    if (getenv("SHERD_FEW_SHAPES"))
        n_any = n_tensor = 3;
    return cmocka_run_group_tests_name("cuda_attention", tests, NULL, NULL);
}
