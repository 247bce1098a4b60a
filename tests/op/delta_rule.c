#include "tests/op/delta_rule.h"

#include "kernels/scan.h"
#include "tests/op/gradient.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct delta_shape shapes[] = {
    {2, 1, 1, 1, 4, 4, {0}},
    {1, 67, 1, 2, 16, 24, {0}},
    {2, 130, 2, 4, 32, 16, {1, 2, 40, 64, 65, 129}},
    {1, 200, 1, 3, 8, 40, {31, 32, 33, 150}},
    {1, 66, 1, 2, 48, 5, {0}},
    {1, 70, 1, 1, 100, 70, {3}},
    {1, 66, 1, 1, 256, 36, {0}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int shapes_of(const struct delta_device *on)
{
    return on->few ? 2 : SHAPES;
}

/* ---- the rule ---- */

/* A row of zeros has no length, and strong decay leaves nothing of a state. */
void delta_begin_delta(struct optest *t, enum sh_dtype act, enum sh_dtype kept, const struct delta_shape *s,
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

void delta_begin_delta_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s)
{
    delta_begin(t, SH_OP_GATED_DELTA_BWD, s, 0);
    delta_give(t, f, 5, true, 2);
    optest_out(t, 2, sums, DIMS(s->H));
    optest_out(t, 3, sums, DIMS(s->H));
}

void delta_rule(const struct delta_device *on)
{
    optest_seed(81);
    for (int i = 0; i < shapes_of(on) * on->acts; i++) {
        const struct delta_shape *s = &shapes[i / on->acts];
        enum sh_dtype act = delta_acts[i % on->acts];
        const struct sh_bound sum = sh_bound_sum(SH_F32, 64.0 * s->B * s->T);
        const struct delta_bounds bounds = {{sh_bound_sum(act, 64), sh_bound_sum(SH_F32, 64)},
                                            {sh_bound_sum(act, 2048), sh_bound_sum(act, 512), sum, sum},
                                            .n_made = 2,
                                            .n_back = 4,
                                            .adds = 2};
        struct optest f;

        delta_begin_delta(&f, act, SH_F32, s, i % 2 ? 2 : -1);
        delta_agree(on, &f, s, delta_begin_delta_bwd, &bounds);
    }
}

/* ---- the state-space dual form ---- */

/* Steps are as normal numbers make them, so the limit holds some. Large decays leave nothing of a state. */
void delta_begin_scan(struct optest *t, enum sh_dtype act, enum sh_dtype kept, const struct delta_shape *s,
                      double decay)
{
    delta_begin(t, SH_OP_SCAN, s, 0);
    t->attr.delta.least = 0.3f;
    optest_in(t, 0, act, DIMS(s->B, s->T, s->H * s->V + 2 * s->K * s->D));
    optest_in(t, 1, act, DIMS(s->B, s->T, s->H));
    optest_in(t, 2, act, DIMS(3 * s->H));
    for (int h = 0; h < s->H; h++)
        optest_set(&t->call.in[2], h, decay - 0.3 * h);
    delta_docs(t, 3, s);
    optest_out(t, 0, act, DIMS(s->B, s->T, s->H * s->V));
    optest_out(t, 1, kept, DIMS(s->B, (s->T + SH_SCAN_CHUNK - 1) / SH_SCAN_CHUNK, s->H * s->D * s->V));
}

void delta_begin_scan_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s)
{
    delta_begin(t, SH_OP_SCAN_BWD, s, 0);
    t->attr.delta.least = 0.3f;
    delta_give(t, f, 4, true, 2);
    optest_out(t, 2, sums, DIMS(3 * s->H));
}

static const struct delta_shape spaces[] = {
    {2, 1, 1, 1, 4, 4, {0}},
    {1, 129, 1, 3, 16, 24, {0}},
    {2, 260, 2, 4, 33, 16, {1, 2, 40, 128, 129, 259}},
    {1, 390, 2, 2, 8, 41, {31, 32, 33, 300}},
    {1, 660, 1, 2, 5, 3, {200}},
    {1, 130, 1, 1, 256, 36, {0}},
};

void delta_scan(const struct delta_device *on)
{
    const int shapes_there = on->few ? 2 : (int)(sizeof spaces / sizeof *spaces);

    optest_seed(91);
    for (int i = 0; i < shapes_there * on->acts; i++) {
        const struct delta_shape *s = &spaces[i / on->acts];
        enum sh_dtype act = delta_acts[i % on->acts];
        const struct sh_bound rows = sh_bound_sum(act, 4096);
        const struct delta_bounds bounds = {{sh_bound_sum(act, 512), sh_bound_sum(SH_F32, 256)},
                                            {rows, rows, sh_bound_sum(SH_F32, 256.0 * s->B * s->T)},
                                            .n_made = 2,
                                            .n_back = 3,
                                            .adds = 2};
        struct optest f;

        delta_begin_scan(&f, act, SH_F32, s, i % 2 ? 2 : -1);
        delta_agree(on, &f, s, delta_begin_scan_bwd, &bounds);
    }
}

/* ---- convolution ---- */

void delta_begin_conv(struct optest *t, enum sh_dtype act, const struct delta_shape *s, int C, int W, bool bias)
{
    optest_begin(t, SH_OP_SHORT_CONV);
    optest_in(t, 0, act, DIMS(s->B, s->T, C));
    optest_in(t, 1, act, DIMS(C, 1, W));
    delta_docs(t, 2, s);
    if (bias)
        optest_in(t, 3, act, DIMS(C));
    optest_out(t, 0, act, DIMS(s->B, s->T, C));
}

void delta_begin_conv_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s)
{
    bool bias = f->call.in[3].data;

    (void)s;
    optest_begin(t, SH_OP_SHORT_CONV_BWD);
    delta_give(t, f, bias ? 4 : 3, false, 1);
    optest_out(t, 1, sums, f->call.in[1].ndim, f->call.in[1].dim);
    if (bias)
        optest_out(t, 2, sums, f->call.in[3].ndim, f->call.in[3].dim);
}

void delta_convolution(const struct delta_device *on)
{
    struct optest f;

    optest_seed(84);
    for (int i = 0; i < shapes_of(on) * on->acts * 2; i++) {
        const struct delta_shape *s = &shapes[i / 2 / on->acts];
        enum sh_dtype act = delta_acts[i / 2 % on->acts];
        const struct sh_bound sum = sh_bound_sum(SH_F32, 64.0 * s->B * s->T);
        const struct delta_bounds bounds = {
            {sh_bound_sum(act, 32)}, {sh_bound_sum(act, 64), sum, sum}, .n_made = 1, .n_back = 2 + i % 2, .adds = 1};

        delta_begin_conv(&f, act, s, i / 2 % 2 ? 5 : 300, i / 2 % 2 ? 3 : 4, i % 2);
        delta_agree(on, &f, s, delta_begin_conv_bwd, &bounds);
    }
}

/* ---- gates ---- */

void delta_begin_norm(struct optest *t, enum sh_dtype act, enum sh_dtype number, const struct delta_shape *s)
{
    int N = s->B * s->T;

    delta_begin(t, SH_OP_GATED_NORM, s, 1e-6);
    optest_in(t, 0, act, DIMS(N, s->H * s->V));
    optest_in(t, 1, act, DIMS(N, s->H * s->V));
    optest_in(t, 2, act, DIMS(s->V));
    optest_out(t, 0, act, DIMS(N, s->H * s->V));
    optest_out(t, 1, number, DIMS(N, s->H));
}

void delta_begin_norm_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s)
{
    delta_begin(t, SH_OP_GATED_NORM_BWD, s, 1e-6);
    delta_give(t, f, 3, true, 2);
    optest_out(t, 2, sums, DIMS(s->V));
}

void delta_norms(const struct delta_device *on)
{
    struct optest f;

    optest_seed(85);
    for (int i = 0; i < shapes_of(on) * on->acts; i++) {
        const struct delta_shape *s = &shapes[i / on->acts];
        enum sh_dtype act = delta_acts[i % on->acts];
        const struct sh_bound rows = sh_bound_sum(act, 256);
        const struct delta_bounds bounds = {{sh_bound_sum(act, 64), sh_bound_sum(SH_F32, s->V)},
                                            {rows, rows, sh_bound_sum(SH_F32, 64.0 * s->B * s->T * s->H)},
                                            .n_made = 2,
                                            .n_back = 3,
                                            .adds = 2,
                                            .in_place = true};

        delta_begin_norm(&f, act, SH_F32, s);
        delta_agree(on, &f, s, delta_begin_norm_bwd, &bounds);
    }
}

void delta_begin_gate_norm(struct optest *t, enum sh_dtype act, enum sh_dtype number, const struct delta_shape *s)
{
    int N = s->B * s->T;

    delta_begin(t, SH_OP_GATE_NORM, s, 1e-5);
    for (int i = 0; i < 2; i++)
        optest_in(t, i, act, DIMS(N, s->H * s->V));
    optest_in(t, 2, act, DIMS(s->H * s->V));
    optest_out(t, 0, act, DIMS(N, s->H * s->V));
    optest_out(t, 1, number, DIMS(N, s->H));
}

void delta_begin_gate_norm_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums,
                               const struct delta_shape *s)
{
    delta_begin(t, SH_OP_GATE_NORM_BWD, s, 1e-5);
    delta_give(t, f, 3, true, 2);
    optest_out(t, 2, sums, DIMS(s->H * s->V));
}

/* Groups that are wider than the heads of GATED_NORM, too. */
void delta_gate_norms(const struct delta_device *on)
{
    optest_seed(96);
    for (int i = 0; i < shapes_of(on) * on->acts; i++) {
        struct delta_shape s = shapes[i / on->acts];
        enum sh_dtype act = delta_acts[i % on->acts];
        const struct sh_bound rows = sh_bound_sum(act, 256);
        const struct delta_bounds bounds = {{sh_bound_sum(act, 64), sh_bound_sum(SH_F32, 300)},
                                            {rows, rows, sh_bound_sum(SH_F32, 64.0 * s.B * s.T)},
                                            .n_made = 2,
                                            .n_back = 3,
                                            .adds = 2,
                                            .in_place = true};
        struct optest f;

        s.V = i % 2 ? s.V : 300;
        delta_begin_gate_norm(&f, act, SH_F32, &s);
        delta_agree(on, &f, &s, delta_begin_gate_norm_bwd, &bounds);
    }
}

void delta_begin_gate_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const struct delta_shape *s)
{
    (void)sums;
    (void)s;
    optest_begin(t, SH_OP_GATE_BWD);
    delta_give(t, f, 2, false, 2);
}

void delta_begin_gate(struct optest *t, enum sh_dtype act, int n)
{
    optest_begin(t, SH_OP_GATE);
    optest_in(t, 0, act, DIMS(n));
    optest_in(t, 1, act, DIMS(n));
    optest_out(t, 0, act, DIMS(n));
}

void delta_gates(const struct delta_device *on)
{
    struct optest f;

    optest_seed(86);
    for (int i = 0; i < 2 * on->acts; i++) {
        const struct sh_bound eight = sh_bound_sum(delta_acts[i / 2], 8);
        const struct delta_bounds bounds = {{eight},     {eight, eight}, .n_made = 1,
                                            .n_back = 2, .adds = 2,      .in_place = true};

        delta_begin_gate(&f, delta_acts[i / 2], i % 2 ? 7 : 3000);
        delta_agree(on, &f, NULL, delta_begin_gate_bwd, &bounds);
    }
}

/* The gate of a head lies behind its query; there and back again. */
void delta_gates_apart(const struct delta_device *on)
{
    enum { N = 3, H = 4, K = 2, D = 5, WIDE = (2 * H + 2 * K) * D, NARROW = (H + 2 * K) * D };
    const struct sh_bound exact = {0, 0}, both[] = {exact, exact};
    struct optest split, join;

    for (int i = 0; i < on->acts; i++) {
        optest_begin(&split, SH_OP_SPLIT_GATE);
        optest_begin(&join, SH_OP_JOIN_GATE);
        split.attr.attn.heads = join.attr.attn.heads = H;
        split.attr.attn.kv_heads = join.attr.attn.kv_heads = K;
        split.attr.attn.head_dim = join.attr.attn.head_dim = D;
        optest_in(&split, 0, delta_acts[i], DIMS(N, WIDE));
        optest_out(&split, 0, delta_acts[i], DIMS(N, NARROW));
        optest_out(&split, 1, delta_acts[i], DIMS(N, H * D));
        on->check(&split, 2, both, -1, -1);
        optest_run(&split, &sh_kernels_ref, 1);
        assert_true(optest_get(&split.call.out[1], D + 1) == optest_get(&split.call.in[0], 3 * D + 1));
        assert_true(optest_get(&split.call.out[0], H * D) == optest_get(&split.call.in[0], 2 * H * D));
        gradient_give(&join, 0, &split.call.out[0]);
        gradient_give(&join, 1, &split.call.out[1]);
        optest_out(&join, 0, delta_acts[i], DIMS(N, WIDE));
        on->check(&join, 1, both, -1, -1);
        optest_run(&join, &sh_kernels_ref, 1);
        for (int k = 0; k < N * WIDE; k++)
            assert_true(optest_get(&join.call.out[0], k) == optest_get(&split.call.in[0], k));
        optest_end(&split);
        optest_end(&join);
    }
}
