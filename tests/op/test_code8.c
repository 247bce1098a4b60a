/* Numbers in codes of eight bits, and updates whose states are in them. */
#include "src/base/number/code8_law.h"
#include "tests/op/elem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { ELEMS = SH_CODE8_ELEMS, BLOCK = SH_CODE8_BLOCK_BYTES };

/* The codes of a block come back, and so does the largest number, at all sizes. */
static void codes_come_back(void **state)
{
    (void)state;
    optest_seed(5);
    for (int i = 0; i < 20000; i++) {
        unsigned char block[BLOCK], again[BLOCK];
        float x[ELEMS], y[ELEMS], scale = (float)ldexp(1 + (double)optest_int(0, 999999) / 1e6, optest_int(-88, 90));
        enum sh_code8_law law = i % 2 ? SH_CODE8_FOURTH : SH_CODE8_LINEAR;

        for (int k = 0; k < ELEMS; k++)
            block[k] = (unsigned char)(law == SH_CODE8_FOURTH ? optest_int(0, 255) : optest_int(-127, 127));
        block[i % ELEMS] = law == SH_CODE8_FOURTH ? 255 : 127;
        memcpy(block + ELEMS, &scale, sizeof scale);
        sh_code8_get(block, law, ELEMS, x);
        sh_code8_put(again, law, ELEMS, x);
        sh_code8_get(again, law, ELEMS, y);
        assert_memory_equal(block, again, BLOCK);
        assert_memory_equal(x, y, sizeof x);
        assert_true(x[i % ELEMS] == scale);
    }
}

/* Over all random bits the mean is the number, and a square above 0 stays above it. */
static void the_mean_is_the_number(void **state)
{
    (void)state;
    for (double x = 1; x > 1e-12; x *= 0.83) {
        double linear = 0, fourth = 0;

        for (uint32_t bits = 0; bits < 65536; bits++) {
            linear += (double)sh_code8_linear(sh_code8_to_linear((float)-x, sh_code8_per_linear(1), bits), 1);
            fourth += (double)sh_code8_fourth(sh_code8_to_fourth((float)x, sh_code8_per_fourth(1), bits), 1);
        }
        assert_true(fabs(linear / 65536 + x) <= 3e-5);
        assert_true(fourth > 0);
        if (x > 3e-10)
            assert_true(fabs(fourth / 65536 / x - 1) <= 1e-3);
    }
}

/* Whatever the random bits, the largest number of a block keeps the last code: another scale would be read from it. */
static void the_largest_keeps_the_last_code(void **state)
{
    (void)state;
    for (int i = 0; i < 200000; i++) {
        float scale = (float)ldexp(1 + (double)optest_int(0, 8388607) / 8388608, optest_int(-88, 90));
        uint32_t bits = i % 2 ? 0xffff : 0;

        assert_int_equal(sh_code8_to_linear(scale, sh_code8_per_linear(scale), bits), 127);
        assert_int_equal(sh_code8_to_linear(-scale, sh_code8_per_linear(scale), bits), 256 - 127);
        assert_int_equal(sh_code8_to_fourth(scale, sh_code8_per_fourth(scale), bits), 255);
    }
}

/* Of an infinity and of a NaN: the last code, whatever the random bits; numbers beside them are no numbers any more. */
static void no_number_has_the_last_code(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits += 0x1111)
        for (int nan = 0; nan < 2; nan++) {
            float x = nan ? NAN : INFINITY, linear = sh_code8_per_linear(x), fourth = sh_code8_per_fourth(x);

            assert_int_equal(sh_code8_to_linear(x, linear, bits), 127);
            assert_int_equal(sh_code8_to_linear(-INFINITY, linear, bits), 256 - 127);
            assert_int_equal(sh_code8_to_fourth(x, fourth, bits), 255);
            assert_false(isfinite(sh_code8_linear(sh_code8_to_linear(1, linear, bits), x)));
            assert_false(isfinite(sh_code8_fourth(sh_code8_to_fourth(1, fourth, bits), x)));
        }
}

/* Zeros stay, what is tiny becomes zero, an infinity is restored, and a part of a block is followed by zeros. */
static void the_ends(void **state)
{
    float x[ELEMS] = {0}, y[ELEMS];
    unsigned char block[BLOCK], zeros[BLOCK] = {0};

    (void)state;
    sh_code8_put(block, SH_CODE8_FOURTH, ELEMS, x);
    assert_memory_equal(block, zeros, BLOCK);
    x[3] = 1e-30f;
    sh_code8_put(block, SH_CODE8_FOURTH, ELEMS, x);
    assert_memory_equal(block, zeros, BLOCK);
    for (int law = 0; law < SH_CODE8_LAWS; law++)
        for (int nan = 0; nan < 2; nan++) {
            x[2] = 1;
            x[3] = nan ? NAN : INFINITY;
            x[4] = law == SH_CODE8_LINEAR ? -INFINITY : 1;
            sh_code8_put(block, (enum sh_code8_law)law, ELEMS, x);
            sh_code8_get(block, (enum sh_code8_law)law, ELEMS, y);
            assert_true(nan ? isnan(y[3]) : y[3] > 0 && isinf(y[3]));
            assert_true(!isfinite(y[2]) && (nan || law != SH_CODE8_LINEAR || (y[4] < 0 && isinf(y[4]))));
        }
    for (int i = 0; i < ELEMS; i++)
        x[i] = (float)(i + 1);
    sh_code8_put(block, SH_CODE8_LINEAR, 5, x);
    sh_code8_get(block, SH_CODE8_LINEAR, ELEMS, y);
    assert_true(y[4] == 5 && y[5] == 0 && y[63] == 0);
}

/* Parameters to codes and back: no further than half a step, and what has been decoded has the same codes again. */
static void to_codes_and_back(void **state)
{
    enum { N = 4096 + 64 };
    struct optest t, back;

    (void)state;
    optest_seed(19);
    optest_begin(&t, SH_OP_ENCODE);
    optest_in(&t, 0, SH_F32, DIMS(N));
    optest_out(&t, 0, SH_U8, DIMS(N / ELEMS, BLOCK));
    optest_run(&t, &sh_kernels_cpu, 3);
    optest_begin(&back, SH_OP_DECODE);
    optest_in(&back, 0, SH_U8, DIMS(N / ELEMS, BLOCK));
    memcpy(back.call.in[0].data, t.call.out[0].data, (size_t)sh_code8_bytes(N));
    optest_out(&back, 0, SH_F32, DIMS(N));
    optest_run(&back, &sh_kernels_cpu, 3);
    for (int64_t k = 0; k < N; k++)
        assert_true(fabs(optest_get(&back.call.out[0], k) - optest_get(&t.call.in[0], k)) <= 4.5 / 254);
    memcpy(t.call.in[0].data, back.call.out[0].data, N * sizeof(float));
    optest_run(&t, &sh_kernels_cpu, 2);
    assert_memory_equal(t.call.out[0].data, back.call.in[0].data, (size_t)sh_code8_bytes(N));
    optest_end(&t);
    optest_end(&back);
}

/* Also in float16. */
static void as_the_reference(void **state)
{
    elem_codes(state);
    elem.half = true;
    elem_codes(state);
    elem.half = false;
}

static double seconds_of(struct optest *t)
{
    struct timespec from, to;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    assert_int_equal(sh_kernels_cpu.run[t->call.kind](&t->call), SH_OK);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/* Printed, and far from any bound that a busy machine would break: in turn with float32. */
static void how_long_it_takes(void **state)
{
    enum { N = 1 << 22, TIMES = 8 };
    struct optest wide, coded;
    double best[2] = {1e9, 1e9};

    (void)state;
    elem_begin_update(&wide, SH_OP_ADAMW, N);
    elem_begin_coded(&coded, SH_OP_ADAMW_CODED, N);
    wide.attr.runs.count = coded.attr.runs.count = 1;
    wide.runs[0].end = coded.runs[0].end = N;
    for (int i = 0; i < TIMES; i++) {
        double a = seconds_of(&wide), b = seconds_of(&coded);

        best[0] = a < best[0] ? a : best[0];
        best[1] = b < best[1] ? b : best[1];
    }
    print_message("# adamw: %.2f ns an element in float32, %.2f in codes: %.2f times\n", best[0] / N * 1e9,
                  best[1] / N * 1e9, best[1] / best[0]);
    optest_end(&wide);
    optest_end(&coded);
}

static void run(struct optest *t, const struct sh_kernel_table *table, int way)
{
    optest_run(t, table, way + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_come_back),
        cmocka_unit_test(the_mean_is_the_number),
        cmocka_unit_test(the_largest_keeps_the_last_code),
        cmocka_unit_test(no_number_has_the_last_code),
        cmocka_unit_test(the_ends),
        cmocka_unit_test(to_codes_and_back),
        cmocka_unit_test(as_the_reference),
        cmocka_unit_test(elem_update_of_codes),
        cmocka_unit_test(how_long_it_takes),
    };

    elem = (struct elem){.table = &sh_kernels_cpu, .run = run};
    return cmocka_run_group_tests_name("code8", tests, NULL, NULL);
}
