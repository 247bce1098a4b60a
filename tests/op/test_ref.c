/* Every backward rule of the reference kernels, compared with finite differences of the forward.
 *
 * For L = sum over outputs of g * out with random g, the backward fed with g must give dL/dx, which is (L(x + h) -
 * L(x - h)) / 2h to within h^2 times a third derivative, and the rounding of L over h. The reference computes in the
 * type of its operands or better, so the test gives it f64 operands: with h = 2^-16 the first error is about 3e-10
 * and the second 1e-16 * 2^16 * |L| = 1e-11 |L|; the bound of 1e-6 leaves room for sums and steep places. */
#include "src/config/words.h"
#include "tests/op/optest.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const double h = 0x1p-16, bound = 1e-6;

/* L of a forward call: every output with weights g (NULL: none) counts. */
static double objective(struct optest *fwd, const struct sh_operand *const g[SH_OP_MAX_OUT])
{
    double sum = 0;
    optest_run(fwd, &sh_kernels_ref, 1);
    for (int o = 0; o < SH_OP_MAX_OUT; o++)
        for (int64_t i = 0; g[o] && i < optest_elems(g[o]); i++)
            sum += optest_get(g[o], i) * optest_get(&fwd->call.out[o], i);
    return sum;
}

/* dL/d(input `in` of fwd) against `grad`, element by element. */
static void check_gradient(struct optest *fwd, const struct sh_operand *const g[SH_OP_MAX_OUT], int in,
                           const struct sh_operand *grad)
{
    const struct sh_operand *x = &fwd->call.in[in];
    for (int64_t i = 0; i < optest_elems(x); i++) {
        double old = optest_get(x, i);
        optest_set(x, i, old + h);
        double up = objective(fwd, g);
        optest_set(x, i, old - h);
        double down = objective(fwd, g);
        optest_set(x, i, old);
        double want = (up - down) / (2 * h), got = optest_get(grad, i);
        if (!(fabs(want - got) <= bound * (1 + fabs(want))))
            fail_msg("%s: gradient of input %d element %lld is %.9g, differences give %.9g",
                     sh_op_info(fwd->call.kind)->name, in, (long long)i, got, want);
    }
    objective(fwd, g);
}

/* Let input i of `to` start with the numbers of another call's operand. */
static void give(struct optest *to, int i, const struct sh_operand *from)
{
    optest_in(to, i, from->dtype, from->ndim, from->dim);
    memcpy(to->call.in[i].data, from->data, (size_t)(optest_elems(from) * sh_dtype_bytes(from->dtype)));
}

static void pair_begin(struct optest *fwd, enum sh_op_kind f, struct optest *bwd, enum sh_op_kind b)
{
    optest_begin(fwd, f);
    optest_begin(bwd, b);
}

static void pair_end(struct optest *fwd, struct optest *bwd)
{
    optest_end(fwd);
    optest_end(bwd);
}

static void check_norm(bool rms, bool bias, bool plus_one, int64_t N, int64_t C)
{
    struct optest f, b;
    pair_begin(&f, SH_OP_NORM, &b, SH_OP_NORM_BWD);
    f.attr.norm.rms = b.attr.norm.rms = rms;
    f.attr.norm.plus_one = b.attr.norm.plus_one = plus_one;
    f.attr.norm.eps = b.attr.norm.eps = 1e-2f;
    optest_in(&f, 0, SH_F64, DIMS(N, C));
    optest_in(&f, 1, SH_F64, DIMS(C));
    if (bias)
        optest_in(&f, 2, SH_F64, DIMS(C));
    optest_out(&f, 0, SH_F64, DIMS(N, C));
    optest_out(&f, 1, SH_F64, DIMS(N));
    if (!rms)
        optest_out(&f, 2, SH_F64, DIMS(N));
    optest_run(&f, &sh_kernels_ref, 1);

    optest_in(&b, 0, SH_F64, DIMS(N, C));
    give(&b, 1, &f.call.in[0]);
    give(&b, 2, &f.call.in[1]);
    give(&b, 3, &f.call.out[1]);
    if (!rms)
        give(&b, 4, &f.call.out[2]);
    optest_out(&b, 0, SH_F64, DIMS(N, C));
    optest_out(&b, 1, SH_F64, DIMS(C));
    if (bias)
        optest_out(&b, 2, SH_F64, DIMS(C));
    optest_run(&b, &sh_kernels_ref, 1);

    const struct sh_operand *g[SH_OP_MAX_OUT] = {&b.call.in[0]};
    for (int i = 0; i < 2 + bias; i++)
        check_gradient(&f, g, i, &b.call.out[i]);
    pair_end(&f, &b);
}

static void norm(void **state)
{
    (void)state;
    optest_seed(1);
    check_norm(false, true, false, 3, 7);
    check_norm(false, false, false, 2, 5);
    check_norm(true, false, false, 3, 6);
    check_norm(true, true, false, 1, 17);
    check_norm(true, false, true, 3, 6);
}

/* Two heads of queries, one of keys; wide: one group of queries. */
static void check_qk_norm(bool wide, bool plus_one)
{
    enum { N = 3, H = 2, K = 1, D = 4, ROW = (H + 2 * K) * D };
    struct optest f, b;
    int64_t wq = wide ? H * D : D, groups = wide ? 2 : H + K;
    pair_begin(&f, SH_OP_QK_NORM, &b, SH_OP_QK_NORM_BWD);
    f.attr.qk.heads = b.attr.qk.heads = H;
    f.attr.qk.kv_heads = b.attr.qk.kv_heads = K;
    f.attr.qk.head_dim = b.attr.qk.head_dim = D;
    f.attr.qk.eps = b.attr.qk.eps = 1e-2f;
    f.attr.qk.plus_one = b.attr.qk.plus_one = plus_one;
    optest_in(&f, 0, SH_F64, DIMS(N, ROW));
    optest_in(&f, 1, SH_F64, DIMS(wq));
    optest_in(&f, 2, SH_F64, DIMS(D));
    optest_out(&f, 0, SH_F64, DIMS(N, ROW));
    optest_out(&f, 1, SH_F64, DIMS(N, groups));
    optest_run(&f, &sh_kernels_ref, 1);

    optest_in(&b, 0, SH_F64, DIMS(N, ROW));
    for (int i = 0; i < 3; i++)
        give(&b, 1 + i, &f.call.in[i]);
    give(&b, 4, &f.call.out[1]);
    optest_out(&b, 0, SH_F64, DIMS(N, ROW));
    optest_out(&b, 1, SH_F64, DIMS(wq));
    optest_out(&b, 2, SH_F64, DIMS(D));
    optest_run(&b, &sh_kernels_ref, 1);

    const struct sh_operand *g[SH_OP_MAX_OUT] = {&b.call.in[0]};
    for (int i = 0; i < 3; i++)
        check_gradient(&f, g, i, &b.call.out[i]);
    pair_end(&f, &b);
}

/* The first head of queries by hand: 3 and 4 have the mean square 12.5. */
static void qk_norm_by_hand(void)
{
    struct optest f;
    optest_begin(&f, SH_OP_QK_NORM);
    f.attr.qk.heads = f.attr.qk.kv_heads = 1;
    f.attr.qk.head_dim = 2;
    optest_in(&f, 0, SH_F64, DIMS(1, 6));
    optest_in(&f, 1, SH_F64, DIMS(2));
    optest_in(&f, 2, SH_F64, DIMS(2));
    for (int i = 0; i < 6; i++)
        optest_set(&f.call.in[0], i, 3 + i);
    optest_set(&f.call.in[1], 0, 2);
    optest_out(&f, 0, SH_F64, DIMS(1, 6));
    optest_out(&f, 1, SH_F64, DIMS(1, 2));
    optest_run(&f, &sh_kernels_ref, 1);
    assert_true(fabs(optest_get(&f.call.out[0], 0) - 6 / sqrt(12.5)) < 1e-12);
    assert_true(optest_get(&f.call.out[0], 4) == 7 && optest_get(&f.call.out[0], 5) == 8);
    optest_end(&f);
}

/* Two heads with one element each: q0 k0 v0 q1 k1 v1. */
static void regroup_by_hand(void **state)
{
    static const double by_part[] = {0, 3, 1, 4, 2, 5};
    struct optest f, b;
    (void)state;
    pair_begin(&f, SH_OP_REGROUP, &b, SH_OP_REGROUP);
    f.attr.regroup.heads = b.attr.regroup.heads = 2;
    f.attr.regroup.head_dim = b.attr.regroup.head_dim = 1;
    b.attr.regroup.inverse = true;
    optest_in(&f, 0, SH_F64, DIMS(1, 6));
    for (int i = 0; i < 6; i++)
        optest_set(&f.call.in[0], i, i);
    optest_out(&f, 0, SH_F64, DIMS(1, 6));
    optest_run(&f, &sh_kernels_ref, 1);
    give(&b, 0, &f.call.out[0]);
    optest_out(&b, 0, SH_F64, DIMS(1, 6));
    optest_run(&b, &sh_kernels_ref, 1);
    for (int i = 0; i < 6; i++)
        assert_true(optest_get(&f.call.out[0], i) == by_part[i] && optest_get(&b.call.out[0], i) == i);
    pair_end(&f, &b);
}

/* Two heads of three elements, of which two are values. */
static void latent_values_gradient(void **state)
{
    struct optest f, b;
    const struct sh_operand *g[SH_OP_MAX_OUT] = {&b.call.in[0]};
    (void)state;
    pair_begin(&f, SH_OP_LATENT_VALUES, &b, SH_OP_LATENT_VALUES_BWD);
    f.attr.latent.heads = b.attr.latent.heads = 2;
    f.attr.latent.plain = b.attr.latent.plain = 1;
    f.attr.latent.turned = b.attr.latent.turned = 2;
    f.attr.latent.value = b.attr.latent.value = 2;
    optest_in(&f, 0, SH_F64, DIMS(3, 6));
    optest_out(&f, 0, SH_F64, DIMS(3, 4));
    optest_in(&b, 0, SH_F64, DIMS(3, 4));
    optest_out(&b, 0, SH_F64, DIMS(3, 6));
    optest_run(&b, &sh_kernels_ref, 1);
    check_gradient(&f, g, 0, &b.call.out[0]);
    pair_end(&f, &b);
}

/* Two sequences of a row; two ranks with a query head each, and a copy of the one key-value head: only their copies
 * differ, and are added. */
static void heads_by_hand(void **state)
{
    static const double parts[] = {1, 3, 4, 2, 3, 4, 5, 7, 8, 6, 7, 8}, joined[] = {1, 2, 6, 8, 5, 6, 14, 16};
    struct optest f, b;
    (void)state;
    pair_begin(&f, SH_OP_SPLIT_HEADS, &b, SH_OP_JOIN_HEADS);
    f.attr.split.ranks = 2, f.attr.split.heads = f.attr.split.kv_here = 1;
    f.attr.split.kv_heads = f.attr.split.head_dim = 1;
    b.attr.split = f.attr.split;
    optest_in(&f, 0, SH_F64, DIMS(2, 1, 4));
    for (int i = 0; i < 8; i++)
        optest_set(&f.call.in[0], i, i + 1);
    optest_out(&f, 0, SH_F64, DIMS(2, 2, 1, 3));
    optest_run(&f, &sh_kernels_ref, 1);
    give(&b, 0, &f.call.out[0]);
    optest_out(&b, 0, SH_F64, DIMS(2, 1, 4));
    optest_run(&b, &sh_kernels_ref, 1);
    for (int i = 0; i < 12; i++)
        assert_true(optest_get(&f.call.out[0], i) == parts[i]);
    for (int i = 0; i < 8; i++)
        assert_true(optest_get(&b.call.out[0], i) == joined[i]);
    pair_end(&f, &b);
}

/* Two ranks, one sequence of four pieces: rank 0 has the first and the last. */
static void pieces_by_hand(void **state)
{
    static const double whole[] = {0, 2, 3, 1};
    struct optest f, b;
    (void)state;
    pair_begin(&f, SH_OP_FROM_PIECES, &b, SH_OP_TO_PIECES);
    optest_in(&f, 0, SH_F64, DIMS(2, 2, 1, 1));
    for (int i = 0; i < 4; i++)
        optest_set(&f.call.in[0], i, i);
    optest_out(&f, 0, SH_F64, DIMS(1, 4, 1));
    optest_run(&f, &sh_kernels_ref, 1);
    give(&b, 0, &f.call.out[0]);
    optest_out(&b, 0, SH_F64, DIMS(2, 2, 1, 1));
    optest_run(&b, &sh_kernels_ref, 1);
    for (int i = 0; i < 4; i++)
        assert_true(optest_get(&f.call.out[0], i) == whole[i] && optest_get(&b.call.out[0], i) == i);
    pair_end(&f, &b);
}

static void qk_norm(void **state)
{
    (void)state;
    optest_seed(11);
    for (int i = 0; i < 4; i++)
        check_qk_norm(i & 1, i & 2);
    qk_norm_by_hand();
}

static void check_linear(bool w_in_out)
{
    struct optest f, x, w, b;
    enum { N = 3, I = 5, O = 4 };
    pair_begin(&f, SH_OP_LINEAR, &x, SH_OP_LINEAR_BWD_X);
    pair_begin(&w, SH_OP_LINEAR_BWD_W, &b, SH_OP_BIAS_BWD);
    f.attr.linear.w_in_out = x.attr.linear.w_in_out = w.attr.linear.w_in_out = w_in_out;
    optest_in(&f, 0, SH_F64, DIMS(N, I));
    optest_in(&f, 1, SH_F64, DIMS(w_in_out ? I : O, w_in_out ? O : I));
    optest_in(&f, 2, SH_F64, DIMS(O));
    optest_out(&f, 0, SH_F64, DIMS(N, O));

    optest_in(&x, 0, SH_F64, DIMS(N, O));
    give(&x, 1, &f.call.in[1]);
    optest_out(&x, 0, SH_F64, DIMS(N, I));
    give(&w, 0, &x.call.in[0]);
    give(&w, 1, &f.call.in[0]);
    optest_out(&w, 0, SH_F64, f.call.in[1].ndim, f.call.in[1].dim);
    give(&b, 0, &x.call.in[0]);
    optest_out(&b, 0, SH_F64, DIMS(O));
    optest_run(&x, &sh_kernels_ref, 1);
    optest_run(&w, &sh_kernels_ref, 1);
    optest_run(&b, &sh_kernels_ref, 1);

    const struct sh_operand *g[SH_OP_MAX_OUT] = {&x.call.in[0]};
    check_gradient(&f, g, 0, &x.call.out[0]);
    check_gradient(&f, g, 1, &w.call.out[0]);
    check_gradient(&f, g, 2, &b.call.out[0]);
    pair_end(&f, &x);
    pair_end(&w, &b);
}

static void linear(void **state)
{
    (void)state;
    optest_seed(2);
    check_linear(false);
    check_linear(true);
}

/* Embedding: the tables' gradients; token 0 occurs at least twice, one token never. With documents: one of two
 * tokens, then one of one, in the second row. Or token 0 is a word of another rank. */
static void check_embed(bool docs, int64_t first)
{
    enum { B = 2, T = 3, V = 5, P = 4, C = 3 };
    struct optest f, b;
    optest_seed(3);
    pair_begin(&f, SH_OP_EMBED, &b, SH_OP_EMBED_BWD);
    f.attr.part.first = b.attr.part.first = first;
    f.attr.part.all = b.attr.part.all = first + V;
    optest_in_ints(&f, 0, 0, V - 1, DIMS(B, T));
    optest_set(&f.call.in[0], 0, 0);
    optest_set(&f.call.in[0], 4, 0);
    optest_in(&f, 1, SH_F64, DIMS(V, C));
    optest_in(&f, 2, SH_F64, DIMS(P, C));
    if (docs) {
        optest_in_ints(&f, 3, 0, 1, DIMS(B, T));
        optest_set(&f.call.in[3], 5, 2);
    }
    optest_out(&f, 0, SH_F64, DIMS(B, T, C));
    optest_in(&b, 0, SH_F64, DIMS(B, T, C));
    give(&b, 1, &f.call.in[0]);
    if (docs)
        give(&b, 2, &f.call.in[3]);
    optest_out(&b, 0, SH_F64, DIMS(V, C));
    optest_out(&b, 1, SH_F64, DIMS(P, C));
    optest_run(&b, &sh_kernels_ref, 1);

    const struct sh_operand *g[SH_OP_MAX_OUT] = {&b.call.in[0]};
    check_gradient(&f, g, 1, &b.call.out[0]);
    check_gradient(&f, g, 2, &b.call.out[1]);
    pair_end(&f, &b);
}

static void embed(void **state)
{
    (void)state;
    check_embed(false, 0);
    check_embed(true, 0);
    check_embed(false, 1);
}

/* Three stretches of a stack, the last of which ends it; the forward computes u. */
static void lora(void **state)
{
    enum { N = 3, M = 9, I = 4, R = 2, PARTS = 2, O = 5 };
    struct optest f, b;

    (void)state;
    optest_seed(9);
    pair_begin(&f, SH_OP_LORA, &b, SH_OP_LORA_BWD);
    f.attr.lora = b.attr.lora = (typeof(f.attr.lora)){.parts = PARTS, .first = {1, 6}, .width = {2, 3}, .scale = 1.5f};
    optest_in(&f, 0, SH_F64, DIMS(N, M));
    optest_in(&f, 1, SH_F64, DIMS(N, I));
    optest_in(&f, 2, SH_F64, DIMS(PARTS * R, I));
    optest_in(&f, 3, SH_F64, DIMS(O, R));
    optest_out(&f, 0, SH_F64, DIMS(N, M));
    optest_out(&f, 1, SH_F64, DIMS(N, PARTS * R));
    optest_run(&f, &sh_kernels_ref, 1);

    optest_in(&b, 0, SH_F64, DIMS(N, M));
    give(&b, 1, &f.call.in[1]);
    give(&b, 2, &f.call.out[1]);
    give(&b, 3, &f.call.in[2]);
    give(&b, 4, &f.call.in[3]);
    optest_out(&b, 0, SH_F64, DIMS(N, I));
    optest_out(&b, 1, SH_F64, DIMS(PARTS * R, I));
    optest_out(&b, 2, SH_F64, DIMS(O, R));
    optest_run(&b, &sh_kernels_ref, 1);

    const struct sh_operand *g[SH_OP_MAX_OUT] = {&b.call.in[0]};
    for (int i = 0; i < 3; i++)
        check_gradient(&f, g, 1 + i, &b.call.out[i]);
    pair_end(&f, &b);
}

static void embed_refuses(void **state)
{
    (void)state;
    struct optest f;
    optest_begin(&f, SH_OP_EMBED);
    optest_in_ints(&f, 0, 7, 8, DIMS(1, 2));
    optest_in(&f, 1, SH_F32, DIMS(7, 3));
    optest_out(&f, 0, SH_F32, DIMS(1, 2, 3));
    assert_int_equal(sh_kernels_ref.run[SH_OP_EMBED](&f.call), SH_E_DATA);
    assert_string_equal(sh_error_text(),
                        "token 7 is outside the vocabulary of 7: was the data made with another tokenizer?");
    optest_end(&f);
}

/* GELU and SwiGLU: y [N, F / width] from x [N, F]. */
static void check_act(enum sh_op_kind forward, enum sh_op_kind backward, int width)
{
    enum { N = 4, F = 10 };
    struct optest f, b;
    pair_begin(&f, forward, &b, backward);
    optest_in(&f, 0, SH_F64, DIMS(N, F));
    optest_scale(&f.call.in[0], 2);
    optest_out(&f, 0, SH_F64, DIMS(N, F / width));
    optest_in(&b, 0, SH_F64, DIMS(N, F / width));
    give(&b, 1, &f.call.in[0]);
    optest_out(&b, 0, SH_F64, DIMS(N, F));
    optest_run(&b, &sh_kernels_ref, 1);

    const struct sh_operand *g[SH_OP_MAX_OUT] = {&b.call.in[0]};
    check_gradient(&f, g, 0, &b.call.out[0]);
    pair_end(&f, &b);
}

static void act(void **state)
{
    (void)state;
    optest_seed(4);
    check_act(SH_OP_GELU, SH_OP_GELU_BWD, 1);
    check_act(SH_OP_SWIGLU, SH_OP_SWIGLU_BWD, 2);
    check_act(SH_OP_GEGLU, SH_OP_GEGLU_BWD, 2);
    check_act(SH_OP_GELU_ERF, SH_OP_GELU_ERF_BWD, 1);
    check_act(SH_OP_SQUARED_RELU, SH_OP_SQUARED_RELU_BWD, 1);
}

static void set_heads(struct optest *t, int heads, int kv_heads, int head_dim)
{
    t->attr.attn.heads = heads;
    t->attr.attn.kv_heads = kv_heads;
    t->attr.attn.head_dim = head_dim;
    t->attr.attn.scale = 1 / sqrtf((float)head_dim);
}

static void rope(void **state)
{
    (void)state;
    enum { B = 2, T = 3, H = 4, K = 2, D = 6, ROW = (H + 2 * K) * D };
    struct optest f, b;
    optest_seed(5);
    pair_begin(&f, SH_OP_ROPE, &b, SH_OP_ROPE);
    set_heads(&f, H, K, D);
    set_heads(&b, H, K, D);
    b.attr.attn.inverse = true;
    optest_in(&f, 0, SH_F64, DIMS(B, T, ROW));
    optest_in(&f, 1, SH_F64, DIMS(T, D));
    optest_out(&f, 0, SH_F64, DIMS(B, T, ROW));
    optest_in(&b, 0, SH_F64, DIMS(B, T, ROW));
    give(&b, 1, &f.call.in[1]);
    optest_out(&b, 0, SH_F64, DIMS(B, T, ROW));
    optest_run(&b, &sh_kernels_ref, 1);

    const struct sh_operand *g[SH_OP_MAX_OUT] = {&b.call.in[0]};
    check_gradient(&f, g, 0, &b.call.out[0]);
    pair_end(&f, &b);
}

/* Frequencies by hand: theta 16, D 4 give 1 and 1/4. With original length 8 pi those waves turn 4 times and once, so
 * limits of 1.5 and 3 leave the first alone and slow the second by the factor, and limits of 0.5 and 1.5 mix it half
 * and half. */
static void rope_table(void **state)
{
    (void)state;
    static const struct {
        double factor, low, high, freq1;
    } cases[] = {{0, 0, 0, 0.25}, {8, 1.5, 3, 0.25 / 8}, {8, 0.5, 1.5, 0.5 * 0.25 / 8 + 0.5 * 0.25}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct optest t;
        optest_begin(&t, SH_OP_ROPE_TABLE);
        t.attr.rope.theta = 16;
        t.attr.rope.factor = cases[i].factor;
        t.attr.rope.low_freq = cases[i].low;
        t.attr.rope.high_freq = cases[i].high;
        t.attr.rope.original_len = 8 * acos(-1);
        optest_out(&t, 0, SH_F32, DIMS(5, 4));
        optest_run(&t, &sh_kernels_ref, 1);
        for (int p = 0; p < 5; p++) {
            const double want[] = {cos(p), cos(p * cases[i].freq1), sin(p), sin(p * cases[i].freq1)};
            for (int c = 0; c < 4; c++)
                assert_true(fabs(optest_get(&t.call.out[0], p * 4 + c) - want[c]) < 1e-7);
        }
        optest_end(&t);
    }
}

/* theta 16, D 8 give 1, 1/2, 1/4, 1/8; a ramp from 0 to 2 leaves the first alone, mixes the second half and half and
 * slows the others by the factor. */
static void rope_table_with_a_ramp(void **state)
{
    const double freq[] = {1, 0.5 * 0.5 + 0.5 * 0.5 / 4, 0.25 / 4, 0.125 / 4};
    struct optest t;

    (void)state;
    optest_begin(&t, SH_OP_ROPE_TABLE);
    t.attr = (struct sh_op_attr){
        .rope.theta = 16, .rope.factor = 4, .rope.ramp_first = 0, .rope.ramp_last = 2, .rope.scale = 1.5};
    optest_out(&t, 0, SH_F32, DIMS(5, 8));
    optest_run(&t, &sh_kernels_ref, 1);
    for (int p = 0; p < 5; p++)
        for (int i = 0; i < 4; i++) {
            assert_true(fabs(optest_get(&t.call.out[0], p * 8 + i) - 1.5 * cos(p * freq[i])) < 2e-7);
            assert_true(fabs(optest_get(&t.call.out[0], p * 8 + 4 + i) - 1.5 * sin(p * freq[i])) < 2e-7);
        }
    optest_end(&t);
}

/* The same frequencies, each with its own divisor. */
static void rope_table_with_divisors(void **state)
{
    const double divisor[] = {1, 3, 0.5, 8}, freq[] = {1, 0.5 / 3, 0.25 / 0.5, 0.125 / 8};
    struct optest t;

    (void)state;
    optest_begin(&t, SH_OP_ROPE_TABLE);
    t.attr = (struct sh_op_attr){.rope.theta = 16, .rope.divisors = 4, .rope.scale = 1.5};
    t.call.divisors = divisor;
    optest_out(&t, 0, SH_F32, DIMS(5, 8));
    optest_run(&t, &sh_kernels_ref, 1);
    for (int p = 0; p < 5; p++)
        for (int i = 0; i < 4; i++) {
            assert_true(fabs(optest_get(&t.call.out[0], p * 8 + i) - 1.5 * cos(p * freq[i])) < 2e-7);
            assert_true(fabs(optest_get(&t.call.out[0], p * 8 + 4 + i) - 1.5 * sin(p * freq[i])) < 2e-7);
        }
    optest_end(&t);
}

static void check_attention(bool docs, int heads, int kv_heads, int window, float cap)
{
    enum { B = 2, T = 5, D = 4 };
    int64_t row = (heads + 2 * kv_heads) * D;
    struct optest f, b;
    pair_begin(&f, SH_OP_ATTENTION, &b, SH_OP_ATTENTION_BWD);
    set_heads(&f, heads, kv_heads, D);
    set_heads(&b, heads, kv_heads, D);
    f.attr.attn.window = b.attr.attn.window = window;
    f.attr.attn.cap = b.attr.attn.cap = cap;
    optest_in(&f, 0, SH_F64, DIMS(B, T, row));
    if (docs) {
        optest_in_ints(&f, 1, 0, 1, DIMS(B, T));
        for (int t = 3; t < T; t++)
            optest_set(&f.call.in[1], t, 3);
    }
    optest_out(&f, 0, SH_F64, DIMS(B, T, heads * D));
    optest_out(&f, 1, SH_F64, DIMS(B, heads, T));
    optest_run(&f, &sh_kernels_ref, 1);
    optest_in(&b, 0, SH_F64, DIMS(B, T, heads * D));
    give(&b, 1, &f.call.in[0]);
    give(&b, 2, &f.call.out[0]);
    give(&b, 3, &f.call.out[1]);
    if (docs)
        give(&b, 4, &f.call.in[1]);
    optest_out(&b, 0, SH_F64, DIMS(B, T, row));
    optest_run(&b, &sh_kernels_ref, 1);

    const struct sh_operand *g[SH_OP_MAX_OUT] = {&b.call.in[0]};
    check_gradient(&f, g, 0, &b.call.out[0]);
    pair_end(&f, &b);
}

/* Two runs of two queries of each of two sequences of 8 keys. */
static void check_attention_rows(bool docs, int heads, int kv_heads, int window, float cap)
{
    enum { B = 2, T = 8, M = 2, D = 4 };
    struct optest f, b;
    pair_begin(&f, SH_OP_ATTENTION_ROWS, &b, SH_OP_ATTENTION_ROWS_BWD);
    set_heads(&f, heads, kv_heads, D);
    f.attr.attn.window = window;
    f.attr.attn.cap = cap;
    f.attr.attn.runs = 2;
    f.attr.attn.first[0] = M;
    f.attr.attn.first[1] = 2 * M;
    b.attr.attn = f.attr.attn;
    optest_in(&f, 0, SH_F64, DIMS(2 * B, M, heads * D));
    optest_in(&f, 1, SH_F64, DIMS(B, T, 2 * kv_heads * D));
    if (docs) {
        optest_in_ints(&f, 2, 0, 1, DIMS(2 * B, M));
        for (int i = 0; i < 2 * B * M; i++)
            optest_set(&f.call.in[2], i, i / M / B ? 3 : 1);
    }
    optest_out(&f, 0, SH_F64, DIMS(2 * B, M, heads * D));
    optest_out(&f, 1, SH_F64, DIMS(2 * B, heads, M));
    optest_run(&f, &sh_kernels_ref, 1);
    optest_in(&b, 0, SH_F64, DIMS(2 * B, M, heads * D));
    give(&b, 1, &f.call.in[0]);
    give(&b, 2, &f.call.in[1]);
    give(&b, 3, &f.call.out[0]);
    give(&b, 4, &f.call.out[1]);
    if (docs)
        give(&b, 5, &f.call.in[2]);
    optest_out(&b, 0, SH_F64, DIMS(2 * B, M, heads * D));
    optest_out(&b, 1, SH_F64, DIMS(B, T, 2 * kv_heads * D));
    optest_run(&b, &sh_kernels_ref, 1);

    const struct sh_operand *g[SH_OP_MAX_OUT] = {&b.call.in[0]};
    check_gradient(&f, g, 0, &b.call.out[0]);
    check_gradient(&f, g, 1, &b.call.out[1]);
    pair_end(&f, &b);
}

/* A window equals documents that start again at each query: the last W keys, or fewer if a document starts within
 * them. */
static void attention_window(void **state)
{
    enum { T = 9, W = 3, D = 4 };

    (void)state;
    for (int docs = 0; docs < 2; docs++) {
        struct optest with, without;
        optest_seed(8);
        optest_begin(&with, SH_OP_ATTENTION);
        set_heads(&with, 1, 1, D);
        optest_in(&with, 0, SH_F64, DIMS(1, T, 3 * D));
        if (docs) {
            optest_in_ints(&with, 1, 0, 1, DIMS(1, T));
            for (int t = 4; t < T; t++)
                optest_set(&with.call.in[1], t, 4);
        }
        optest_out(&with, 0, SH_F64, DIMS(1, T, D));
        optest_out(&with, 1, SH_F64, DIMS(1, 1, T));
        with.attr.attn.window = W;
        optest_begin(&without, SH_OP_ATTENTION);
        set_heads(&without, 1, 1, D);
        give(&without, 0, &with.call.in[0]);
        optest_in_ints(&without, 1, 0, 1, DIMS(1, T));
        for (int t = 0; t < T; t++) {
            int near = t - W + 1, first = docs && t >= 4 ? 4 : 0;
            optest_set(&without.call.in[1], t, near > first ? near : first);
        }
        optest_out(&without, 0, SH_F64, DIMS(1, T, D));
        optest_out(&without, 1, SH_F64, DIMS(1, 1, T));
        optest_run(&with, &sh_kernels_ref, 1);
        optest_run(&without, &sh_kernels_ref, 1);
        for (int i = 0; i < T * D; i++)
            assert_true(optest_get(&with.call.out[0], i) == optest_get(&without.call.out[0], i));
        pair_end(&with, &without);
    }
}

static void attention(void **state)
{
    (void)state;
    optest_seed(6);
    check_attention(false, 2, 2, 0, 0);
    check_attention(true, 4, 2, 0, 0);
    check_attention(true, 3, 1, 0, 0);
    check_attention(false, 2, 1, 2, 0);
    check_attention(true, 2, 1, 2, 0);
    check_attention_rows(false, 3, 1, 0, 0);
    check_attention_rows(true, 2, 2, 0, 0);
    check_attention_rows(true, 2, 1, 2, 0);
    check_attention(true, 4, 2, 3, 0.5f);
    check_attention_rows(true, 2, 1, 0, 0.25f);
}

/* Neighbouring query heads share a key-value head: 4 on 2 equals 4 on 4 with each key and value repeated twice. */
static void grouped_queries(void **state)
{
    (void)state;
    enum { T = 3, D = 2 };
    static const int from[12] = {0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7};
    struct optest two, four;
    optest_seed(8);
    pair_begin(&two, SH_OP_ATTENTION, &four, SH_OP_ATTENTION);
    set_heads(&two, 4, 2, D);
    set_heads(&four, 4, 4, D);
    optest_in(&two, 0, SH_F32, DIMS(1, T, 8 * D));
    optest_in(&four, 0, SH_F32, DIMS(1, T, 12 * D));
    for (int i = 0; i < T * 12 * D; i++)
        optest_set(&four.call.in[0], i,
                   optest_get(&two.call.in[0], i / (12 * D) * 8 * D + from[i / D % 12] * D + i % D));
    optest_out(&two, 0, SH_F32, DIMS(1, T, 4 * D));
    optest_out(&two, 1, SH_F32, DIMS(1, 4, T));
    optest_out(&four, 0, SH_F32, DIMS(1, T, 4 * D));
    optest_out(&four, 1, SH_F32, DIMS(1, 4, T));
    optest_run(&two, &sh_kernels_ref, 1);
    optest_run(&four, &sh_kernels_ref, 1);
    optest_same(&two, &four, 0);
    optest_same(&two, &four, 1);
    pair_end(&two, &four);
}

/* The head's backward gives gradients of loss_scale * loss; one row is masked, and if there are weights, one has 0. */
static void check_head(bool weighted, double temperature, float cap, int form, double z)
{
    enum { N = 4, C = 3, V = 5 };
    int64_t numbers;
    struct optest f, b;
    optest_seed(7);
    pair_begin(&f, SH_OP_HEAD_LOSS, &b, SH_OP_HEAD_LOSS_GRAD);
    b.scalars.loss_scale = 0.37;
    f.attr.head.chunk_rows = b.attr.head.chunk_rows = 2;
    f.attr.head.cap = b.attr.head.cap = cap;
    f.attr.head.squares = b.attr.head.squares = z;
    optest_in(&f, 0, SH_F64, DIMS(N, C));
    optest_in(&f, 1, SH_F64, DIMS(V, C));
    optest_in_ints(&f, 2, 0, V, DIMS(N));
    optest_set(&f.call.in[2], 1, -1);
    if (weighted) {
        optest_in(&f, 3, SH_F64, DIMS(N));
        optest_set(&f.call.in[3], 2, 0);
    }
    if (temperature < 0) { /* labels, each by itself */
        f.attr.head.multi_label = b.attr.head.multi_label = true;
        optest_in(&f, 5, SH_F64, DIMS(N, V));
    }
    if (temperature > 0) {
        f.attr.head.temperature = b.attr.head.temperature = temperature;
        f.attr.head.alpha = b.attr.head.alpha = 0.7;
        optest_in_ints(&f, 4, 0, V, DIMS(N, 3));
        optest_in(&f, 5, SH_F64, DIMS(N, 3));
        f.attr.head.form = b.attr.head.form = form;
    }
    for (int64_t i = 0; i < 3 * N && form; i++) { /* different words, of 6/8 in all */
        optest_set(&f.call.in[4], i, (double)((i + i / 3) % V));
        optest_set(&f.call.in[5], i, log((double)(1 + i % 3) / 8));
    }
    numbers = sh_head_numbers(&f.attr);
    optest_out(&f, 0, SH_F64, DIMS(numbers));
    for (int i = 0; i < 6; i++)
        if (f.call.in[i].data)
            give(&b, i, &f.call.in[i]);
    optest_out(&b, 0, SH_F64, DIMS(numbers));
    optest_out(&b, 1, SH_F64, DIMS(N, C));
    optest_out(&b, 2, SH_F64, DIMS(V, C));
    optest_run(&f, &sh_kernels_ref, 1);
    optest_run(&b, &sh_kernels_ref, 1);
    optest_same(&f, &b, 0);
    for (int c = 0; c < C; c++)
        for (int row = 1; row < 2 + weighted; row++)
            assert_true(optest_get(&b.call.out[1], row * C + c) == 0);

    double scale[SH_HEAD_NUMBERS] = {b.scalars.loss_scale, b.scalars.loss_scale}; /* both sums are what is minimized */
    const struct sh_operand weight = {.data = scale, .dtype = SH_F64, .ndim = 1, .dim = {numbers}};
    const struct sh_operand *g[SH_OP_MAX_OUT] = {&weight};
    check_gradient(&f, g, 0, &b.call.out[1]);
    check_gradient(&f, g, 1, &b.call.out[2]);
    pair_end(&f, &b);
}

static void head(void **state)
{
    (void)state;
    check_head(false, 0, 0, 0, 0);
    check_head(true, 0, 0, 0, 0);
    check_head(false, 1, 0, SH_KD_NORMALIZED, 0);
    check_head(true, 2.5, 0, SH_KD_NORMALIZED, 0);
    check_head(true, 0, 0.5f, 0, 0);
    check_head(false, 1, 2, SH_KD_NORMALIZED, 0);
    check_head(true, 1, 0, SH_KD_STORED, 0);
    check_head(true, 1, 0, SH_KD_TAIL, 0);
    check_head(false, 1, 2, SH_KD_TAIL, 0);
    check_head(true, 0, 0, 0, 0.3);
    check_head(false, 0, 0.8f, 0, 0.3);
    check_head(true, 1.5, 0, SH_KD_NORMALIZED, 0.3);
    check_head(true, 1, 0, SH_KD_TAIL, 0.3);
    check_head(true, -1, 0, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm),
        cmocka_unit_test(qk_norm),
        cmocka_unit_test(regroup_by_hand),
        cmocka_unit_test(latent_values_gradient),
        cmocka_unit_test(heads_by_hand),
        cmocka_unit_test(pieces_by_hand),
        cmocka_unit_test(linear),
        cmocka_unit_test(embed),
        cmocka_unit_test(attention_window),
        cmocka_unit_test(embed_refuses),
        cmocka_unit_test(act),
        cmocka_unit_test(rope),
        cmocka_unit_test(rope_table),
        cmocka_unit_test(rope_table_with_a_ramp),
        cmocka_unit_test(rope_table_with_divisors),
        cmocka_unit_test(attention),
        cmocka_unit_test(grouped_queries),
        cmocka_unit_test(head),
        cmocka_unit_test(lora),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
