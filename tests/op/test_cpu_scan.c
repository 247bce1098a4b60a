/* The state-space dual form and what belongs to it, on the CPU and in the reference. Gradients of the reference are
 * compared with finite differences; a document that is packed with others makes the bits that it makes alone. */
#include "kernels/scan.h"
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

/* K groups, H heads, states of D by V. */
struct shape {
    int B, T, K, H, D, V;
    int begin[6]; /* of documents after the first; 0: no more */
};

static const struct shape shapes[] = {
    {2, 1, 1, 1, 4, 4, {0}},
    {1, 129, 1, 3, 16, 24, {0}},
    {2, 260, 2, 4, 33, 16, {1, 2, 40, 128, 129, 259}},
    {1, 390, 2, 2, 8, 41, {31, 32, 33, 300}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void set(struct optest *t, enum sh_op_kind kind, const struct shape *s)
{
    optest_begin(t, kind);
    t->attr.delta.key_heads = s->K;
    t->attr.delta.heads = s->H;
    t->attr.delta.key_dim = s->D;
    t->attr.delta.value_dim = s->V;
    t->attr.delta.eps = 1e-5f;
    t->attr.delta.least = kind == SH_OP_SCAN || kind == SH_OP_SCAN_BWD ? 0.3f : 0;
}

/* Where documents begin, for each row; all sequences have the same. */
static void set_docs(struct optest *t, int i, const struct shape *s)
{
    optest_in_ints(t, i, 0, 1, DIMS(s->B, s->T));
    for (int row = 0, first = 0; row < s->B * s->T; row++) {
        for (int k = 0; k < 6; k++)
            first = s->begin[k] && s->begin[k] == row % s->T ? row % s->T : first;
        first = row % s->T ? first : 0;
        optest_set(&t->call.in[i], row, first);
    }
}

/* Steps are as normal numbers make them, so the limit holds some. Large decays leave nothing of a state. */
static void begin_scan(struct optest *t, enum sh_dtype act, enum sh_dtype kept, const struct shape *s, double decay)
{
    set(t, SH_OP_SCAN, s);
    optest_in(t, 0, act, DIMS(s->B, s->T, s->H * s->V + 2 * s->K * s->D));
    optest_in(t, 1, act, DIMS(s->B, s->T, s->H));
    optest_in(t, 2, act, DIMS(3 * s->H));
    for (int h = 0; h < s->H; h++)
        optest_set(&t->call.in[2], h, decay - 0.3 * h);
    set_docs(t, 3, s);
    optest_out(t, 0, act, DIMS(s->B, s->T, s->H * s->V));
    optest_out(t, 1, kept, DIMS(s->B, (s->T + SH_SCAN_CHUNK - 1) / SH_SCAN_CHUNK, s->H * s->D * s->V));
}

/* A call with the inputs [0, n) of the forward, and then what it kept. */
static void begin_back(struct optest *t, enum sh_op_kind kind, const struct optest *f, const struct shape *s, int n)
{
    set(t, kind, s);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    for (int i = 0; i < n; i++)
        gradient_give(t, 1 + i, &f->call.in[i]);
    gradient_give(t, 1 + n, &f->call.out[1]);
    for (int i = 0; i < 2; i++)
        optest_out(t, i, f->call.in[i].dtype, f->call.in[i].ndim, f->call.in[i].dim);
}

static void begin_scan_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct shape *s)
{
    begin_back(t, SH_OP_SCAN_BWD, f, s, 4);
    optest_out(t, 2, sums, DIMS(3 * s->H));
}

static void scan(void **state)
{
    (void)state;
    optest_seed(91);
    for (int i = 0; i < SHAPES * ACTS; i++) {
        const struct shape *s = &shapes[i / ACTS];
        enum sh_dtype act = acts[i % ACTS];
        double rows = (double)s->B * s->T;
        const struct sh_bound made[] = {sh_bound_sum(act, 512), sh_bound_sum(SH_F32, 256)};
        const struct sh_bound back[] = {sh_bound_sum(act, 4096), sh_bound_sum(act, 4096),
                                        sh_bound_sum(SH_F32, 256 * rows)};
        struct optest f, b;

        begin_scan(&f, act, SH_F32, s, i % 2 ? 2 : -1);
        agree(&f, 2, made, -1, -1);
        optest_run(&f, &sh_kernels_ref, 1);
        begin_scan_bwd(&b, &f, SH_F32, s);
        agree(&b, 3, back, -1, -1);
        optest_add_to(&b, 2);
        agree(&b, 3, back, -1, -1);
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

static void scan_gradient(void **state)
{
    static const struct shape s = {2, 131, 1, 2, 3, 2, {2}};
    struct optest back;

    (void)state;
    optest_seed(92);
    begin_scan(&forward, SH_F64, SH_F64, &s, -3);
    optest_run(&forward, &sh_kernels_ref, 1);
    begin_scan_bwd(&back, &forward, SH_F64, &s);
    up_stream = &back.call.in[0];
    check_all(&back, 3);
}

/* What a long step leaves of a state is nothing, and never a NaN; a limit that holds all steps leaves no gradient. */
static void limits(void **state)
{
    static const struct shape s = {1, 200, 1, 1, 4, 4, {0}};
    struct optest f, b;

    (void)state;
    optest_seed(93);
    begin_scan(&f, SH_F32, SH_F32, &s, 12);
    optest_run(&f, &sh_kernels_cpu, 1);
    for (int64_t i = 0; i < optest_elems(&f.call.out[0]); i++)
        assert_true(isfinite(optest_get(&f.call.out[0], i)));
    f.attr.delta.least = 100;
    optest_run(&f, &sh_kernels_cpu, 1);
    begin_scan_bwd(&b, &f, SH_F32, &s);
    b.attr.delta.least = 100;
    optest_run(&b, &sh_kernels_cpu, 1);
    for (int64_t i = 0; i < optest_elems(&b.call.out[1]); i++)
        assert_true(optest_get(&b.call.out[1], i) == 0);
    optest_end(&f);
    optest_end(&b);
}

/* Rows [first, first + n) of an operand [1,T,..] of another call. */
static void take_rows(struct optest *t, int i, const struct sh_operand *from, int first, int n)
{
    for (int64_t k = 0; k < n * from->dim[2]; k++)
        optest_set(&t->call.in[i], k, optest_get(from, first * from->dim[2] + k));
}

/* Rows 37 to 219 are a document. */
static void packed_is_alone(void **state)
{
    enum { FIRST = 37, N = 183 };
    const struct shape all = {1, 300, 1, 2, 16, 16, {FIRST, FIRST + N}}, one = {1, N, 1, 2, 16, 16, {0}};
    struct optest whole, alone, back, back_alone;

    (void)state;
    optest_seed(94);
    begin_scan(&whole, SH_F32, SH_F32, &all, -1);
    begin_scan(&alone, SH_F32, SH_F32, &one, -1);
    take_rows(&alone, 0, &whole.call.in[0], FIRST, N);
    take_rows(&alone, 1, &whole.call.in[1], FIRST, N);
    gradient_copy(&alone.call.in[2], &whole.call.in[2]);
    optest_run(&whole, &sh_kernels_cpu, 2);
    optest_run(&alone, &sh_kernels_cpu, 1);
    assert_memory_equal((float *)whole.call.out[0].data + FIRST * 32, alone.call.out[0].data, N * 32 * sizeof(float));
    begin_scan_bwd(&back, &whole, SH_F32, &all);
    begin_scan_bwd(&back_alone, &alone, SH_F32, &one);
    take_rows(&back_alone, 0, &back.call.in[0], FIRST, N);
    optest_run(&back, &sh_kernels_cpu, 2);
    optest_run(&back_alone, &sh_kernels_cpu, 1);
    assert_memory_equal((float *)back.call.out[0].data + FIRST * 64, back_alone.call.out[0].data,
                        N * 64 * sizeof(float));
    optest_end(&whole);
    optest_end(&alone);
    optest_end(&back);
    optest_end(&back_alone);
}

/* ---- convolution with a bias ---- */

static void begin_conv(struct optest *t, enum sh_dtype act, const struct shape *s, int C, int W)
{
    optest_begin(t, SH_OP_SHORT_CONV);
    optest_in(t, 0, act, DIMS(s->B, s->T, C));
    optest_in(t, 1, act, DIMS(C, 1, W));
    set_docs(t, 2, s);
    optest_in(t, 3, act, DIMS(C));
    optest_out(t, 0, act, DIMS(s->B, s->T, C));
}

static void begin_conv_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums)
{
    optest_begin(t, SH_OP_SHORT_CONV_BWD);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    for (int i = 0; i < 4; i++)
        gradient_give(t, 1 + i, &f->call.in[i]);
    optest_out(t, 0, f->call.in[0].dtype, f->call.in[0].ndim, f->call.in[0].dim);
    optest_out(t, 1, sums, f->call.in[1].ndim, f->call.in[1].dim);
    optest_out(t, 2, sums, f->call.in[3].ndim, f->call.in[3].dim);
}

static void convolution(void **state)
{
    struct optest b;

    (void)state;
    optest_seed(95);
    for (int i = 0; i < SHAPES * ACTS; i++) {
        const struct shape *s = &shapes[i / ACTS];
        enum sh_dtype act = acts[i % ACTS];
        const struct sh_bound made = sh_bound_sum(act, 32), sum = sh_bound_sum(SH_F32, 64.0 * s->B * s->T);
        const struct sh_bound back[] = {sh_bound_sum(act, 64), sum, sum};
        struct optest f;

        begin_conv(&f, act, s, i % 2 ? 5 : 300, i % 2 ? 3 : 4);
        agree(&f, 1, &made, -1, -1);
        begin_conv_bwd(&b, &f, SH_F32);
        agree(&b, 3, back, -1, -1);
        optest_add_to(&b, 1);
        optest_add_to(&b, 2);
        agree(&b, 3, back, -1, -1);
        optest_end(&f);
        optest_end(&b);
    }
    begin_conv(&forward, SH_F64, &(struct shape){.B = 2, .T = 9, .begin = {2, 6}}, 3, 4);
    begin_conv_bwd(&b, &forward, SH_F64);
    up_stream = &b.call.in[0];
    optest_run(&b, &sh_kernels_ref, 1);
    gradient_check(&forward.call.in[3], &b.call.out[2], objective);
    check_all(&b, 2);
}

/* ---- the norm, and the activation of the feed-forward blocks ---- */

static void begin_norm(struct optest *t, enum sh_dtype act, enum sh_dtype number, const struct shape *s)
{
    int N = s->B * s->T;

    set(t, SH_OP_GATE_NORM, s);
    for (int i = 0; i < 2; i++)
        optest_in(t, i, act, DIMS(N, s->H * s->V));
    optest_in(t, 2, act, DIMS(s->H * s->V));
    optest_out(t, 0, act, DIMS(N, s->H * s->V));
    optest_out(t, 1, number, DIMS(N, s->H));
}

static void begin_norm_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct shape *s)
{
    begin_back(t, SH_OP_GATE_NORM_BWD, f, s, 3);
    optest_out(t, 2, sums, DIMS(s->H * s->V));
}

static void norms(void **state)
{
    static const struct shape few = {1, 3, 1, 2, 4, 5, {0}};
    struct optest b;

    (void)state;
    optest_seed(96);
    for (int i = 0; i < SHAPES * ACTS; i++) {
        struct shape s = shapes[i / ACTS];
        enum sh_dtype act = acts[i % ACTS];
        const struct sh_bound made[] = {sh_bound_sum(act, 64), sh_bound_sum(SH_F32, 300)};
        const struct sh_bound back[] = {sh_bound_sum(act, 256), sh_bound_sum(act, 256),
                                        sh_bound_sum(SH_F32, 64.0 * s.B * s.T)};
        struct optest f;

        s.V = i % 2 ? s.V : 300; /* wider than the heads of GATED_NORM */
        begin_norm(&f, act, SH_F32, &s);
        agree(&f, 2, made, 0, 0);
        optest_run(&f, &sh_kernels_ref, 1);
        begin_norm_bwd(&b, &f, SH_F32, &s);
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
    struct optest b;

    (void)state;
    optest_seed(97);
    for (int i = 0; i < 2 * ACTS; i++) {
        const struct sh_bound bound = sh_bound_sum(acts[i / 2], 8);
        struct optest f;

        begin_squared_relu(&f, &b, acts[i / 2], i % 2 ? 7 : 3000);
        agree(&f, 1, &bound, -1, -1);
        agree(&b, 1, &bound, 0, 0);
        optest_end(&f);
        optest_end(&b);
    }
    begin_squared_relu(&forward, &b, SH_F64, 9);
    up_stream = &b.call.in[0];
    check_all(&b, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scan),
        cmocka_unit_test(scan_gradient),
        cmocka_unit_test(limits),
        cmocka_unit_test(convolution),
        cmocka_unit_test(norms),
        cmocka_unit_test(squares),
        cmocka_unit_test(packed_is_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
