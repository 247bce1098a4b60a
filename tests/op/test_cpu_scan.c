/* The state-space dual form and what belongs to it, on the CPU and in the reference. Gradients of the reference are
 * compared with finite differences; a document that is packed with others makes the bits that it makes alone. */
#include "kernels/scan.h"
#include "tests/op/agree.h"
#include "tests/op/delta_rule.h"
#include "tests/op/gradient.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct delta_device cpu = {agree, DELTA_ACTS, false};

static void scan(void **state)
{
    (void)state;
    delta_scan(&cpu);
}

static void scan_gradient(void **state)
{
    static const struct delta_shape s = {2, 131, 1, 2, 3, 2, {2}};
    struct optest f, back;

    (void)state;
    optest_seed(92);
    delta_begin_scan(&f, SH_F64, SH_F64, &s, -3);
    optest_run(&f, &sh_kernels_ref, 1);
    delta_begin_scan_bwd(&back, &f, SH_F64, &s);
    delta_gradients(&f, &back, 3, 0);
}

/* What a long step leaves of a state is nothing, and never a NaN; a limit that holds all steps leaves no gradient. */
static void limits(void **state)
{
    static const struct delta_shape s = {1, 200, 1, 1, 4, 4, {0}};
    struct optest f, b;

    (void)state;
    optest_seed(93);
    delta_begin_scan(&f, SH_F32, SH_F32, &s, 12);
    optest_run(&f, &sh_kernels_cpu, 1);
    for (int64_t i = 0; i < optest_elems(&f.call.out[0]); i++)
        assert_true(isfinite(optest_get(&f.call.out[0], i)));
    f.attr.delta.least = 100;
    optest_run(&f, &sh_kernels_cpu, 1);
    delta_begin_scan_bwd(&b, &f, SH_F32, &s);
    b.attr.delta.least = 100;
    optest_run(&b, &sh_kernels_cpu, 1);
    for (int64_t i = 0; i < optest_elems(&b.call.out[1]); i++)
        assert_true(optest_get(&b.call.out[1], i) == 0);
    optest_end(&f);
    optest_end(&b);
}

/* Rows 37 to 219 are a document. */
static void packed_is_alone(void **state)
{
    enum { FIRST = 37, N = 183 };
    const struct delta_shape all = {1, 300, 1, 2, 16, 16, {FIRST, FIRST + N}}, one = {1, N, 1, 2, 16, 16, {0}};
    struct optest whole, alone, back, back_alone;

    (void)state;
    optest_seed(94);
    delta_begin_scan(&whole, SH_F32, SH_F32, &all, -1);
    delta_begin_scan(&alone, SH_F32, SH_F32, &one, -1);
    delta_take_rows(&alone, 0, &whole.call.in[0], FIRST, N);
    delta_take_rows(&alone, 1, &whole.call.in[1], FIRST, N);
    gradient_copy(&alone.call.in[2], &whole.call.in[2]);
    optest_run(&whole, &sh_kernels_cpu, 2);
    optest_run(&alone, &sh_kernels_cpu, 1);
    assert_memory_equal((float *)whole.call.out[0].data + FIRST * 32, alone.call.out[0].data, N * 32 * sizeof(float));
    delta_begin_scan_bwd(&back, &whole, SH_F32, &all);
    delta_begin_scan_bwd(&back_alone, &alone, SH_F32, &one);
    delta_take_rows(&back_alone, 0, &back.call.in[0], FIRST, N);
    optest_run(&back, &sh_kernels_cpu, 2);
    optest_run(&back_alone, &sh_kernels_cpu, 1);
    assert_memory_equal((float *)back.call.out[0].data + FIRST * 64, back_alone.call.out[0].data,
                        N * 64 * sizeof(float));
    optest_end(&whole);
    optest_end(&alone);
    optest_end(&back);
    optest_end(&back_alone);
}

/* ---- the norm, and the activation of the feed-forward blocks ---- */

static void norms(void **state)
{
    static const struct delta_shape few = {1, 3, 1, 2, 4, 5, {0}};
    struct optest f, b;

    (void)state;
    delta_gate_norms(&cpu);
    delta_begin_gate_norm(&f, SH_F64, SH_F64, &few);
    optest_run(&f, &sh_kernels_ref, 1);
    delta_begin_gate_norm_bwd(&b, &f, SH_F64, &few);
    delta_gradients(&f, &b, 3, 0);
}

static void begin_squared_relu(struct optest *f, struct optest *b, enum sh_dtype act, int n)
{
    optest_begin(f, SH_OP_SQUARED_RELU);
    optest_in(f, 0, act, DIMS(n));
    optest_out(f, 0, act, DIMS(n));
    optest_begin(b, SH_OP_SQUARED_RELU_BWD);
    optest_in(b, 0, act, DIMS(n));
    gradient_give(b, 1, &f->call.in[0]);
    optest_out(b, 0, act, DIMS(n));
}

static void squares(void **state)
{
    struct optest f, b;

    (void)state;
    optest_seed(97);
    for (int i = 0; i < 2 * DELTA_ACTS; i++) {
        const struct sh_bound bound = sh_bound_sum(delta_acts[i / 2], 8);

        begin_squared_relu(&f, &b, delta_acts[i / 2], i % 2 ? 7 : 3000);
        agree(&f, 1, &bound, -1, -1);
        agree(&b, 1, &bound, 0, 0);
        optest_end(&f);
        optest_end(&b);
    }
    begin_squared_relu(&f, &b, SH_F64, 9);
    delta_gradients(&f, &b, 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scan),  cmocka_unit_test(scan_gradient), cmocka_unit_test(limits),
        cmocka_unit_test(norms), cmocka_unit_test(squares),       cmocka_unit_test(packed_is_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
