/* The gated delta rule and what belongs to it (qwen3_5_text), on the CPU and in the reference. Gradients of the reference
 * are compared with finite differences; a document that is packed with others makes the bits that it makes alone. */
#include "kernels/delta.h"
#include "tests/op/agree.h"
#include "tests/op/delta.h"
#include "tests/op/gradient.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct delta_shape shapes[] = {
    {2, 1, 1, 1, 4, 4, {0}},
    {1, 67, 1, 2, 16, 24, {0}},
    {2, 130, 2, 4, 32, 16, {1, 2, 40, 64, 65, 129}},
    {1, 200, 1, 3, 8, 40, {31, 32, 33, 150}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* ---- the rule ---- */

/* A row of zeros has no length, and strong decay leaves nothing of a state. */
static void begin_delta(struct optest *t, enum sh_dtype act, enum sh_dtype kept, const struct delta_shape *s,
                        double decay)
{
    int row = 2 * s->K * s->D + s->H * s->V;

    delta_begin(t, SH_OP_GATED_DELTA, s, 0);
    optest_in(t, 0, act, DIMS(s->B, s->T, row));
    for (int i = 0; i < row && s->T > 1; i++)
        optest_set(&t->call.in[0], row + i, 0);
    optest_in(t, 1, act, DIMS(s->B, s->T, 2 * s->H));
    optest_in(t, 2, act, DIMS(s->H));
    for (int h = 0; h < s->H; h++)
        optest_set(&t->call.in[2], h, decay - 0.3 * h);
    optest_in(t, 3, act, DIMS(s->H));
    delta_docs(t, 4, s);
    optest_out(t, 0, act, DIMS(s->B, s->T, s->H * s->V));
    optest_out(t, 1, kept, DIMS(s->B, (s->T + SH_DELTA_CHUNK - 1) / SH_DELTA_CHUNK, s->H * s->D * s->V));
}

static void begin_delta_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s)
{
    delta_begin(t, SH_OP_GATED_DELTA_BWD, s, 0);
    delta_give(t, f, 5, true, 2);
    optest_out(t, 2, sums, DIMS(s->H));
    optest_out(t, 3, sums, DIMS(s->H));
}

static void rule(void **state)
{
    (void)state;
    optest_seed(81);
    for (int i = 0; i < SHAPES * DELTA_ACTS; i++) {
        const struct delta_shape *s = &shapes[i / DELTA_ACTS];
        enum sh_dtype act = delta_acts[i % DELTA_ACTS];
        const struct sh_bound sum = sh_bound_sum(SH_F32, 64.0 * s->B * s->T);
        const struct delta_bounds bounds = {{sh_bound_sum(act, 64), sh_bound_sum(SH_F32, 64)},
                                            {sh_bound_sum(act, 2048), sh_bound_sum(act, 512), sum, sum},
                                            .n_made = 2,
                                            .n_back = 4,
                                            .adds = 2};
        struct optest f;

        begin_delta(&f, act, SH_F32, s, i % 2 ? 2 : -1);
        delta_agree(&f, s, begin_delta_bwd, &bounds);
    }
}

static void rule_gradient(void **state)
{
    static const struct delta_shape s = {2, 67, 1, 2, 3, 2, {2}};
    struct optest f, back;

    (void)state;
    optest_seed(82);
    begin_delta(&f, SH_F64, SH_F64, &s, -1);
    for (int i = 6; i < 12; i++) /* differences need a curve that is smooth at their scale */
        optest_set(&f.call.in[0], 10 + i - 6, 0.1 * i);
    optest_run(&f, &sh_kernels_ref, 1);
    begin_delta_bwd(&back, &f, SH_F64, &s);
    delta_gradients(&f, &back, 4, 0);
}

static void packed_is_alone(void **state)
{
    const struct delta_shape all = {1, 200, 1, 2, 16, 16, {37, 120}}, one = {1, 83, 1, 2, 16, 16, {0}};
    struct optest whole, alone;

    (void)state;
    optest_seed(83);
    begin_delta(&whole, SH_F32, SH_F32, &all, -1);
    begin_delta(&alone, SH_F32, SH_F32, &one, -1);
    delta_take_rows(&alone, 0, &whole.call.in[0], 37, 83);
    delta_take_rows(&alone, 1, &whole.call.in[1], 37, 83);
    gradient_copy(&alone.call.in[3], &whole.call.in[3]);
    optest_run(&whole, &sh_kernels_cpu, 2);
    optest_run(&alone, &sh_kernels_cpu, 1);
    assert_memory_equal((float *)whole.call.out[0].data + 37 * 32, alone.call.out[0].data, 83 * 32 * sizeof(float));
    optest_end(&whole);
    optest_end(&alone);
}

/* ---- convolution ---- */

static void begin_conv(struct optest *t, enum sh_dtype act, const struct delta_shape *s, int C, int W, bool bias)
{
    optest_begin(t, SH_OP_SHORT_CONV);
    optest_in(t, 0, act, DIMS(s->B, s->T, C));
    optest_in(t, 1, act, DIMS(C, 1, W));
    delta_docs(t, 2, s);
    if (bias)
        optest_in(t, 3, act, DIMS(C));
    optest_out(t, 0, act, DIMS(s->B, s->T, C));
}

static void begin_conv_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s)
{
    bool bias = f->call.in[3].data;

    (void)s;
    optest_begin(t, SH_OP_SHORT_CONV_BWD);
    delta_give(t, f, bias ? 4 : 3, false, 1);
    optest_out(t, 1, sums, f->call.in[1].ndim, f->call.in[1].dim);
    if (bias)
        optest_out(t, 2, sums, f->call.in[3].ndim, f->call.in[3].dim);
}

static void convolution(void **state)
{
    struct optest f, b;

    (void)state;
    optest_seed(84);
    for (int i = 0; i < SHAPES * DELTA_ACTS * 2; i++) {
        const struct delta_shape *s = &shapes[i / 2 / DELTA_ACTS];
        enum sh_dtype act = delta_acts[i / 2 % DELTA_ACTS];
        const struct sh_bound sum = sh_bound_sum(SH_F32, 64.0 * s->B * s->T);
        const struct delta_bounds bounds = {
            {sh_bound_sum(act, 32)}, {sh_bound_sum(act, 64), sum, sum}, .n_made = 1, .n_back = 2 + i % 2, .adds = 1};

        begin_conv(&f, act, s, i / 2 % 2 ? 5 : 300, i / 2 % 2 ? 3 : 4, i % 2);
        delta_agree(&f, s, begin_conv_bwd, &bounds);
    }
    for (int bias = 0; bias < 2; bias++) {
        begin_conv(&f, SH_F64, &(struct delta_shape){.B = 2, .T = 9, .begin = {2, 6}}, 3, 4, bias);
        begin_conv_bwd(&b, &f, SH_F64, NULL);
        delta_gradients(&f, &b, 2, bias ? 3 : 0);
    }
}

/* ---- gates ---- */

static void begin_norm(struct optest *t, enum sh_dtype act, enum sh_dtype number, const struct delta_shape *s)
{
    int N = s->B * s->T;

    delta_begin(t, SH_OP_GATED_NORM, s, 1e-6);
    optest_in(t, 0, act, DIMS(N, s->H * s->V));
    optest_in(t, 1, act, DIMS(N, s->H * s->V));
    optest_in(t, 2, act, DIMS(s->V));
    optest_out(t, 0, act, DIMS(N, s->H * s->V));
    optest_out(t, 1, number, DIMS(N, s->H));
}

static void begin_norm_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s)
{
    delta_begin(t, SH_OP_GATED_NORM_BWD, s, 1e-6);
    delta_give(t, f, 3, true, 2);
    optest_out(t, 2, sums, DIMS(s->V));
}

static void norms(void **state)
{
    static const struct delta_shape few = {1, 3, 1, 2, 4, 5, {0}};
    struct optest f, b;

    (void)state;
    optest_seed(85);
    for (int i = 0; i < SHAPES * DELTA_ACTS; i++) {
        const struct delta_shape *s = &shapes[i / DELTA_ACTS];
        enum sh_dtype act = delta_acts[i % DELTA_ACTS];
        const struct sh_bound rows = sh_bound_sum(act, 256);
        const struct delta_bounds bounds = {{sh_bound_sum(act, 64), sh_bound_sum(SH_F32, s->V)},
                                            {rows, rows, sh_bound_sum(SH_F32, 64.0 * s->B * s->T * s->H)},
                                            .n_made = 2,
                                            .n_back = 3,
                                            .adds = 2,
                                            .in_place = true};

        begin_norm(&f, act, SH_F32, s);
        delta_agree(&f, s, begin_norm_bwd, &bounds);
    }
    begin_norm(&f, SH_F64, SH_F64, &few);
    optest_run(&f, &sh_kernels_ref, 1);
    begin_norm_bwd(&b, &f, SH_F64, &few);
    delta_gradients(&f, &b, 3, 0);
}

static void begin_gate_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s)
{
    (void)sums;
    (void)s;
    optest_begin(t, SH_OP_GATE_BWD);
    delta_give(t, f, 2, false, 2);
}

static void begin_gate(struct optest *t, enum sh_dtype act, int n)
{
    optest_begin(t, SH_OP_GATE);
    optest_in(t, 0, act, DIMS(n));
    optest_in(t, 1, act, DIMS(n));
    optest_out(t, 0, act, DIMS(n));
}

static void gates(void **state)
{
    struct optest f, b;

    (void)state;
    optest_seed(86);
    for (int i = 0; i < 2 * DELTA_ACTS; i++) {
        const struct sh_bound eight = sh_bound_sum(delta_acts[i / 2], 8);
        const struct delta_bounds bounds = {{eight},     {eight, eight}, .n_made = 1,
                                            .n_back = 2, .adds = 2,      .in_place = true};

        begin_gate(&f, delta_acts[i / 2], i % 2 ? 7 : 3000);
        delta_agree(&f, NULL, begin_gate_bwd, &bounds);
    }
    begin_gate(&f, SH_F64, 9);
    begin_gate_bwd(&b, &f, SH_F64, NULL);
    delta_gradients(&f, &b, 2, 0);
}

/* The gate of a head lies behind its query; there and back again. */
static void gates_apart(void **state)
{
    enum { N = 3, H = 4, K = 2, D = 5, WIDE = (2 * H + 2 * K) * D, NARROW = (H + 2 * K) * D };
    const struct sh_bound exact = {0, 0}, both[] = {exact, exact};
    struct optest split, join;

    (void)state;
    for (int i = 0; i < DELTA_ACTS; i++) {
        optest_begin(&split, SH_OP_SPLIT_GATE);
        optest_begin(&join, SH_OP_JOIN_GATE);
        split.attr.attn.heads = join.attr.attn.heads = H;
        split.attr.attn.kv_heads = join.attr.attn.kv_heads = K;
        split.attr.attn.head_dim = join.attr.attn.head_dim = D;
        optest_in(&split, 0, delta_acts[i], DIMS(N, WIDE));
        optest_out(&split, 0, delta_acts[i], DIMS(N, NARROW));
        optest_out(&split, 1, delta_acts[i], DIMS(N, H * D));
        agree(&split, 2, both, -1, -1);
        optest_run(&split, &sh_kernels_ref, 1);
        assert_true(optest_get(&split.call.out[1], D + 1) == optest_get(&split.call.in[0], 3 * D + 1));
        assert_true(optest_get(&split.call.out[0], H * D) == optest_get(&split.call.in[0], 2 * H * D));
        gradient_give(&join, 0, &split.call.out[0]);
        gradient_give(&join, 1, &split.call.out[1]);
        optest_out(&join, 0, delta_acts[i], DIMS(N, WIDE));
        agree(&join, 1, both, -1, -1);
        optest_run(&join, &sh_kernels_ref, 1);
        for (int k = 0; k < N * WIDE; k++)
            assert_true(optest_get(&join.call.out[0], k) == optest_get(&split.call.in[0], k));
        optest_end(&split);
        optest_end(&join);
    }
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
