/* Sketches: parts add up to the whole to the last bit, however it is cut; estimates are as good as the header says. */
#include "src/base/number/mixsum.h"
#include "src/base/number/rng.h"
#include "src/base/number/sketch.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 96, WIDTH = 37, ELEMS = ROWS * WIDTH, SEED = 77 };

static float data[ELEMS];

static void fill(uint64_t key, double scale)
{
    sh_rng_fill_normal(key, 0, ELEMS, (float)scale, data);
}

static struct sh_sketch whole(const float *x)
{
    struct sh_sketch s = {0};

    sh_sketch_add(&s, x, ROWS, WIDTH, SEED, 1000);
    return s;
}

static void add_words(struct sh_sketch *to, const struct sh_sketch *more)
{
    int64_t a[SH_SKETCH_WORDS], b[SH_SKETCH_WORDS];
    uint32_t largest = to->largest > more->largest ? to->largest : more->largest;

    sh_sketch_put(to, a);
    sh_sketch_put(more, b);
    for (int i = 0; i < SH_SKETCH_WORDS; i++)
        a[i] += b[i];
    sh_sketch_get(to, a);
    to->largest = largest;
}

/* Rows in pieces of each length, added from the last to the first, as ranks would. */
static void test_parts(void **state)
{
    (void)state;
    for (int exponent = -60; exponent <= 60; exponent += 20) {
        fill((uint64_t)(exponent + 100), pow(2, exponent));
        for (int step = 1; step < ROWS; step += 7) {
            struct sh_sketch sum = {0}, all = whole(data);

            for (int row = (ROWS - 1) / step * step; row >= 0; row -= step) {
                struct sh_sketch part = {0};
                int n = row + step < ROWS ? step : ROWS - row;

                sh_sketch_add(&part, data + row * WIDTH, n, WIDTH, SEED, 1000 + row * WIDTH);
                add_words(&sum, &part);
            }
            assert_memory_equal(&sum, &all, sizeof all);
        }
    }
}

static void test_values(void **state)
{
    double squares = 0, signs[SH_SKETCH_SIGNS] = {0}, largest = 0;
    struct sh_sketch s;

    (void)state;
    fill(3, 0.01);
    s = whole(data);
    for (int i = 0; i < ELEMS; i++) {
        uint64_t bits = sh_mixsum_elem(0, SEED + (uint64_t)(1000 + i) * SH_MIXSUM_STEP);

        squares += (double)data[i] * data[i];
        largest = fmax(largest, fabs(data[i]));
        for (int k = 0; k < SH_SKETCH_SIGNS; k++)
            signs[k] += bits >> k & 1 ? -data[i] : data[i];
    }
    assert_true(fabs(sh_sketch_norm(&s) / sqrt(squares) - 1) < 1e-12);
    assert_true(sh_bits_to_f32(s.largest) == (float)largest);
    assert_true(s.sum == sh_mixsum((struct sh_floats){.whole = data}, ELEMS, SEED + UINT64_C(1000) * SH_MIXSUM_STEP));
    assert_int_equal(s.bad, 0);
    for (int k = 0; k < SH_SKETCH_SIGNS; k++)
        assert_true(fabs(sh_sketch_sign(&s, k) - signs[k]) < 1e-12);
}

/* Each single bit of an element, two elements that change places, and the same elements elsewhere. */
static void test_changes(void **state)
{
    struct sh_sketch before, after = {0};

    (void)state;
    fill(4, 1);
    before = whole(data);
    for (int bit = 0; bit < 32; bit++) {
        float kept = data[500];

        data[500] = sh_bits_to_f32(sh_f32_to_bits(kept) ^ 1U << bit);
        assert_true(whole(data).sum != before.sum);
        data[500] = kept;
    }
    float first = data[0];

    data[0] = data[1];
    data[1] = first;
    assert_true(whole(data).sum != before.sum);
    sh_sketch_add(&after, data, ROWS, WIDTH, SEED, 1001);
    assert_true(after.sum != before.sum);
}

static void test_not_finite(void **state)
{
    struct sh_sketch s, good;

    (void)state;
    fill(5, 1);
    data[7] = data[70] = data[700] = 0;
    good = whole(data);
    data[7] = NAN;
    data[70] = INFINITY;
    data[700] = -INFINITY;
    s = whole(data);
    assert_int_equal(s.bad, 3);
    assert_true(s.sum != good.sum);
    assert_int_equal(s.largest, good.largest);
    assert_memory_equal(s.sums, good.sums, sizeof s.sums);
    data[7] = FLT_MAX; /* its square is too large for a sum */
    s = whole(data);
    assert_int_equal(s.bad, 3);
    assert_true(sh_bits_to_f32(s.largest) == FLT_MAX);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The estimate of a difference over the difference: the 1st and 99th of 100 parts of 400 tries. */
static void test_estimates(void **state)
{
    enum { TRIES = 400 };
    static float other[ELEMS];
    double ratio[TRIES];

    (void)state;
    for (int t = 0; t < TRIES; t++) {
        double estimate = 0, squares = 0;
        struct sh_sketch a, b;

        fill(1000 + (uint64_t)t, 1e-3);
        memcpy(other, data, sizeof other);
        fill(2000 + (uint64_t)t, 1);
        for (int i = 0; i < ELEMS; i++) {
            other[i] += data[i];
            squares += ((double)other[i] - data[i]) * ((double)other[i] - data[i]);
        }
        a = whole(data);
        b = whole(other);
        for (int k = 0; k < SH_SKETCH_SIGNS; k++)
            estimate += pow(sh_sketch_sign(&a, k) - sh_sketch_sign(&b, k), 2) / SH_SKETCH_SIGNS;
        ratio[t] = estimate / squares;
    }
    qsort(ratio, TRIES, sizeof *ratio, by_size);
    assert_true(ratio[TRIES / 100] > 0.15 && ratio[TRIES - TRIES / 100] < 3);
    assert_true(ratio[TRIES / 2] > 0.8 && ratio[TRIES / 2] < 1.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),      cmocka_unit_test(test_values),    cmocka_unit_test(test_changes),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_estimates),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
