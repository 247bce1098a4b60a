/* The gated delta rule and what belongs to it (qwen3_5_text), on the CPU and in the reference. Gradients of the reference
 * are compared with finite differences; a document that is packed with others makes the bits that it makes alone. */
#include "kernels/delta.h"
#include "tests/op/agree.h"
#include "tests/op/gradient.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};
enum { ACTS = sizeof acts / sizeof *acts };

struct shape {
    int B, T, K, H, D, V;
    int begin[6]; /* of documents after the first; 0: no more */
};

static const struct shape shapes[] = {
    {2, 1, 1, 1, 4, 4, {0}},
    {1, 67, 1, 2, 16, 24, {0}},
    {2, 130, 2, 4, 32, 16, {1, 2, 40, 64, 65, 129}},
    {1, 200, 1, 3, 8, 40, {31, 32, 33, 150}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void set(struct optest *t, enum sh_op_kind kind, const struct shape *s)
{
    optest_begin(t, kind);
    t->attr.delta.key_heads = s->K;
    t->attr.delta.heads = s->H;
    t->attr.delta.key_dim = s->D;
    t->attr.delta.value_dim = s->V;
    t->attr.delta.eps = 1e-6f;
}

/* Where documents begin, for each row; the second sequence has no second document. */
static void set_docs(struct optest *t, int i, const struct shape *s)
{
    optest_in_ints(t, i, 0, 1, DIMS(s->B, s->T));
    for (int row = 0, first = 0; row < s->T; row++) {
        for (int k = 0; k < 6; k++)
            first = s->begin[k] && s->begin[k] == row ? row : first;
        optest_set(&t->call.in[i], row, first);
    }
}

/* ---- the rule ---- */

/* A row of zeros has no length, and strong decay leaves nothing of a state. */
static void begin_delta(struct optest *t, enum sh_dtype act, enum sh_dtype kept, const struct shape *s, double decay)
{
    int row = 2 * s->K * s->D + s->H * s->V;

    set(t, SH_OP_GATED_DELTA, s);
    optest_in(t, 0, act, DIMS(s->B, s->T, row));
    for (int i = 0; i < row && s->T > 1; i++)
        optest_set(&t->call.in[0], row + i, 0);
    optest_in(t, 1, act, DIMS(s->B, s->T, 2 * s->H));
    optest_in(t, 2, act, DIMS(s->H));
    for (int h = 0; h < s->H; h++)
        optest_set(&t->call.in[2], h, decay - 0.3 * h);
    optest_in(t, 3, act, DIMS(s->H));
    set_docs(t, 4, s);
    optest_out(t, 0, act, DIMS(s->B, s->T, s->H * s->V));
    optest_out(t, 1, kept, DIMS(s->B, (s->T + SH_DELTA_CHUNK - 1) / SH_DELTA_CHUNK, s->H * s->D * s->V));
}

static void begin_delta_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct shape *s)
{
    set(t, SH_OP_GATED_DELTA_BWD, s);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    for (int i = 0; i < 5; i++)
        gradient_give(t, 1 + i, &f->call.in[i]);
    gradient_give(t, 6, &f->call.out[1]);
    optest_out(t, 0, f->call.in[0].dtype, f->call.in[0].ndim, f->call.in[0].dim);
    optest_out(t, 1, f->call.in[1].dtype, f->call.in[1].ndim, f->call.in[1].dim);
    optest_out(t, 2, sums, DIMS(s->H));
    optest_out(t, 3, sums, DIMS(s->H));
}

static void rule(void **state)
{
    (void)state;
    optest_seed(81);
    for (int i = 0; i < SHAPES * ACTS; i++) {
        const struct shape *s = &shapes[i / ACTS];
        enum sh_dtype act = acts[i % ACTS];
        double rows = (double)s->B * s->T;
        const struct sh_bound made[] = {sh_bound_sum(act, 64), sh_bound_sum(SH_F32, 64)};
        const struct sh_bound back[] = {sh_bound_sum(act, 2048), sh_bound_sum(act, 512),
                                        sh_bound_sum(SH_F32, 64 * rows), sh_bound_sum(SH_F32, 64 * rows)};
        struct optest f, b;

        begin_delta(&f, act, SH_F32, s, i % 2 ? 2 : -1);
        agree(&f, 2, made, -1, -1);
        optest_run(&f, &sh_kernels_ref, 1);
        begin_delta_bwd(&b, &f, SH_F32, s);
        agree(&b, 4, back, -1, -1);
        optest_add_to(&b, 2);
        optest_add_to(&b, 3);
        agree(&b, 4, back, -1, -1);
        optest_end(&f);
        optest_end(&b);
    }
}

static struct optest forward;
static const struct sh_operand *up_stream;

static double objective(void)
{
    optest_run(&forward, &sh_kernels_ref, 1);
    return gradient_dot(up_stream, &forward.call.out[0]);
}

/* Differences of inputs [0, n) of `forward` against outputs [0, n) of `back`. */
static void check_all(struct optest *back, int n)
{
    optest_run(back, &sh_kernels_ref, 1);
    for (int i = 0; i < n; i++)
        gradient_check(&forward.call.in[i], &back->call.out[i], objective);
    optest_end(&forward);
    optest_end(back);
}

static void rule_gradient(void **state)
{
    static const struct shape s = {2, 67, 1, 2, 3, 2, {2}};
    struct optest back;

    (void)state;
    optest_seed(82);
    begin_delta(&forward, SH_F64, SH_F64, &s, -1);
    optest_run(&forward, &sh_kernels_ref, 1);
    begin_delta_bwd(&back, &forward, SH_F64, &s);
    for (int i = 6; i < 12; i++) /* differences need a curve that is smooth at their scale */
        for (int k = 0; k < 2; k++)
            optest_set(k ? &forward.call.in[0] : &back.call.in[1], 10 + i - 6, 0.1 * i);
    optest_run(&forward, &sh_kernels_ref, 1);
    gradient_copy(&back.call.in[1], &forward.call.in[0]);
    gradient_copy(&back.call.in[6], &forward.call.out[1]);
    up_stream = &back.call.in[0];
    check_all(&back, 4);
}

/* Rows [first, first + n) of an operand [1,T,..] of another call. */
static void take_rows(struct optest *t, int i, const struct sh_operand *from, int first, int n)
{
    for (int64_t k = 0; k < n * from->dim[2]; k++)
        optest_set(&t->call.in[i], k, optest_get(from, first * from->dim[2] + k));
}

static void packed_is_alone(void **state)
{
    const struct shape all = {1, 200, 1, 2, 16, 16, {37, 120}}, one = {1, 83, 1, 2, 16, 16, {0}};
    struct optest whole, alone;

    (void)state;
    optest_seed(83);
    begin_delta(&whole, SH_F32, SH_F32, &all, -1);
    begin_delta(&alone, SH_F32, SH_F32, &one, -1);
    take_rows(&alone, 0, &whole.call.in[0], 37, 83);
    take_rows(&alone, 1, &whole.call.in[1], 37, 83);
    gradient_copy(&alone.call.in[3], &whole.call.in[3]);
    optest_run(&whole, &sh_kernels_cpu, 2);
    optest_run(&alone, &sh_kernels_cpu, 1);
    assert_memory_equal((float *)whole.call.out[0].data + 37 * 32, alone.call.out[0].data, 83 * 32 * sizeof(float));
    optest_end(&whole);
    optest_end(&alone);
}

/* ---- convolution ---- */

static void begin_conv(struct optest *t, enum sh_dtype act, const struct shape *s, int C, int W)
{
    optest_begin(t, SH_OP_SHORT_CONV);
    optest_in(t, 0, act, DIMS(s->B, s->T, C));
    optest_in(t, 1, act, DIMS(C, 1, W));
    set_docs(t, 2, s);
    optest_out(t, 0, act, DIMS(s->B, s->T, C));
}

static void begin_conv_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums)
{
    optest_begin(t, SH_OP_SHORT_CONV_BWD);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    for (int i = 0; i < 3; i++)
        gradient_give(t, 1 + i, &f->call.in[i]);
    optest_out(t, 0, f->call.in[0].dtype, f->call.in[0].ndim, f->call.in[0].dim);
    optest_out(t, 1, sums, f->call.in[1].ndim, f->call.in[1].dim);
}

static void convolution(void **state)
{
    struct optest b;

    (void)state;
    optest_seed(84);
    for (int i = 0; i < SHAPES * ACTS; i++) {
        const struct shape *s = &shapes[i / ACTS];
        enum sh_dtype act = acts[i % ACTS];
        const struct sh_bound made = sh_bound_sum(act, 32);
        const struct sh_bound back[] = {sh_bound_sum(act, 64), sh_bound_sum(SH_F32, 64.0 * s->B * s->T)};
        struct optest f;

        begin_conv(&f, act, s, i % 2 ? 5 : 300, i % 2 ? 3 : 4);
        agree(&f, 1, &made, -1, -1);
        begin_conv_bwd(&b, &f, SH_F32);
        agree(&b, 2, back, -1, -1);
        optest_add_to(&b, 1);
        agree(&b, 2, back, -1, -1);
        optest_end(&f);
        optest_end(&b);
    }
    begin_conv(&forward, SH_F64, &(struct shape){.B = 2, .T = 9, .begin = {2, 6}}, 3, 4);
    begin_conv_bwd(&b, &forward, SH_F64);
    up_stream = &b.call.in[0];
    check_all(&b, 2);
}

/* ---- gates ---- */

static void begin_norm(struct optest *t, enum sh_dtype act, enum sh_dtype number, const struct shape *s)
{
    int N = s->B * s->T;

    set(t, SH_OP_GATED_NORM, s);
    optest_in(t, 0, act, DIMS(N, s->H * s->V));
    optest_in(t, 1, act, DIMS(N, s->H * s->V));
    optest_in(t, 2, act, DIMS(s->V));
    optest_out(t, 0, act, DIMS(N, s->H * s->V));
    optest_out(t, 1, number, DIMS(N, s->H));
}

static void begin_norm_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct shape *s)
{
    set(t, SH_OP_GATED_NORM_BWD, s);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    for (int i = 0; i < 3; i++)
        gradient_give(t, 1 + i, &f->call.in[i]);
    gradient_give(t, 4, &f->call.out[1]);
    for (int i = 0; i < 2; i++)
        optest_out(t, i, f->call.in[i].dtype, f->call.in[i].ndim, f->call.in[i].dim);
    optest_out(t, 2, sums, DIMS(s->V));
}

static void norms(void **state)
{
    static const struct shape few = {1, 3, 1, 2, 4, 5, {0}};
    struct optest b;

    (void)state;
    optest_seed(85);
    for (int i = 0; i < SHAPES * ACTS; i++) {
        const struct shape *s = &shapes[i / ACTS];
        enum sh_dtype act = acts[i % ACTS];
        const struct sh_bound made[] = {sh_bound_sum(act, 64), sh_bound_sum(SH_F32, s->V)};
        const struct sh_bound back[] = {sh_bound_sum(act, 256), sh_bound_sum(act, 256),
                                        sh_bound_sum(SH_F32, 64.0 * s->B * s->T * s->H)};
        struct optest f;

        begin_norm(&f, act, SH_F32, s);
        agree(&f, 2, made, 0, 0);
        optest_run(&f, &sh_kernels_ref, 1);
        begin_norm_bwd(&b, &f, SH_F32, s);
        agree(&b, 3, back, -1, -1);
        optest_add_to(&b, 2);
        agree(&b, 3, back, -1, -1);
        optest_end(&f);
        optest_end(&b);
    }
    begin_norm(&forward, SH_F64, SH_F64, &few);
    optest_run(&forward, &sh_kernels_ref, 1);
    begin_norm_bwd(&b, &forward, SH_F64, &few);
    up_stream = &b.call.in[0];
    check_all(&b, 3);
}

static void begin_gate_bwd(struct optest *t, const struct optest *f)
{
    optest_begin(t, SH_OP_GATE_BWD);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    for (int i = 0; i < 2; i++) {
        gradient_give(t, 1 + i, &f->call.in[i]);
        optest_out(t, i, f->call.in[i].dtype, f->call.in[i].ndim, f->call.in[i].dim);
    }
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
    struct optest b;

    (void)state;
    optest_seed(86);
    for (int i = 0; i < 2 * ACTS; i++) {
        const struct sh_bound back[] = {sh_bound_sum(acts[i / 2], 8), sh_bound_sum(acts[i / 2], 8)};
        struct optest f;

        begin_gate(&f, acts[i / 2], i % 2 ? 7 : 3000);
        agree(&f, 1, back, 0, 0);
        begin_gate_bwd(&b, &f);
        agree(&b, 2, back, -1, -1);
        optest_end(&f);
        optest_end(&b);
    }
    begin_gate(&forward, SH_F64, 9);
    begin_gate_bwd(&b, &forward);
    up_stream = &b.call.in[0];
    check_all(&b, 2);
}

/* The gate of a head lies behind its query; there and back again. */
static void gates_apart(void **state)
{
    enum { N = 3, H = 4, K = 2, D = 5, WIDE = (2 * H + 2 * K) * D, NARROW = (H + 2 * K) * D };
    const struct sh_bound exact = {0, 0}, both[] = {exact, exact};
    struct optest split, join;

    (void)state;
    for (int i = 0; i < ACTS; i++) {
        optest_begin(&split, SH_OP_SPLIT_GATE);
        optest_begin(&join, SH_OP_JOIN_GATE);
        split.attr.attn.heads = join.attr.attn.heads = H;
        split.attr.attn.kv_heads = join.attr.attn.kv_heads = K;
        split.attr.attn.head_dim = join.attr.attn.head_dim = D;
        optest_in(&split, 0, acts[i], DIMS(N, WIDE));
        optest_out(&split, 0, acts[i], DIMS(N, NARROW));
        optest_out(&split, 1, acts[i], DIMS(N, H * D));
        agree(&split, 2, both, -1, -1);
        optest_run(&split, &sh_kernels_ref, 1);
        assert_true(optest_get(&split.call.out[1], D + 1) == optest_get(&split.call.in[0], 3 * D + 1));
        assert_true(optest_get(&split.call.out[0], H * D) == optest_get(&split.call.in[0], 2 * H * D));
        gradient_give(&join, 0, &split.call.out[0]);
        gradient_give(&join, 1, &split.call.out[1]);
        optest_out(&join, 0, acts[i], DIMS(N, WIDE));
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
