/* The gated delta rule and what belongs to it (qwen3_5_text), on the CPU and in the reference. Gradients of the reference
 * are compared with finite differences; a document that is packed with others makes the bits that it makes alone. */
#include "kernels/delta.h"
#include "tests/op/agree.h"
#include "tests/op/delta_rule.h"
#include "tests/op/gradient.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct delta_device cpu = {agree, DELTA_ACTS, false};

static void rule(void **state)
{
    (void)state;
    delta_rule(&cpu);
}

static void rule_gradient(void **state)
{
    static const struct delta_shape s = {2, 67, 1, 2, 3, 2, {2}};
    struct optest f, back;

    (void)state;
    optest_seed(82);
    delta_begin_delta(&f, SH_F64, SH_F64, &s, -1);
    for (int i = 6; i < 12; i++) /* differences need a curve that is smooth at their scale */
        optest_set(&f.call.in[0], 10 + i - 6, 0.1 * i);
    optest_run(&f, &sh_kernels_ref, 1);
    delta_begin_delta_bwd(&back, &f, SH_F64, &s);
    delta_gradients(&f, &back, 4, 0);
}

static void packed_is_alone(void **state)
{
    const struct delta_shape all = {1, 200, 1, 2, 16, 16, {37, 120}}, one = {1, 83, 1, 2, 16, 16, {0}};
    struct optest whole, alone;

    (void)state;
    optest_seed(83);
    delta_begin_delta(&whole, SH_F32, SH_F32, &all, -1);
    delta_begin_delta(&alone, SH_F32, SH_F32, &one, -1);
    delta_take_rows(&alone, 0, &whole.call.in[0], 37, 83);
    delta_take_rows(&alone, 1, &whole.call.in[1], 37, 83);
    gradient_copy(&alone.call.in[3], &whole.call.in[3]);
    optest_run(&whole, &sh_kernels_cpu, 2);
    optest_run(&alone, &sh_kernels_cpu, 1);
    assert_memory_equal((float *)whole.call.out[0].data + 37 * 32, alone.call.out[0].data, 83 * 32 * sizeof(float));
    optest_end(&whole);
    optest_end(&alone);
}

static void convolution(void **state)
{
    struct optest f, b;

    (void)state;
    delta_convolution(&cpu);
    for (int bias = 0; bias < 2; bias++) {
        delta_begin_conv(&f, SH_F64, &(struct delta_shape){.B = 2, .T = 9, .begin = {2, 6}}, 3, 4, bias);
        delta_begin_conv_bwd(&b, &f, SH_F64, NULL);
        delta_gradients(&f, &b, 2, bias ? 3 : 0);
    }
}

static void norms(void **state)
{
    static const struct delta_shape few = {1, 3, 1, 2, 4, 5, {0}};
    struct optest f, b;

    (void)state;
    delta_norms(&cpu);
    delta_begin_norm(&f, SH_F64, SH_F64, &few);
    optest_run(&f, &sh_kernels_ref, 1);
    delta_begin_norm_bwd(&b, &f, SH_F64, &few);
    delta_gradients(&f, &b, 3, 0);
}

static void gates(void **state)
{
    struct optest f, b;

    (void)state;
    delta_gates(&cpu);
    delta_begin_gate(&f, SH_F64, 9);
    delta_begin_gate_bwd(&b, &f, SH_F64, NULL);
    delta_gradients(&f, &b, 2, 0);
}

static void gates_apart(void **state)
{
    (void)state;
    delta_gates_apart(&cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rule),        cmocka_unit_test(rule_gradient), cmocka_unit_test(packed_is_alone),
        cmocka_unit_test(convolution), cmocka_unit_test(norms),         cmocka_unit_test(gates),
        cmocka_unit_test(gates_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
