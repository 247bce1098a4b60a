/* What gpt-oss, glm4, deepseek_v3 and gemma4_text have and other families do not, on the CPU and in the reference: sinks
 * of attention, rotary positions of neighbours, heads from latent vectors, norms of values, factors of blocks. Gradients
 * of the reference are compared with finite differences. */
#include "tests/op/agree.h"
#include "tests/op/gradient.h"
#include "tests/op/heads.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};
enum { ACTS = sizeof acts / sizeof *acts };
static const struct delta_device cpu = {agree, ACTS, false};

/* ---- sinks ---- */

struct heads {
    int B, T, H, K, D;
};

static void set_heads(struct optest *t, enum sh_op_kind kind, struct heads s)
{
    optest_begin(t, kind);
    t->attr.attn.heads = s.H;
    t->attr.attn.kv_heads = s.K;
    t->attr.attn.head_dim = s.D;
    t->attr.attn.scale = 1.0f / sqrtf((float)s.D);
}

static void begin_sink(struct optest *t, enum sh_dtype act, enum sh_dtype number, struct heads s)
{
    set_heads(t, SH_OP_SINK, s);
    optest_in(t, 0, act, DIMS(s.B, s.T, s.H * s.D));
    optest_in(t, 1, number, DIMS(s.B, s.H, s.T));
    optest_scale(&t->call.in[1], 3);
    optest_in(t, 2, act, DIMS(s.H));
    optest_out(t, 0, act, DIMS(s.B, s.T, s.H * s.D));
    optest_out(t, 1, number, DIMS(s.B, s.H, s.T));
}

static void begin_sink_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, struct heads s)
{
    set_heads(t, SH_OP_SINK_BWD, s);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    gradient_give(t, 1, &f->call.out[0]);
    gradient_give(t, 2, &f->call.out[1]);
    gradient_give(t, 3, &f->call.in[2]);
    optest_out(t, 0, sums, DIMS(s.H));
}

/* Attention, and its sink. */
static struct optest attention, sink;
static const struct sh_operand *up_stream;

static double sink_objective(void)
{
    optest_run(&attention, &sh_kernels_ref, 1);
    gradient_copy(&sink.call.in[0], &attention.call.out[0]);
    gradient_copy(&sink.call.in[1], &attention.call.out[1]);
    optest_run(&sink, &sh_kernels_ref, 1);
    return gradient_dot(up_stream, &sink.call.out[0]);
}

/* The backward of attention has what the sink made, and needs to know nothing of it. */
static void sink_gradient(void **state)
{
    const struct heads s = {2, 4, 4, 2, 3};
    struct optest dsink, dqkv;

    (void)state;
    optest_seed(62);
    set_heads(&attention, SH_OP_ATTENTION, s);
    optest_in(&attention, 0, SH_F64, DIMS(s.B, s.T, (s.H + 2 * s.K) * s.D));
    optest_out(&attention, 0, SH_F64, DIMS(s.B, s.T, s.H * s.D));
    optest_out(&attention, 1, SH_F64, DIMS(s.B, s.H, s.T));
    begin_sink(&sink, SH_F64, SH_F64, s);
    up_stream = &dsink.call.in[0];
    begin_sink_bwd(&dsink, &sink, SH_F64, s);
    sink_objective();
    gradient_copy(&dsink.call.in[1], &sink.call.out[0]);
    gradient_copy(&dsink.call.in[2], &sink.call.out[1]);
    optest_run(&dsink, &sh_kernels_ref, 1);
    gradient_check(&sink.call.in[2], &dsink.call.out[0], sink_objective);
    sink_objective();
    set_heads(&dqkv, SH_OP_ATTENTION_BWD, s);
    gradient_give(&dqkv, 0, up_stream);
    gradient_give(&dqkv, 1, &attention.call.in[0]);
    gradient_give(&dqkv, 2, &sink.call.out[0]);
    gradient_give(&dqkv, 3, &sink.call.out[1]);
    optest_out(&dqkv, 0, SH_F64, DIMS(s.B, s.T, (s.H + 2 * s.K) * s.D));
    optest_run(&dqkv, &sh_kernels_ref, 1);
    gradient_check(&attention.call.in[0], &dqkv.call.out[0], sink_objective);
    optest_end(&attention);
    optest_end(&sink);
    optest_end(&dsink);
    optest_end(&dqkv);
}

/* ---- positions ---- */

/* By hand: a quarter turn of each pair, but for the last elements. And both devices, there and back. */
static void pairs_turn(void **state)
{
    static const double x[] = {1, 2, 3, 4, 5, 6}, turned[] = {-2, 1, -4, 3, 5, 6};

    (void)state;
    optest_seed(60);
    for (int i = 0; i < 2 * ACTS; i++) {
        const struct heads s = {2, 3, 3, 1, 6};
        const struct sh_bound bound = sh_bound_sum(acts[i / 2], 4);
        struct optest t;

        set_heads(&t, SH_OP_ROPE, s);
        t.attr.attn.pairs = true;
        t.attr.attn.inverse = i % 2;
        t.attr.attn.rotary_dim = 4;
        optest_in(&t, 0, acts[i / 2], DIMS(s.B, s.T, (s.H + 2 * s.K) * s.D));
        optest_in(&t, 1, SH_F32, DIMS(s.T, 4));
        optest_out(&t, 0, acts[i / 2], DIMS(s.B, s.T, (s.H + 2 * s.K) * s.D));
        agree(&t, 1, &bound, 0, 0);
        for (int k = 0; k < 4; k++)
            optest_set(&t.call.in[1], k, k < 2 ? 0 : t.attr.attn.inverse ? -1 : 1);
        for (int k = 0; k < 6; k++)
            optest_set(&t.call.in[0], k, x[k]);
        optest_run(&t, &sh_kernels_cpu, 1);
        for (int k = 0; k < 6; k++)
            assert_true(optest_get(&t.call.out[0], k) == turned[k]);
        optest_end(&t);
    }
}

/* ---- latent attention ---- */

static struct optest forward, backward;

static double objective_of_forward(void)
{
    optest_run(&forward, &sh_kernels_ref, 1);
    return gradient_dot(&backward.call.in[0], &forward.call.out[0]);
}

static void latent_heads(void **state)
{
    (void)state;
    heads_latent_cases(&cpu);
}

/* Two heads with P = 1, R = 2, V = 1, by hand. */
static void latent_by_hand(void **state)
{
    static const double q[] = {1, 2, 3, 4, 5, 6}, kv[] = {10, 11, 12, 13}, turned[] = {20, 21};
    static const double qkv[] = {2, 3, 1, 5, 6, 4, 20, 21, 10, 20, 21, 12, 11, 0, 0, 13, 0, 0};
    struct optest t;

    (void)state;
    heads_begin_latent_heads(&t, SH_F32, &(struct heads_latent){1, 2, 1, 2, 1});
    for (int i = 0; i < 6; i++)
        optest_set(&t.call.in[0], i, q[i]);
    for (int i = 0; i < 4; i++)
        optest_set(&t.call.in[1], i, kv[i]);
    for (int i = 0; i < 2; i++)
        optest_set(&t.call.in[2], i, turned[i]);
    optest_run(&t, &sh_kernels_cpu, 1);
    for (int i = 0; i < 18; i++)
        assert_true(optest_get(&t.call.out[0], i) == qkv[i]);
    optest_end(&t);
}

static void latent_gradient(void **state)
{
    const struct heads_latent l = {3, 3, 2, 4, 5};

    (void)state;
    optest_seed(71);
    heads_begin_latent_heads(&forward, SH_F64, &l);
    heads_begin_latent_heads_bwd(&backward, SH_F64, &l, 7);
    optest_run(&backward, &sh_kernels_ref, 1);
    for (int i = 0; i < 3; i++)
        gradient_check(&forward.call.in[i], &backward.call.out[i], objective_of_forward);
    optest_end(&forward);
    optest_end(&backward);
}

/* ---- norms of values, and factors of blocks ---- */

static void value_norms(void **state)
{
    (void)state;
    heads_value_norms(&cpu);
}

/* Values of their own, and keys that are values too. */
static void value_norm_gradient(void **state)
{
    (void)state;
    optest_seed(81);
    for (int i = 1; i < 4; i++) {
        heads_begin_value_norm(&forward, SH_F64, SH_F64, &heads_values_shapes[i]);
        optest_run(&forward, &sh_kernels_ref, 1);
        heads_begin_value_norm_bwd(&backward, &forward, &heads_values_shapes[i]);
        optest_run(&backward, &sh_kernels_ref, 1);
        gradient_check(&forward.call.in[0], &backward.call.out[0], objective_of_forward);
        optest_end(&forward);
        optest_end(&backward);
    }
}

static void factors_of_blocks(void **state)
{
    (void)state;
    heads_factors(&cpu);
}

/* As Gemma 4 turns a quarter of its pairs: the others stay as they are. */
static void pairs_that_stand_still(void **state)
{
    struct optest t;

    (void)state;
    optest_begin(&t, SH_OP_ROPE_TABLE);
    t.attr.rope.theta = 100;
    t.attr.rope.turned = 1;
    optest_out(&t, 0, SH_F32, DIMS(3, 8));
    optest_run(&t, &sh_kernels_cpu, 1);
    for (int i = 0; i < 4; i++) {
        assert_true(fabs(optest_get(&t.call.out[0], 16 + i) - (i ? 1 : cos(2))) < 1e-6);
        assert_true(fabs(optest_get(&t.call.out[0], 20 + i) - (i ? 0 : sin(2))) < 1e-6);
    }
    optest_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sink_gradient),          cmocka_unit_test(pairs_turn),
        cmocka_unit_test(latent_heads),           cmocka_unit_test(latent_by_hand),
        cmocka_unit_test(latent_gradient),        cmocka_unit_test(value_norms),
        cmocka_unit_test(value_norm_gradient),    cmocka_unit_test(factors_of_blocks),
        cmocka_unit_test(pairs_that_stand_still),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
