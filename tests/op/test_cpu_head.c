/* The head against the reference: vocabularies of any size, masked targets, chunks that do not divide the rows or
 * exceed them, sums that continue from earlier values. Bits must not depend on threads or addresses. */
#include "src/config/words.h"
#include "tests/op/agree.h"
#include "tests/op/calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct head_shape shapes[] = {
    {1, 1, 8, 5, 1, false, false, false, 0},        {2, 17, 24, 65, 5, true, false, false, 0},
    {1, 40, 32, 1000, 64, false, true, false, 0},   {3, 33, 64, 257, 32, true, true, false, 0},
    {1, 96, 48, 513, 96, false, false, false, 0},   {1, 50, 16, 2, 49, true, true, false, 0},
    {1, 530, 420, 270, 520, false, true, false, 0}, {2, 27, 24, 65, 5, true, true, true, 0},
    {1, 90, 40, 1100, 64, false, false, true, 0},   {2, 27, 24, 65, 5, true, true, true, 4},
    {1, 90, 40, 1100, 64, false, false, false, 7},  {1, 9, 16, 2, 4, false, false, false, 2},
    {2, 33, 40, 1, 16, true, true, true, -1},       {1, 70, 24, 3, 32, false, false, false, -1},
    {1, 70, 24, 5, 32, false, false, false, -5},
};

enum { SEVERAL = -1 }; /* in place of a teacher's form: labels, each by itself */

/* A row's loss is off by the error of its logits plus that of a sum of V exponentials. */
static struct sh_bound loss_bound(struct head_shape s)
{
    double rows = (double)(s.batch * s.seq);
    return (struct sh_bound){.atol = rows * (double)(s.dim + 64) * 0x1p-23, .rtol = 0x1p-20};
}

static void check_loss(enum sh_dtype act, struct head_shape s)
{
    struct optest t;
    head_loss(&t, SH_OP_HEAD_LOSS, act, s);
    struct sh_bound bound = loss_bound(s);
    agree(&t, 1, &bound, -1, -1);
    optest_end(&t);
}

/* The absolute gradients of one row's logits sum to at most 2 * loss_scale, half of that at the target. In 16 bits
 * the target's is rounded once, the others twice; they are multiplied by numbers below 6. dw sums them over rows,
 * which gives 2 again. */
static void check_gradients(enum sh_dtype act, struct head_shape s, bool frozen, int form)
{
    struct optest t;
    head_loss(&t, SH_OP_HEAD_LOSS_GRAD, act, s);
    if (form > 0)
        head_form(&t, form);
    if (form == SEVERAL)
        head_multi_label(&t);
    if (frozen)
        head_frozen(&t);
    double eps = act != SH_F32 ? 0.75 * sh_bound_eps(act) : (double)(s.dim + 64) * 0x1p-23;
    double size = 6 * sh_bound_inside(SH_OP_HEAD_LOSS_GRAD);
    struct sh_bound bound[3] = {
        loss_bound(s),
        {.atol = size * eps * t.scalars.loss_scale, .rtol = act != SH_F32 ? 2 * sh_bound_eps(act) : 0x1p-20},
        {.atol = size * eps, .rtol = 0x1p-20},
    };
    agree(&t, frozen ? 2 : 3, bound, -1, -1);
    optest_end(&t);
}

static void check_logits(enum sh_dtype act, struct head_shape s, int64_t position)
{
    struct optest t;
    head_logits(&t, act, s, position);
    struct sh_bound bound = sh_bound_sum(SH_F32, (double)s.dim);
    agree(&t, 1, &bound, -1, -1);
    optest_end(&t);
}

/* Of some words: those of others are 0. */
static void check_logits_of_part(enum sh_dtype act, struct head_shape s)
{
    struct optest t;
    struct sh_bound bound = sh_bound_sum(SH_F32, (double)s.dim);

    head_logits_of_part(&t, act, s);
    agree(&t, 1, &bound, -1, -1);
    optest_end(&t);
}

/* The likeliest word must not depend on rounding: the largest of normal logits is well separated. */
static void check_score(enum sh_dtype act, struct head_shape s)
{
    struct optest t;
    head_score(&t, act, s);
    struct sh_bound logs = {.atol = (double)(s.dim + 64) * 0x1p-22, .rtol = 0x1p-20};
    struct sh_bound bound[4] = {logs, {0, 0}, {0, 0}, logs};
    agree(&t, t.call.out[3].data ? 4 : 2, bound, -1, -1);
    optest_end(&t);
}

static void check_shapes(enum sh_dtype act)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_loss(act, shapes[i]);
        check_gradients(act, shapes[i], false, 0);
        check_gradients(act, shapes[i], true, 0);
        for (int form = SH_KD_STORED; form <= SH_KD_TAIL && shapes[i].words > 0 && shapes[i].words < shapes[i].vocab;
             form++)
            check_gradients(act, shapes[i], false, form);
        if (shapes[i].words == 0)
            check_gradients(act, shapes[i], i % 2, SEVERAL);
        check_score(act, shapes[i]);
        check_logits(act, shapes[i], 0);
        if (i < 4)
            check_logits_of_part(act, shapes[i]);
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
    struct head_shape s = {1, 20, 16, 33, 8, false, true, false, 0};
    struct optest t;
    head_loss(&t, SH_OP_HEAD_LOSS_GRAD, SH_F32, s);
    head_nothing_counts(&t);
    agree(&t, 3, (struct sh_bound[3]){{0, 0}, {0, 0}, {0, 0}}, -1, -1);
    optest_end(&t);
}

/* A soft cap only makes logits and their gradients smaller; many are near it. */
static void test_capped(void **state)
{
    static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};

    (void)state;
    optest_seed(27);
    for (size_t i = 0; i < 3 * 3; i++) {
        struct head_shape s = shapes[7 + i / 3]; /* weights; many words; a teacher */
        enum sh_dtype act = acts[i % 3];
        double eps = act != SH_F32 ? 0.75 * sh_bound_eps(act) : (double)(s.dim + 64) * 0x1p-23;
        struct optest t;

        head_loss(&t, SH_OP_HEAD_LOSS_GRAD, act, s);
        t.attr.head.cap = 0.75f;
        agree(&t, 3,
              (struct sh_bound[]){
                  loss_bound(s),
                  {.atol = 12 * eps * t.scalars.loss_scale, .rtol = act != SH_F32 ? 2 * sh_bound_eps(act) : 0x1p-20},
                  {.atol = 12 * eps, .rtol = 0x1p-20}},
              -1, -1);
        optest_end(&t);
        head_logits(&t, act, s, s.seq / 2);
        t.attr.head.cap = 1.5f;
        agree(&t, 1, (struct sh_bound[]){sh_bound_sum(SH_F32, (double)s.dim)}, -1, -1);
        optest_end(&t);
        head_score(&t, act, s);
        t.attr.head.cap = 32;
        agree(&t, 1, (struct sh_bound[]){{.atol = (double)(s.dim + 64) * 0x1p-22, .rtol = 0x1p-20}}, -1, -1);
        optest_end(&t);
    }
}

/* Squares come to the loss of rows with weights, with caps, and with a teacher's words in two forms. */
static void test_squares(void **state)
{
    static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};

    (void)state;
    optest_seed(29);
    for (size_t i = 0; i < 3 * 5; i++) {
        struct head_shape s =
            shapes[(size_t[]){7, 8, 8, 9, 10}[i / 3]]; /* weights; many words, twice; a teacher, twice */
        enum sh_dtype act = acts[i % 3];
        double eps = act != SH_F32 ? 0.75 * sh_bound_eps(act) : (double)(s.dim + 64) * 0x1p-23;
        struct optest t;

        for (int gradient = 0; gradient < 2; gradient++) {
            head_loss(&t, gradient ? SH_OP_HEAD_LOSS_GRAD : SH_OP_HEAD_LOSS, act, s);
            if (i / 3 == 4)
                head_form(&t, SH_KD_TAIL);
            head_squares(&t, 0.0625);
            t.attr.head.cap = i / 3 == 2 ? 0.75f : 0;
            agree(&t, gradient ? 3 : 1,
                  (struct sh_bound[]){loss_bound(s),
                                      {.atol = 24 * eps * t.scalars.loss_scale,
                                       .rtol = act != SH_F32 ? 2 * sh_bound_eps(act) : 0x1p-20},
                                      {.atol = 24 * eps, .rtol = 0x1p-20}},
                  -1, -1);
            optest_end(&t);
        }
    }
}

/* Loss and derivatives by the logits, which are x, of words 2 and 0 of 3 with probabilities q beside p = 1/2, 1/8, 3/8. */
static void test_forms_by_hand(void **state)
{
    static const double p[] = {0.5, 0.125, 0.375}, q[] = {0.25, 0.5}, left[] = {0, 0.25};

    (void)state;
    for (int i = 0; i < 2 * 2; i++) {
        const struct sh_kernel_table *device = i % 2 ? &sh_kernels_cpu : &sh_kernels_ref;
        int form = i / 2 ? SH_KD_TAIL : SH_KD_STORED;
        double ratio = left[i / 2] / p[1], of_others = form == SH_KD_TAIL ? 1 - ratio : 0.75,
               of_words = of_others + ratio;
        double loss = 0.25 * log(0.25 / p[2]) + 0.5 * log(0.5 / p[0]) + (form == SH_KD_TAIL ? 0.25 * log(ratio) : 0);
        const double dx[] = {of_words * p[0] - q[1], of_others * p[1], of_words * p[2] - q[0]};
        struct optest t;

        head_loss(&t, SH_OP_HEAD_LOSS_GRAD, SH_F32, (struct head_shape){1, 1, 3, 3, 1, false, false, false, 2});
        t.attr.head.temperature = t.attr.head.alpha = t.scalars.loss_scale = 1;
        t.attr.head.form = form;
        optest_set(&t.call.in[2], 0, 1);
        for (int64_t k = 0; k < 9; k++)
            optest_set(&t.call.in[1], k, k % 4 == 0);
        for (int64_t k = 0; k < 3; k++)
            optest_set(&t.call.in[0], k, log(p[k]));
        for (int64_t k = 0; k < 2; k++) {
            optest_set(&t.call.in[4], k, 2 - 2 * (double)k);
            optest_set(&t.call.in[5], k, log(q[k]));
        }
        optest_run(&t, device, 1);
        assert_true(fabs(optest_get(&t.call.out[0], 0) - loss) < 1e-6);
        for (int64_t k = 0; k < 3; k++)
            assert_true(fabs(optest_get(&t.call.out[1], k) - dx[k]) < 1e-6);
        optest_end(&t);
    }
}

/* Three labels of a text, of which it has one, none and a part of one: each counts a third. */
static void test_multi_label_by_hand(void **state)
{
    static const double z[] = {0.5, -1, 2}, y[] = {1, 0, 0.25};
    struct optest t;

    (void)state;
    for (int i = 0; i < 2; i++) {
        double loss = 0;

        head_loss(&t, SH_OP_HEAD_LOSS_GRAD, SH_F32, (struct head_shape){1, 1, 3, 3, 1, false, false, false, 0});
        head_multi_label(&t);
        t.scalars.loss_scale = 1;
        optest_set(&t.call.in[2], 0, 0);
        for (int64_t k = 0; k < 9; k++)
            optest_set(&t.call.in[1], k, k % 4 == 0);
        for (int64_t k = 0; k < 3; k++) {
            optest_set(&t.call.in[0], k, z[k]);
            optest_set(&t.call.in[5], k, y[k]);
            loss -= (y[k] * log(1 / (1 + exp(-z[k]))) + (1 - y[k]) * log(1 / (1 + exp(z[k])))) / 3;
        }
        optest_run(&t, i ? &sh_kernels_cpu : &sh_kernels_ref, 1);
        assert_true(fabs(optest_get(&t.call.out[0], SH_HEAD_SUM) - loss) < 1e-6);
        assert_true(optest_get(&t.call.out[0], SH_HEAD_TRUE_POSITIVES) == 1);
        assert_true(optest_get(&t.call.out[0], SH_HEAD_POSITIVES) == 3);
        assert_true(optest_get(&t.call.out[0], SH_HEAD_RIGHT) == 0);
        for (int64_t k = 0; k < 3; k++)
            assert_true(fabs(optest_get(&t.call.out[1], k) - (1 / (1 + exp(-z[k])) - y[k]) / 3) < 1e-6);
        optest_set(&t.call.in[5], 2, 0.5);
        optest_run(&t, i ? &sh_kernels_cpu : &sh_kernels_ref, 1);
        assert_true(optest_get(&t.call.out[0], SH_HEAD_RIGHT) == 1);
        optest_end(&t);
    }
}

/* Words that are all there is: nothing is left, and nothing is divided by it. A model without a rest has a finite loss, and
 * the slopes of its words are not differences of large numbers. */
static void test_nothing_left(void **state)
{
    static const double p[] = {0.7, 0.3}, q[] = {0.51, 0.25};

    (void)state;
    for (int i = 0; i < 2 * 2; i++) {
        const struct sh_kernel_table *device = i % 2 ? &sh_kernels_cpu : &sh_kernels_ref;
        double each = q[i / 2], left = i / 2 ? 1 - 2 * each : 0;
        double loss = each * log(each / p[0]) + each * log(each / p[1]) + (i / 2 ? left * log(left / SH_KD_REST) : 0);
        struct optest t;

        head_loss(&t, SH_OP_HEAD_LOSS_GRAD, SH_F32, (struct head_shape){1, 1, 2, 2, 1, false, false, false, 2});
        t.attr.head.temperature = t.attr.head.alpha = t.scalars.loss_scale = 1;
        t.attr.head.form = SH_KD_TAIL;
        for (int64_t k = 0; k < 4; k++)
            optest_set(&t.call.in[1], k, k % 3 == 0);
        for (int64_t k = 0; k < 2; k++) {
            optest_set(&t.call.in[0], k, log(p[k]));
            optest_set(&t.call.in[4], k, (double)k);
            optest_set(&t.call.in[5], k, log(each));
        }
        optest_set(&t.call.in[2], 0, 1);
        optest_run(&t, device, 1);
        assert_true(fabs(optest_get(&t.call.out[0], 0) - loss) < 1e-5);
        for (int64_t k = 0; k < 2; k++)
            assert_true(fabs(optest_get(&t.call.out[1], k) - ((i / 2 ? 1 : 2 * each) * p[k] - each)) < 1e-6);
        optest_end(&t);
    }
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
        head_loss(&t, SH_OP_HEAD_LOSS_GRAD, acts[i / 2], (struct head_shape){2, 37, 40, 300, 32, true, true, true, 0});
        head_alike(&t, i % 2, &other);
        same(&t, &other);
    }
}

/* All words of a uniform teacher at temperature 1 with alpha 1: the loss is log V off the entropy, by hand; equal logits
 * are found in the order of the words. */
static void test_teacher_by_hand(void **state)
{
    enum { V = 6 };
    struct head_shape s = {1, 2, 8, V, 2, false, false, false, V};
    struct optest t;

    (void)state;
    optest_seed(26);
    head_loss(&t, SH_OP_HEAD_LOSS_GRAD, SH_F32, s);
    t.attr.head.temperature = t.attr.head.alpha = 1;
    for (int64_t i = 0; i < 2 * V; i++) {
        optest_set(&t.call.in[2], i / V, 3);
        optest_set(&t.call.in[4], i, (double)(V - 1 - i % V));
        optest_set(&t.call.in[5], i, -1 - (double)(i / V)); /* what is left out shows in all alike */
    }
    for (int64_t i = 0; i < 16; i++)
        optest_set(&t.call.in[0], i, 0);
    optest_run(&t, &sh_kernels_cpu, 1);
    assert_true(fabs(optest_get(&t.call.out[0], 0)) < 1e-6);
    for (int64_t i = 0; i < 16; i++)
        assert_true(fabs(optest_get(&t.call.out[1], i)) < 1e-6);
    optest_end(&t);
    head_score(&t, SH_F32, s);
    for (int64_t i = 0; i < 16; i++)
        optest_set(&t.call.in[0], i, 0);
    optest_run(&t, &sh_kernels_cpu, 1);
    for (int64_t i = 0; i < 2 * V; i++) {
        assert_true(optest_get(&t.call.out[2], i) == (double)(i % V));
        assert_true(fabs(optest_get(&t.call.out[3], i) + log(V)) < 1e-6);
    }
    optest_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_capped),
        cmocka_unit_test(test_squares),
        cmocka_unit_test(test_all_masked),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_teacher_by_hand),
        cmocka_unit_test(test_forms_by_hand),
        cmocka_unit_test(test_nothing_left),
        cmocka_unit_test(test_multi_label_by_hand),
    };
    return cmocka_run_group_tests_name("cpu_head", tests, NULL, NULL);
}
