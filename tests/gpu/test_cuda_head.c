/* The head of CUDA against the reference, on the double of cuBLASLt: vocabularies of any size, masked targets, chunks
 * that do not divide the rows or exceed them, sums that continue from earlier values. */
#include "kernels/cuda/cuda.h"
#include "src/config/words.h"
#include "tests/gpu/optest_device.h"
#include "tests/op/calls.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return sh_cuda_head_work_bytes(call);
}

/* clang-format off */
static const struct sh_kernel_table table = {
    .name = "cuda",
    .run = {
        [SH_OP_HEAD_LOSS] = sh_cuda_head_loss,
        [SH_OP_HEAD_LOSS_GRAD] = sh_cuda_head_loss_grad,
        [SH_OP_LOGITS] = sh_cuda_logits,
        [SH_OP_HEAD_SCORE] = sh_cuda_head_score,
    },
    .prepare = sh_cuda_product_prepare,
    .work_bytes = work_bytes,
};
/* clang-format on */

static const struct head_shape shapes[] = {
    {1, 1, 8, 5, 1, false, false, false, 0},     {2, 17, 24, 65, 5, true, false, false, 0},
    {1, 40, 32, 300, 64, false, true, false, 0}, {3, 11, 16, 257, 32, true, true, false, 0},
    {1, 50, 16, 2, 49, true, true, false, 0},    {2, 27, 24, 65, 5, true, true, true, 0},
};

/* Values of one or three words, and the logits of five labels; a teacher, with weights and with more words than a block has threads. */
static const struct head_shape forms[] = {
    {2, 33, 40, 1, 16, true, true, true, -1},    {1, 30, 24, 3, 32, false, false, false, -1},
    {2, 17, 24, 65, 5, true, true, true, 4},     {1, 20, 40, 2500, 16, false, false, false, 7},
    {1, 9, 16, 2, 4, false, false, false, 2},    {1, 6, 16, 40, 4, false, true, false, 70},
    {1, 30, 24, 5, 16, false, false, false, -5},
};

/* Output i within |ref - cuda| <= atol + rtol |ref|. */
struct bound {
    double atol, rtol;
};

static void check(struct optest *t, int n, const struct bound *bound)
{
    struct optest ref, other;
    optest_copy(&ref, t);
    optest_copy(&other, t);
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_device_run(t, &table);
    optest_device_order(OPTEST_ORDERS - 1);
    optest_device_run(&other, &table);
    optest_device_order(0);
    for (int i = 0; i < n; i++) {
        optest_within(&ref, t, i, bound[i].atol, bound[i].rtol);
        optest_same(t, &other, i);
    }
    optest_end(&other);
    optest_end(&ref);
    optest_end(t);
}

enum { SEVERAL = -1 }; /* in place of a teacher's form: labels, each by itself */

/* A row's loss is off by the error of its logits plus that of a sum of V exponentials. */
static struct bound loss_bound(struct head_shape s)
{
    double rows = (double)(s.batch * s.seq);
    return (struct bound){.atol = rows * (double)(s.dim + 64) * 0x1p-23, .rtol = 0x1p-20};
}

static void check_loss(enum sh_dtype act, struct head_shape s)
{
    struct optest t;
    head_loss(&t, SH_OP_HEAD_LOSS, act, s);
    struct bound bound = loss_bound(s);
    check(&t, 1, &bound);
}

/* The absolute gradients of one row's logits sum to at most 2 * loss_scale, and in bf16 each is rounded; they are
 * multiplied by numbers below 6. dw sums them over rows, which gives 2 again. */
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
    double eps = act == SH_BF16 ? 0x1p-9 : (double)(s.dim + 64) * 0x1p-23;
    struct bound bound[3] = {
        loss_bound(s),
        {.atol = 12 * eps * t.scalars.loss_scale, .rtol = act == SH_BF16 ? 0x1p-7 : 0x1p-20},
        {.atol = 12 * eps, .rtol = 0x1p-20},
    };
    check(&t, frozen ? 2 : 3, bound);
}

static void check_logits(enum sh_dtype act, struct head_shape s, int64_t position)
{
    struct optest t;
    head_logits(&t, act, s, position);
    struct bound bound = {.atol = 0x1p-23 * (double)(s.dim + 4), .rtol = 0x1p-20};
    check(&t, 1, &bound);
}

/* Of the first words, of some in the middle and of the last: those of others are 0. */
static void check_logits_of_part(enum sh_dtype act, struct head_shape s)
{
    static const int64_t firsts[] = {0, 3, 5};
    struct bound bound = {.atol = 0x1p-22 * (double)(s.dim + 4), .rtol = 0x1p-20};
    struct optest t;

    for (int i = 0; i < 3; i++) {
        head_logits_of_part(&t, act, s);
        t.attr.part.first = firsts[i];
        t.attr.part.cap = i == 1 ? 0.75f : 0;
        check(&t, 1, &bound);
    }
}

static void check_score(enum sh_dtype act, struct head_shape s)
{
    struct optest t;
    head_score(&t, act, s);
    struct bound bound[2] = {{.atol = (double)(s.dim + 64) * 0x1p-22, .rtol = 0x1p-20}, {0, 0}};
    check(&t, 2, bound);
}

/* With a cap: it only makes logits and their gradients smaller; many are near it. */
static void check_form(enum sh_dtype act, struct head_shape s, float cap, double z)
{
    double eps = act == SH_BF16 ? 0x1p-9 : (double)(s.dim + 64) * 0x1p-23;
    struct bound value = {.atol = (double)(s.dim + 64) * 0x1p-22, .rtol = 0x1p-20};
    struct bound score[4] = {value, {0, 0}, {0, 0}, value};
    struct bound logit = {.atol = 0x1p-22 * (double)(s.dim + 4), .rtol = 0x1p-20};
    struct bound bound[3] = {loss_bound(s),
                             {.atol = 12 * eps / (double)(s.batch * s.seq), .rtol = act == SH_BF16 ? 0x1p-7 : 0x1p-20},
                             {.atol = 12 * eps, .rtol = 0x1p-20}};
    struct optest t;

    for (int kind = 0; kind < 2; kind++) {
        head_loss(&t, kind ? SH_OP_HEAD_LOSS_GRAD : SH_OP_HEAD_LOSS, act, s);
        t.attr.head.cap = cap;
        if (z != 0)
            head_squares(&t, z);
        check(&t, kind ? 3 : 1, bound);
    }
    s.words = s.words < s.vocab ? s.words : s.vocab;
    head_score(&t, act, s);
    t.attr.head.cap = 4 * cap;
    check(&t, cap != 0 ? 1 : t.call.out[3].data ? 4 : 2, score);
    head_logits(&t, act, s, s.seq / 2);
    t.attr.part.cap = 2 * cap;
    check(&t, 1, &logit);
}

static void test_forms(void **state)
{
    bool few = getenv("SHERD_FEW_SHAPES") != NULL;

    (void)state;
    optest_seed(56);
    for (size_t i = 0; i < (few ? 3 : sizeof forms / sizeof *forms); i++)
        for (int act = 0; act < 2; act++) {
            check_form(act ? SH_BF16 : SH_F32, forms[i], 0, 0);
            if (forms[i].words > 0)
                check_form(act ? SH_BF16 : SH_F32, forms[i], 0.75f, 0);
            if (forms[i].words >= 0)
                check_form(act ? SH_BF16 : SH_F32, forms[i], i % 2 ? 0.75f : 0, 0.0625);
            for (int form = SH_KD_STORED; form <= SH_KD_TAIL && forms[i].words > 0 && forms[i].words < forms[i].vocab;
                 form++)
                check_gradients(act ? SH_BF16 : SH_F32, forms[i], false, form);
        }
    for (int act = 0; act < 2; act++)
        check_form(act ? SH_BF16 : SH_F32, shapes[5], 0.75f, 0);
}

static void check_shapes(enum sh_dtype act)
{
    bool few = getenv("SHERD_FEW_SHAPES") != NULL; /* for a simulator, which is slow */
    for (size_t i = 0; i < (few ? 3 : sizeof shapes / sizeof shapes[0]); i++) {
        check_loss(act, shapes[i]);
        check_gradients(act, shapes[i], false, 0);
        check_gradients(act, shapes[i], true, 0);
        check_gradients(act, shapes[i], i % 2, SEVERAL);
        check_score(act, shapes[i]);
        check_logits(act, shapes[i], shapes[i].seq - 1);
        check_logits_of_part(act, shapes[i]);
    }
}

static void test_f32(void **state)
{
    (void)state;
    optest_seed(51);
    check_shapes(SH_F32);
}

static void test_bf16(void **state)
{
    (void)state;
    optest_seed(52);
    check_shapes(SH_BF16);
}

/* All products without cuBLASLt: other shapes than before, whose choices are kept. */
static void test_refused(void **state)
{
    static const struct head_shape s = {2, 19, 24, 71, 7, true, true, false, 0};
    (void)state;
    optest_seed(54);
    setenv("SHERD_EMULATED_LT_REFUSE", "all none", 1);
    for (int i = 0; i < 2; i++) {
        enum sh_dtype act = i ? SH_BF16 : SH_F32;
        check_loss(act, s);
        check_gradients(act, s, false, 0);
        check_score(act, s);
        check_logits(act, s, 3);
        check_logits_of_part(act, s);
    }
    unsetenv("SHERD_EMULATED_LT_REFUSE");
}

/* Nothing to learn from: no loss, zero gradients, and dw unchanged. */
static void test_all_masked(void **state)
{
    (void)state;
    optest_seed(53);
    struct head_shape s = {1, 20, 16, 33, 8, false, true, false, 0};
    struct optest t;
    head_loss(&t, SH_OP_HEAD_LOSS_GRAD, SH_BF16, s);
    head_nothing_counts(&t);
    check(&t, 3, (struct bound[3]){{0, 0}, {0, 0}, {0, 0}});
}

/* Weights of 1 are as none, and a row of weight 0 is as one without a target. */
static void test_weights(void **state)
{
    struct optest t, other;

    (void)state;
    optest_seed(55);
    for (int i = 0; i < 4; i++) {
        head_loss(&t, SH_OP_HEAD_LOSS_GRAD, i / 2 ? SH_BF16 : SH_F32,
                  (struct head_shape){2, 17, 24, 65, 5, true, true, true, 0});
        head_alike(&t, i % 2, &other);
        optest_device_run(&t, &table);
        optest_device_run(&other, &table);
        for (int out = 0; out < 3; out++)
            optest_same(&t, &other, out);
        optest_end(&other);
        optest_end(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),     cmocka_unit_test(test_bf16),    cmocka_unit_test(test_all_masked),
        cmocka_unit_test(test_weights), cmocka_unit_test(test_refused), cmocka_unit_test(test_forms),
    };
    if (!optest_device_there())
        return 0;
    /* Scratch is 32 MiB per call: keep pages once they are allocated. */
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    return cmocka_run_group_tests_name("cuda_head", tests, NULL, NULL);
}
