/* Sums without rounding: against long double, in any order and cut into any parts, at both ends of their range. */
#include "src/base/number/exact.h"
#include "tests/op/optest.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 500, N = BLOCKS * SH_EXACT_BLOCK };

/* Floats of all sizes, so that f64 sums of their squares round in most additions. */
static void fill_wide(float *a, int n, int exponents)
{
    for (int i = 0; i < n; i++)
        a[i] = ldexpf((float)optest_normal(), (int)optest_int(-exponents, exponents));
}

static double round_of(const float *a, int64_t n)
{
    struct sh_exact sum = {0};

    sh_exact_add_squares(&sum, a, n);
    return sh_exact_round(&sum);
}

static void is_near_long_double(void **state)
{
    static float a[N];

    (void)state;
    optest_seed(1);
    for (int exponents = 1; exponents < 60; exponents += 7)
        for (int n = 1; n <= N; n = n * 3 + 1) {
            long double sum = 0;

            fill_wide(a, n, exponents);
            for (int i = 0; i < n; i++)
                sum += (long double)a[i] * (long double)a[i];
            assert_true(fabsl((long double)round_of(a, n) - sum) <= 1e-15L * sum);
        }
}

/* One element per block, and sums that fit into the 64 bits of a long double: only the last step then rounds. */
static void rounds_once(void **state)
{
    (void)state;
    optest_seed(2);
    for (int trial = 0; trial < 2000; trial++) {
        static float a[20 * SH_EXACT_BLOCK];
        int scale = (int)optest_int(-60, 40);
        long double sum = 0;

        for (int b = 0; b < 20; b++) {
            float x = ldexpf((float)optest_int(0, 1 << 8), scale + (int)optest_int(0, 20));

            a[b * SH_EXACT_BLOCK] = x;
            sum += (long double)x * (long double)x;
        }
        assert_true(round_of(a, 20 * SH_EXACT_BLOCK) == (double)sum);
    }
}

static void swap_blocks(float *a, int64_t x, int64_t y)
{
    float kept[SH_EXACT_BLOCK];

    memcpy(kept, a + x * SH_EXACT_BLOCK, sizeof kept);
    memmove(a + x * SH_EXACT_BLOCK, a + y * SH_EXACT_BLOCK, sizeof kept);
    memcpy(a + y * SH_EXACT_BLOCK, kept, sizeof kept);
}

/* The way ranks do it: each has some of the blocks, and their accumulators are added as doubles. */
static double round_of_parts(const float *a, int parts)
{
    double all[SH_EXACT_ELEMS] = {0}, one[SH_EXACT_ELEMS];
    struct sh_exact sum;
    int64_t begin = 0;

    for (int p = 0; p < parts; p++) {
        int64_t end = p == parts - 1 ? BLOCKS : optest_int(begin, BLOCKS + 1);

        sum = (struct sh_exact){0};
        sh_exact_add_squares(&sum, a + begin * SH_EXACT_BLOCK, (end - begin) * SH_EXACT_BLOCK);
        sh_exact_put(&sum, one);
        for (int i = 0; i < SH_EXACT_ELEMS; i++)
            all[i] += one[i];
        begin = end;
    }
    sh_exact_get(&sum, all);
    return sh_exact_round(&sum);
}

static void has_no_order(void **state)
{
    static float a[N];

    (void)state;
    optest_seed(3);
    for (int trial = 0; trial < 20; trial++) {
        double expected;

        fill_wide(a, N, 1 + 3 * trial);
        expected = round_of(a, N);
        for (int order = 0; order < 10; order++) {
            for (int64_t b = BLOCKS - 1; b > 0; b--)
                swap_blocks(a, b, optest_int(0, b + 1));
            assert_true(round_of_parts(a, 1 + order) == expected);
        }
    }
}

/* 1 + 2 * 2^-54 is midway between two doubles and rounds to the even one, 1; adding the smallest square there is tips
 * it over. */
static void reaches_both_ends(void **state)
{
    float a[4 * SH_EXACT_BLOCK] = {0};
    float largest[3 * SH_EXACT_BLOCK];

    (void)state;
    a[0] = 1;
    a[SH_EXACT_BLOCK] = a[2 * SH_EXACT_BLOCK] = ldexpf(1, -27);
    assert_true(round_of(a, 4 * SH_EXACT_BLOCK) == 1);
    a[3 * SH_EXACT_BLOCK] = ldexpf(1, -149);
    assert_true(round_of(a, 4 * SH_EXACT_BLOCK) == 1 + DBL_EPSILON);
    assert_true(round_of(a + 3 * SH_EXACT_BLOCK, 1) == ldexp(1, -298));
    for (int i = 0; i < 3 * SH_EXACT_BLOCK; i++)
        largest[i] = FLT_MAX;
    assert_true(round_of(largest, 3 * SH_EXACT_BLOCK) == 192 * ((double)FLT_MAX * FLT_MAX));
    assert_true(round_of(a, 0) == 0);
}

static void carries_what_is_not_finite(void **state)
{
    float a[3 * SH_EXACT_BLOCK] = {0};

    (void)state;
    a[70] = -INFINITY;
    assert_true(round_of(a, 3 * SH_EXACT_BLOCK) == INFINITY);
    a[3] = NAN;
    assert_true(isnan(round_of(a, 3 * SH_EXACT_BLOCK)));
    a[3] = 1;
    a[70] = NAN;
    assert_true(isnan(round_of(a, 3 * SH_EXACT_BLOCK)));
}

/* Far more ranks than any job has: each contributes the most that a digit can hold. */
static void digits_have_room(void **state)
{
    const double ranks = 1048576, most = 4294967295.0;
    double elems[SH_EXACT_ELEMS] = {0};
    struct sh_exact sum;

    (void)state;
    for (int i = 0; i < SH_EXACT_DIGITS - 1; i++)
        elems[i] = ranks * most;
    sh_exact_get(&sum, elems);
    assert_true(sh_exact_round(&sum) == ldexp(ranks, 32 * (SH_EXACT_DIGITS - 1) - 352));
}

static void begin(struct optest *t, int64_t n, bool add)
{
    optest_begin(t, SH_OP_SUMSQ);
    optest_in(t, 0, SH_F32, DIMS(n));
    optest_out(t, 0, SH_F64, DIMS(SH_EXACT_ELEMS));
    if (!add)
        return;
    optest_add_to(t, 0);
    for (int i = 0; i < SH_EXACT_ELEMS; i++)
        optest_set(&t->call.out[0], i, i < SH_EXACT_DIGITS ? (double)optest_int(0, 1 << 30) : 0);
}

static void check_devices(int64_t n, bool add)
{
    struct optest ref, cpu;

    for (int threads = 1; threads <= 3; threads++) {
        begin(&ref, n, add);
        optest_copy(&cpu, &ref);
        optest_run(&ref, &sh_kernels_ref, 1);
        optest_run(&cpu, &sh_kernels_cpu, threads);
        optest_same(&ref, &cpu, 0);
        optest_end(&ref);
        optest_end(&cpu);
    }
}

static void devices_agree(void **state)
{
    static const int64_t lengths[] = {0, 1, 63, 64, 65, 1023, 1024, 1025, 70001};

    (void)state;
    optest_seed(4);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_devices(lengths[i], false);
        check_devices(lengths[i], true);
    }
}

static void check_round(const struct sh_kernel_table *device)
{
    struct optest t;

    optest_begin(&t, SH_OP_EXACT_ROUND);
    optest_in(&t, 0, SH_F64, DIMS(SH_EXACT_ELEMS));
    optest_out(&t, 0, SH_F64, DIMS(1));
    for (int i = 0; i < SH_EXACT_ELEMS; i++)
        optest_set(&t.call.in[0], i, i == 11 ? 5 : 0);
    optest_run(&t, device, 1);
    assert_true(optest_get(&t.call.out[0], 0) == 5);
    optest_end(&t);
}

static void digit_11_counts_ones(void **state)
{
    (void)state;
    check_round(&sh_kernels_ref);
    check_round(&sh_kernels_cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_near_long_double),
        cmocka_unit_test(rounds_once),
        cmocka_unit_test(has_no_order),
        cmocka_unit_test(reaches_both_ends),
        cmocka_unit_test(carries_what_is_not_finite),
        cmocka_unit_test(digits_have_room),
        cmocka_unit_test(devices_agree),
        cmocka_unit_test(digit_11_counts_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
