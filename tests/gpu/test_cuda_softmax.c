/* Softmax and cross entropy of rows of logits on CUDA against float64: any vocabulary, masked rows, all types of
 * gradient in place of the logits, sums that continue; and the same bits in any order of threads. */
#include "kernels/cpu/teacher.h"
#include "kernels/cuda/gemm/head.h"
#include "kernels/cuda/loss/forms.h"
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
        .targets = device_alloc(targets, 4), .numbers = 1, .row_loss = device_alloc((size_t)d->rows * sizeof(double), 0),
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

/* Logits in an order that tells where a list goes wrong: few values, so that most are equal; rising, so that all enter it;
 * falling; no order; some that are no numbers; none that is. */
enum { FEW_VALUES, RISING, FALLING, ANY, ODD, NO_NUMBER, LOGITS };

static float logit_of(int how, int64_t v)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, -0.0f, 0, 1};

    switch (how) {
    case FEW_VALUES: return (float)optest_int(0, 3);
    case RISING: return (float)v;
    case FALLING: return (float)-v;
    case ODD: return odd[optest_int(0, 6)];
    case NO_NUMBER: return NAN;
    default: return (float)(20 * optest_normal());
    }
}

/* The list of a row by the CPU's function, for the same logits. */
static void check_list(const struct data *d, int64_t r, int words, const int32_t *word, const float *logprob)
{
    int32_t *wanted = need((size_t)words * sizeof *wanted);
    float *best = need((size_t)words * sizeof *best);
    double lse = lse_of(d, r);

    sh_cpu_best_words(d->logits + r * d->ld, d->vocab, words, wanted, best);
    for (int j = 0; j < words; j++) {
        double logp = (double)best[j] - lse, found = (double)logprob[r * words + j];
        bool as_wanted = isfinite(lse) ? found == logp || fabs(found - logp) <= 0x1p-21 * (8 + fabs(lse) + fabs(logp))
                                       : isnan(found);

        if (word[r * words + j] != wanted[j] || !as_wanted)
            fail_msg("%lld words, row %lld, place %d of %d: %d with %g, not %d with %g", (long long)d->vocab,
                     (long long)r, j, words, word[r * words + j], found, wanted[j], logp);
    }
    free(wanted);
    free(best);
}

static void check_lists(struct shape shape, int words, int how)
{
    struct data d = make(shape);
    size_t list = (size_t)(d.rows * words) * sizeof(int32_t), rows = (size_t)d.rows * sizeof(int32_t);
    int32_t *word = need(list);
    float *logprob = need(list);
    /* clang-format off */
    struct sh_cuda_scores s = {
        .rows = d.rows, .vocab = d.vocab, .ld = d.ld, .words = words, .logits = device_alloc(logits_bytes(&d), 0),
        .targets = device_alloc(rows, 4), .logprob = device_alloc(rows, 4), .likeliest = device_alloc(rows, 4),
        .best = device_alloc(list, 4), .best_logprob = device_alloc(list, 4),
    };
    /* clang-format on */

    for (int64_t i = 0; i < d.rows * d.vocab; i++)
        d.logits[i / d.vocab * d.ld + i % d.vocab] = logit_of(how, i % d.vocab);
    device_put((void *)(uintptr_t)s.logits, d.logits, logits_bytes(&d));
    device_put((void *)(uintptr_t)s.targets, d.targets, rows);
    for (int order = 0; order < orders; order++) {
        optest_device_order(order);
        assert_int_equal(sh_cuda_top_words(&s, NULL), SH_OK);
        assert_int_equal(sh_cuda_softmax_scores(&s, NULL), SH_OK);
        device_get(word, s.best, list);
        device_get(logprob, s.best_logprob, list);
        for (int64_t r = 0; r < d.rows; r++)
            check_list(&d, r, words, word, logprob);
    }
    optest_device_order(0);
    void *memory[] = {
        (void *)(uintptr_t)s.logits, (void *)(uintptr_t)s.targets, s.logprob, s.likeliest, s.best, s.best_logprob};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(memory[i]);
    free(word);
    free(logprob);
    drop(&d);
}

/* One word to all that are allowed; as many as there are; rows of several tiles, and of more than wait at a time. */
static void test_lists(void **state)
{
    static const struct {
        struct shape shape;
        int words;
    } lists[] = {{{1, 1, 1}, 1},  {{2, 5, 1}, 5},    {{3, 61, 1}, 9},    {{2, 257, 1}, 256},
                 {{7, 61, 1}, 9}, {{2, 4099, 1}, 1}, {{2, 9001, 1}, 256}};

    (void)state;
    optest_seed(64);
    for (size_t i = 0; i < (orders == 1 ? 5 : sizeof lists / sizeof *lists); i++)
        for (int how = 0; how < LOGITS; how++)
            check_lists(lists[i].shape, lists[i].words, how);
}

static void test_too_many_words(void **state)
{
    struct sh_cuda_scores s = {.vocab = 300, .words = 257}, t = {.vocab = 3, .words = 4};

    (void)state;
    assert_int_equal(sh_cuda_top_words(&s, NULL), SH_E_BUG);
    assert_int_equal(sh_cuda_top_words(&t, NULL), SH_E_BUG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_loss_leaves_logits),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_lists),      cmocka_unit_test(test_too_many_words),
    };
    orders = getenv("SHERD_FEW_SHAPES") ? 1 : OPTEST_ORDERS;
    if (!optest_device_there())
        return 0;
    return cmocka_run_group_tests_name("cuda_softmax", tests, NULL, NULL);
}
