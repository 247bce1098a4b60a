/* The head against the reference: vocabularies of any size, masked targets, chunks that do not divide the rows or
 * exceed them, sums that continue from earlier values. Bits must not depend on threads or addresses. */
#include "tests/op/agree.h"
#include "tests/op/calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct head_shape shapes[] = {
    {1, 1, 8, 5, 1, false, false, false},        {2, 17, 24, 65, 5, true, false, false},
    {1, 40, 32, 1000, 64, false, true, false},   {3, 33, 64, 257, 32, true, true, false},
    {1, 96, 48, 513, 96, false, false, false},   {1, 50, 16, 2, 49, true, true, false},
    {1, 530, 420, 270, 520, false, true, false}, {2, 27, 24, 65, 5, true, true, true},
    {1, 90, 40, 1100, 64, false, false, true},
};

/* A row's loss is off by the error of its logits plus that of a sum of V exponentials. */
static struct agree_bound loss_bound(struct head_shape s)
{
    double rows = (double)(s.batch * s.seq);
    return (struct agree_bound){.atol = rows * (double)(s.dim + 64) * 0x1p-23, .rtol = 0x1p-20};
}

static void check_loss(enum sh_dtype act, struct head_shape s)
{
    struct optest t;
    head_loss(&t, SH_OP_HEAD_LOSS, act, s);
    struct agree_bound bound = loss_bound(s);
    agree(&t, 1, &bound, -1, -1);
    optest_end(&t);
}

/* The absolute gradients of one row's logits sum to at most 2 * loss_scale, half of that at the target. In 16 bits
 * the target's is rounded once, the others twice; they are multiplied by numbers below 6. dw sums them over rows,
 * which gives 2 again. */
static void check_gradients(enum sh_dtype act, struct head_shape s, bool frozen)
{
    struct optest t;
    head_loss(&t, SH_OP_HEAD_LOSS_GRAD, act, s);
    if (frozen)
        head_frozen(&t);
    double eps = act != SH_F32 ? 0.75 * optest_eps(act) : (double)(s.dim + 64) * 0x1p-23;
    struct agree_bound bound[3] = {
        loss_bound(s),
        {.atol = 12 * eps * t.scalars.loss_scale, .rtol = act != SH_F32 ? 2 * optest_eps(act) : 0x1p-20},
        {.atol = 12 * eps, .rtol = 0x1p-20},
    };
    agree(&t, frozen ? 2 : 3, bound, -1, -1);
    optest_end(&t);
}

static void check_logits(enum sh_dtype act, struct head_shape s, int64_t position)
{
    struct optest t;
    head_logits(&t, act, s, position);
    struct agree_bound bound = agree_sum(SH_F32, (double)s.dim);
    agree(&t, 1, &bound, -1, -1);
    optest_end(&t);
}

/* The likeliest word must not depend on rounding: the largest of normal logits is well separated. */
static void check_score(enum sh_dtype act, struct head_shape s)
{
    struct optest t;
    head_score(&t, act, s);
    struct agree_bound bound[2] = {{.atol = (double)(s.dim + 64) * 0x1p-22, .rtol = 0x1p-20}, {0, 0}};
    agree(&t, 2, bound, -1, -1);
    optest_end(&t);
}

static void check_shapes(enum sh_dtype act)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_loss(act, shapes[i]);
        check_gradients(act, shapes[i], false);
        check_gradients(act, shapes[i], true);
        check_score(act, shapes[i]);
        check_logits(act, shapes[i], 0);
        check_logits(act, shapes[i], shapes[i].seq - 1);
    }
}

static void test_f32(void **state)
{
    (void)state;
    optest_seed(21);
    check_shapes(SH_F32);
}

static void test_bf16(void **state)
{
    (void)state;
    optest_seed(22);
    check_shapes(SH_BF16);
}

static void test_f16(void **state)
{
    (void)state;
    optest_seed(24);
    check_shapes(SH_F16);
}

/* Nothing to learn from: no loss, zero gradients, and dw unchanged. */
static void test_all_masked(void **state)
{
    (void)state;
    optest_seed(23);
    struct head_shape s = {1, 20, 16, 33, 8, false, true, false};
    struct optest t;
    head_loss(&t, SH_OP_HEAD_LOSS_GRAD, SH_F32, s);
    head_nothing_counts(&t);
    agree(&t, 3, (struct agree_bound[3]){{0, 0}, {0, 0}, {0, 0}}, -1, -1);
    optest_end(&t);
}

static void same(struct optest *a, struct optest *b)
{
    optest_run(a, &sh_kernels_cpu, 2);
    optest_run(b, &sh_kernels_cpu, 2);
    for (int i = 0; i < 3; i++)
        optest_same(a, b, i);
    optest_end(a);
    optest_end(b);
}

/* Weights of 1 are as none, and a row of weight 0 is as one without a target. */
static void test_weights(void **state)
{
    static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};
    struct optest t, other;

    (void)state;
    optest_seed(25);
    for (size_t i = 0; i < 2 * sizeof acts / sizeof *acts; i++) {
        head_loss(&t, SH_OP_HEAD_LOSS_GRAD, acts[i / 2], (struct head_shape){2, 37, 40, 300, 32, true, true, true});
        head_alike(&t, i % 2, &other);
        same(&t, &other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),        cmocka_unit_test(test_bf16),    cmocka_unit_test(test_f16),
        cmocka_unit_test(test_all_masked), cmocka_unit_test(test_weights),
    };
    return cmocka_run_group_tests_name("cpu_head", tests, NULL, NULL);
}
