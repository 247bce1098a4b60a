/* Softmax and cross entropy of rows of logits on CUDA against float64: any vocabulary, masked rows, all types of
 * gradient in place of the logits, sums that continue; and the same bits in any order of threads. */
#include "kernels/cuda/gemm/head.h"
#include "tests/gpu/optest_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct shape {
    int64_t rows, vocab;
    double spread; /* of the logits */
};

static const struct shape shapes[] = {{1, 1, 1},    {3, 5, 1},       {7, 64, 1},  {9, 257, 30},
                                      {5, 4099, 1}, {2, 17000, 200}, {300, 33, 5}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* A call's inputs and outputs, on the host. */
struct data {
    int64_t rows, vocab, ld;
    float *logits; /* [rows,ld] */
    int32_t *targets;
    double loss;
};

static void *need(size_t bytes)
{
    void *p = malloc(bytes);
    assert_non_null(p);
    return p;
}

static size_t logits_bytes(const struct data *d)
{
    return (size_t)(d->rows * d->ld) * sizeof(float);
}

/* Values past the vocabulary are NaN and must not matter; one target in five is masked. */
static struct data make(struct shape s)
{
    struct data d = {.rows = s.rows, .vocab = s.vocab, .ld = (s.vocab + 63) / 64 * 64, .loss = 2};
    d.logits = need(logits_bytes(&d));
    d.targets = need((size_t)s.rows * sizeof *d.targets);
    memset(d.logits, 0xff, logits_bytes(&d));
    for (int64_t r = 0; r < s.rows; r++) {
        for (int64_t v = 0; v < s.vocab; v++)
            d.logits[r * d.ld + v] = (float)(s.spread * optest_normal());
        d.targets[r] = optest_int(0, 5) ? (int32_t)optest_int(0, s.vocab) : -1;
    }
    return d;
}

static struct data copy(const struct data *d)
{
    struct data c = *d;
    c.logits = need(logits_bytes(d));
    c.targets = need((size_t)d->rows * sizeof *d->targets);
    memcpy(c.logits, d->logits, logits_bytes(d));
    memcpy(c.targets, d->targets, (size_t)d->rows * sizeof *d->targets);
    return c;
}

static void drop(struct data *d)
{
    free(d->logits);
    free(d->targets);
}

/* With SHERD_FEW_SHAPES in the environment only one order of threads: a race detector, which is slow, finds the same
 * in each. */
static int orders;

enum { NO_GRADIENT = -1 };
static const double loss_scale = 0.125;

/* gradient: a type, or NO_GRADIENT. */
static void run(struct data *d, int gradient, bool add)
{
    size_t targets = (size_t)d->rows * sizeof *d->targets;
    /* clang-format off */
    struct sh_cuda_softmax s = {
        .rows = d->rows, .vocab = d->vocab, .ld = d->ld, .logits = device_alloc(logits_bytes(d), 0),
        .targets = device_alloc(targets, 4), .row_loss = device_alloc((size_t)d->rows * sizeof(double), 0),
        .loss = device_alloc(sizeof(double), 0), .add_loss = add, .gradient = gradient != NO_GRADIENT,
        .grad_dtype = gradient == SH_BF16 ? SH_BF16 : SH_F32, .loss_scale = loss_scale,
    };
    /* clang-format on */
    device_put(s.logits, d->logits, logits_bytes(d));
    device_put((void *)(uintptr_t)s.targets, d->targets, targets);
    device_put(s.loss, &d->loss, sizeof d->loss);
    if (sh_cuda_softmax_loss(&s, NULL) != SH_OK)
        fail_msg("%s", sh_error_text());
    device_get(d->logits, s.logits, logits_bytes(d));
    device_get(&d->loss, s.loss, sizeof d->loss);
    device_free(s.logits);
    device_free((void *)(uintptr_t)s.targets);
    device_free(s.row_loss);
    device_free(s.loss);
}

static double lse_of(const struct data *d, int64_t r)
{
    double max = -INFINITY, sum = 0;
    for (int64_t v = 0; v < d->vocab; v++)
        max = fmax(max, (double)d->logits[r * d->ld + v]);
    for (int64_t v = 0; v < d->vocab; v++)
        sum += exp((double)d->logits[r * d->ld + v] - max);
    return max + log(sum);
}

static double gradient_at(const struct data *d, int64_t r, int64_t v, int gradient)
{
    const float *row = d->logits + r * d->ld;
    return gradient == SH_BF16 ? sh_bf16_to_f32(((const sh_bf16 *)(const void *)row)[v]) : row[v];
}

/* Exponentials of differences as large as ten times `spread` are off by their rounding. */
static void check_row(const struct data *before, const struct data *after, int64_t r, int gradient, double spread)
{
    double lse = lse_of(before, r), eps = 0x1p-23 * (8 + 12 * spread), type = gradient == SH_BF16 ? 0x1p-8 : 0x1p-22;
    for (int64_t v = 0; v < before->vocab; v++) {
        double p = exp((double)before->logits[r * before->ld + v] - lse), found = gradient_at(after, r, v, gradient);
        double wanted = before->targets[r] < 0 ? 0 : (p - (v == before->targets[r])) * loss_scale;
        if (!(fabs(found - wanted) <= eps * loss_scale + type * fabs(wanted)))
            fail_msg("row %lld of %lld, class %lld: %.9g, not %.9g", (long long)r, (long long)before->rows,
                     (long long)v, found, wanted);
    }
}

static void check(const struct data *before, struct shape s, int gradient, bool add)
{
    struct data after = copy(before);
    double loss = add ? before->loss : 0, size = fabs(loss);
    run(&after, gradient, add);
    for (int64_t r = 0; r < s.rows; r++) {
        if (before->targets[r] >= 0) {
            double row = lse_of(before, r) - (double)before->logits[r * before->ld + before->targets[r]];
            loss += row;
            size += fabs(row);
        }
        if (gradient != NO_GRADIENT)
            check_row(before, &after, r, gradient, s.spread);
    }
    if (!(fabs(after.loss - loss) <= 0x1p-20 * size))
        fail_msg("loss of %lld x %lld: %.9g, not %.9g", (long long)s.rows, (long long)s.vocab, after.loss, loss);

    for (int order = 1; order < orders; order++) {
        struct data again = copy(before);
        optest_device_order(order);
        run(&again, gradient, add);
        optest_device_order(0);
        assert_memory_equal(again.logits, after.logits, logits_bytes(&again));
        assert_true(again.loss == after.loss);
        drop(&again);
    }
    drop(&after);
}

static void test_shapes(void **state)
{
    (void)state;
    optest_seed(51);
    for (int i = 0; i < SHAPES; i++) {
        struct data d = make(shapes[i]);
        check(&d, shapes[i], NO_GRADIENT, i % 2);
        check(&d, shapes[i], SH_F32, false);
        check(&d, shapes[i], SH_BF16, i % 2 == 0);
        drop(&d);
    }
}

/* Only the loss: the logits stay unchanged. */
static void test_loss_leaves_logits(void **state)
{
    (void)state;
    optest_seed(52);
    struct data d = make((struct shape){4, 100, 1}), after = copy(&d);
    run(&after, NO_GRADIENT, false);
    assert_memory_equal(d.logits, after.logits, logits_bytes(&d));
    drop(&after);
    drop(&d);
}

/* A NaN among the logits, and a class that does not exist, show in the loss; a masked row hides its own. */
static void test_not_finite(void **state)
{
    (void)state;
    optest_seed(53);
    for (int what = 0; what < 3; what++) {
        struct data d = make((struct shape){3, 70, 1});
        d.targets[1] = what == 0 ? 70 : what == 1 ? 5 : -1;
        d.logits[d.ld + 69] = what == 0 ? 1 : NAN;
        run(&d, SH_F32, false);
        assert_int_equal(isnan(d.loss), what < 2);
        assert_int_equal(isnan(d.logits[d.ld + 3]), what == 1);
        drop(&d);
    }
}

static void test_no_rows(void **state)
{
    (void)state;
    struct data d = {.ld = 64, .vocab = 5, .loss = 3};
    run(&d, NO_GRADIENT, true);
    assert_true(d.loss == 3);
    run(&d, SH_F32, false);
    assert_true(d.loss == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_loss_leaves_logits),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_no_rows),
    };
    orders = getenv("SHERD_FEW_SHAPES") ? 1 : OPTEST_ORDERS;
    if (!optest_device_there())
        return 0;
    return cmocka_run_group_tests_name("cuda_softmax", tests, NULL, NULL);
}
