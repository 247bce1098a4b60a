/* What the experts of gpt-oss have and others have not, for all devices: biases of experts and of their router, stacks
 * of experts that are stored [E,I,O], and the clamp of their gates; and the reference's gradients. */
#include "tests/op/gradient.h"
#include "tests/op/moe.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};

/* Rows by expert; groups of a second source follow those of the first. */
struct experts {
    int E, groups, N, k, I, O;
    int32_t first[16];
};
static const struct experts shapes[] = {{3, 3, 8, 2, 5, 7, {0, 4, 4, 16}},
                                        {2, 4, 40, 3, 40, 24, {0, 30, 60, 61, 120}},
                                        {4, 8, 33, 1, 17, 1100, {0, 1, 1, 9, 9, 20, 20, 33, 33}}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int rows_of(const struct experts *x)
{
    return x->N * x->k;
}

static void put_first(struct optest *t, int i, const struct experts *x)
{
    optest_in_ints(t, i, 0, 1, DIMS(x->groups + 1));
    for (int g = 0; g <= x->groups; g++)
        optest_set(&t->call.in[i], g, x->first[g]);
}

/* Where the numbers of rows are among those of choices: a permutation. */
static void put_order(struct optest *t, int i, int rows, int spare)
{
    optest_in_ints(t, i, 0, 1, DIMS(rows + spare));
    for (int r = 0; r < rows; r++)
        optest_set(&t->call.in[i], r, r % 2 ? r / 2 : rows - 1 - r / 2);
}

static void begin_bias(struct optest *t, enum sh_dtype act, enum sh_dtype number, const struct experts *x, bool weighed)
{
    optest_begin(t, SH_OP_EXPERT_BIAS);
    optest_in(t, 0, act, DIMS(rows_of(x), x->O));
    put_first(t, 1, x);
    optest_in(t, 2, act, DIMS(x->E, x->O));
    if (weighed) {
        optest_in(t, 3, number, DIMS(x->N, x->k));
        put_order(t, 4, rows_of(x), 0);
    }
    optest_out(t, 0, act, DIMS(rows_of(x), x->O));
}

static void begin_bias_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums)
{
    optest_begin(t, SH_OP_EXPERT_BIAS_BWD);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    for (int i = 1; i < 5; i++)
        if (f->call.in[i].ndim)
            gradient_give(t, i, &f->call.in[i]);
    optest_out(t, 0, sums, f->call.in[2].ndim, f->call.in[2].dim);
    if (f->call.in[3].ndim)
        optest_out(t, 1, sums, f->call.in[3].ndim, f->call.in[3].dim);
}

/* Rows behind the last group are left alone, and do not count. */
static void check_rows_behind(const struct optest *bias, const struct optest *back)
{
    struct optest f, b;
    int64_t groups = optest_elems(&bias->call.in[1]) - 1, live = (int64_t)optest_get(&bias->call.in[1], groups) - 1;
    int64_t O = bias->call.in[0].dim[1];

    optest_copy(&f, bias);
    optest_copy(&b, back);
    for (int64_t g = 0; g <= groups; g++)
        if (optest_get(&bias->call.in[1], g) > (double)live) {
            optest_set(&f.call.in[1], g, (double)live);
            optest_set(&b.call.in[1], g, (double)live);
        }
    for (int64_t i = live * O; i < (live + 1) * O; i++) {
        optest_set(&f.call.out[0], i, NAN);
        optest_set(&b.call.in[0], i, NAN);
    }
    moe.run(&f);
    moe.run(&b);
    for (int64_t i = 0; i < (live + 1) * O; i++)
        assert_true(isnan(optest_get(&f.call.out[0], i)) == (i >= live * O));
    for (int64_t i = 0; i < optest_elems(&b.call.out[0]); i++)
        assert_false(isnan(optest_get(&b.call.out[0], i)));
    optest_end(&f);
    optest_end(&b);
}

void moe_expert_biases(void **state)
{
    (void)state;
    optest_seed(64);
    for (int i = 0; i < 2 * SHAPES * moe.n_acts; i++) {
        const struct experts *x = &shapes[i / 2 / moe.n_acts];
        enum sh_dtype act = acts[i / 2 % moe.n_acts];
        const struct sh_bound made = sh_bound_sum(act, 8),
                              sums[] = {sh_bound_sum(SH_F32, 4.0 * rows_of(x)), sh_bound_sum(SH_F32, 4.0 * x->O)};
        struct optest f, b;

        begin_bias(&f, act, SH_F32, x, i % 2);
        moe.agree(&f, 1, &made, 0, 0);
        begin_bias_bwd(&b, &f, SH_F32);
        moe.agree(&b, 1 + i % 2, sums, -1, -1);
        optest_add_to(&b, 0);
        moe.agree(&b, 1 + i % 2, sums, -1, -1);
        check_rows_behind(&f, &b);
        optest_end(&f);
        optest_end(&b);
    }
}

static struct optest forward, backward;

static double objective_of_forward(void)
{
    optest_run(&forward, &sh_kernels_ref, 1);
    return gradient_dot(&backward.call.in[0], &forward.call.out[0]);
}

void moe_bias_gradient(void **state)
{
    (void)state;
    optest_seed(65);
    begin_bias(&forward, SH_F64, SH_F64, &shapes[0], true);
    begin_bias_bwd(&backward, &forward, SH_F64);
    optest_run(&backward, &sh_kernels_ref, 1);
    gradient_check(&forward.call.in[2], &backward.call.out[0], objective_of_forward);
    gradient_check(&forward.call.in[3], &backward.call.out[1], objective_of_forward);
    optest_end(&forward);
    optest_end(&backward);
}

static void begin_gate(struct optest *t, enum sh_dtype act, enum sh_dtype number, int rows, int F)
{
    optest_begin(t, SH_OP_SWIGLU_ROWS);
    t->attr.rows.limit = 1.5F;
    t->attr.rows.alpha = 1.702F;
    optest_in(t, 0, act, DIMS(rows, 2 * F));
    optest_scale(&t->call.in[0], 2);
    optest_in(t, 1, number, DIMS(rows));
    put_order(t, 2, rows, 0);
    optest_out(t, 0, act, DIMS(rows, F));
}

static void begin_gate_bwd(struct optest *t, const struct optest *f, enum sh_dtype number, bool more)
{
    optest_begin(t, SH_OP_SWIGLU_ROWS_BWD);
    t->attr.rows = f->attr.rows;
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    for (int i = 0; i < 3; i++)
        gradient_give(t, 1 + i, &f->call.in[i]);
    if (more)
        optest_in(t, 5, number, f->call.in[1].ndim, f->call.in[1].dim);
    optest_out(t, 0, f->call.in[0].dtype, f->call.in[0].ndim, f->call.in[0].dim);
    optest_out(t, 1, number, f->call.in[1].ndim, f->call.in[1].dim);
}

/* By hand: gates and ups on both sides of their limits and at them, where a gradient passes, as in PyTorch. */
void moe_clamp_by_hand(void **state)
{
    static const double gu[] = {1.5, 1.5, 2, -1.5, -9, 2, 0.5, -4};
    static const double passes[] = {1, 1, 0, 1, 1, 0, 1, 0};

    (void)state;
    for (int device = 0; device < 2; device++) {
        struct optest f, b;

        begin_gate(&f, SH_F32, SH_F32, 1, 4);
        for (int i = 0; i < 8; i++)
            optest_set(&f.call.in[0], i, gu[i]);
        begin_gate_bwd(&b, &f, SH_F32, false);
        for (int i = 0; i < 4; i++)
            optest_set(&b.call.in[0], i, 1);
        for (int back = 0; back < 2; back++)
            if (device)
                moe.run(back ? &b : &f);
            else
                optest_run(back ? &b : &f, &sh_kernels_ref, 1);
        for (int i = 0; i < 4; i++) {
            double gate = fmin(gu[2 * i], 1.5), up = fmax(fmin(gu[2 * i + 1], 1.5), -1.5);
            double want = optest_get(&f.call.in[1], 0) * (up + 1) * gate / (1 + exp(-1.702 * gate));

            assert_true(fabs(optest_get(&f.call.out[0], i) - want) < 1e-5);
        }
        for (int i = 0; i < 8; i++)
            assert_int_equal(optest_get(&b.call.out[0], i) != 0, passes[i] != 0);
        optest_end(&f);
        optest_end(&b);
    }
}

void moe_clamped_gates(void **state)
{
    static const int sizes[][2] = {{1, 1}, {7, 33}, {3, 1500}};

    (void)state;
    optest_seed(66);
    for (int i = 0; i < 2 * 3 * moe.n_acts; i++) {
        const int *s = sizes[i / 2 / moe.n_acts];
        enum sh_dtype act = acts[i / 2 % moe.n_acts];
        const struct sh_bound bounds[] = {sh_bound_sum(act, 64), sh_bound_sum(SH_F32, 64.0 * s[1])};
        struct optest f, b;

        begin_gate(&f, act, SH_F32, s[0], s[1]);
        moe.agree(&f, 1, bounds, -1, -1);
        begin_gate_bwd(&b, &f, SH_F32, i % 2);
        moe.agree(&b, 2, bounds, -1, -1);
        optest_end(&f);
        optest_end(&b);
    }
}

void moe_gate_gradient(void **state)
{
    (void)state;
    optest_seed(67);
    begin_gate(&forward, SH_F64, SH_F64, 4, 6);
    begin_gate_bwd(&backward, &forward, SH_F64, true);
    for (int i = 0; i < 4; i++)
        optest_set(&backward.call.in[5], i, 0);
    optest_run(&backward, &sh_kernels_ref, 1);
    for (int in = 0; in < 2; in++)
        gradient_check(&forward.call.in[in], &backward.call.out[in], objective_of_forward);
    for (int i = 0; i < 4; i++)
        optest_set(&backward.call.in[5], i, 10 + i);
    gradient_copy(&forward.call.in[1], &backward.call.out[1]); /* as it was without more */
    optest_run(&backward, &sh_kernels_ref, 1);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(optest_get(&backward.call.out[1], i) - optest_get(&forward.call.in[1], i) - 10 - i) < 1e-9);
    optest_end(&forward);
    optest_end(&backward);
}

/* One of the three products; in_out: its weight is stored [E,I,O]. */
static void begin_product(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, const struct experts *x,
                          bool in_out)
{
    bool of_w = kind == SH_OP_EXPERT_LINEAR_BWD_W, fwd = kind == SH_OP_EXPERT_LINEAR;
    int64_t w[] = {x->E, in_out ? x->I : x->O, in_out ? x->O : x->I};

    optest_begin(t, kind);
    t->attr.rows.w_in_out = in_out;
    optest_in(t, 0, act, DIMS(rows_of(x), fwd ? x->I : x->O));
    if (of_w)
        optest_in(t, 1, act, DIMS(rows_of(x), x->I));
    put_first(t, of_w ? 2 : 1, x);
    if (of_w) {
        optest_out(t, 0, SH_F32, 3, w);
        return;
    }
    optest_in(t, 2, act, 3, w);
    optest_out(t, 0, act, DIMS(rows_of(x), fwd ? x->O : x->I));
}

/* w [E,O,I] from [E,I,O]. */
static void turn(const struct sh_operand *to, const struct sh_operand *from)
{
    int64_t A = from->dim[1], B = from->dim[2];

    for (int64_t i = 0; i < optest_elems(from); i++)
        optest_set(to, i / (A * B) * A * B + i % B * A + i / B % A, optest_get(from, i));
}

/* The reference's are those of the turned weight, bit for bit; the CPU's are the reference's. */
void moe_turned_products(void **state)
{
    static const enum sh_op_kind kinds[] = {SH_OP_EXPERT_LINEAR, SH_OP_EXPERT_LINEAR_BWD_X, SH_OP_EXPERT_LINEAR_BWD_W};

    (void)state;
    optest_seed(68);
    for (int i = 0; i < 3 * SHAPES * moe.n_acts; i++) {
        enum sh_op_kind kind = kinds[i % 3];
        const struct experts *x = &shapes[i / 3 / moe.n_acts];
        bool of_w = kind == SH_OP_EXPERT_LINEAR_BWD_W;
        struct sh_bound bound = of_w ? sh_bound_sum(SH_F32, 4.0 * rows_of(x))
                                     : sh_bound_sum(acts[i / 3 % moe.n_acts], 4.0 * (x->I + x->O));
        struct optest t, plain;

        begin_product(&t, kind, acts[i / 3 % moe.n_acts], x, true);
        moe.agree(&t, 1, &bound, -1, -1);
        begin_product(&plain, kind, acts[i / 3 % moe.n_acts], x, false);
        for (int k = 0; k < 3; k++)
            if (k == 2 && !of_w)
                turn(&plain.call.in[2], &t.call.in[2]);
            else
                gradient_copy(&plain.call.in[k], &t.call.in[k]);
        optest_run(&t, &sh_kernels_ref, 1);
        optest_run(&plain, &sh_kernels_ref, 1);
        for (int64_t n = 0; n < optest_elems(&t.call.out[0]); n++) {
            int64_t I = x->I, O = x->O, at = of_w ? n / (I * O) * I * O + n % O * I + n / O % I : n;

            assert_true(optest_get(&t.call.out[0], n) == optest_get(&plain.call.out[0], at));
        }
        optest_end(&t);
        optest_end(&plain);
    }
}

static void begin_route(struct optest *t, enum sh_dtype act, enum sh_dtype number)
{
    enum { N = 9, C = 12, E = 5, k = 2 };

    optest_begin(t, SH_OP_ROUTE);
    t->attr.route.experts = E;
    t->attr.route.chosen = k;
    t->attr.route.norm = true;
    t->attr.route.scale = 1;
    optest_in(t, 0, act, DIMS(N, C));
    optest_in(t, 1, act, DIMS(E, C));
    optest_in(t, 3, act, DIMS(E));
    for (int i = 0; i < 4 && act != SH_F64; i++) /* on a grid, so that logits are exact on both devices */
        for (int64_t n = 0; n < optest_elems(&t->call.in[i]) && t->call.in[i].ndim; n++)
            optest_set(&t->call.in[i], n, (double)optest_int(-4, 5) / 8);
    optest_out(t, 0, number, DIMS(N, k));
    optest_out(t, 1, SH_I32, DIMS(N, k));
    optest_out(t, 2, number, DIMS(N, E));
}

static void begin_route_bwd(struct optest *t, const struct optest *f, enum sh_dtype number)
{
    optest_begin(t, SH_OP_ROUTE_BWD);
    t->attr.route = f->attr.route;
    t->scalars.router_scale = 1;
    optest_in(t, 0, number, f->call.out[0].ndim, f->call.out[0].dim);
    gradient_give(t, 1, &f->call.out[1]);
    gradient_give(t, 2, &f->call.out[2]);
    gradient_give(t, 4, &f->call.in[0]);
    gradient_give(t, 5, &f->call.in[1]);
    optest_out(t, 0, f->call.in[0].dtype, f->call.in[0].ndim, f->call.in[0].dim);
    optest_out(t, 1, number, f->call.in[1].ndim, f->call.in[1].dim);
    optest_out(t, 2, number, f->call.in[3].ndim, f->call.in[3].dim);
}

void moe_routers_with_biases(void **state)
{
    (void)state;
    optest_seed(69);
    for (int a = 0; a < moe.n_acts; a++) {
        const struct sh_bound made[] = {{0, 0x1p-19}, {0, 0}, {0, 0x1p-19}};
        const struct sh_bound sums[] = {sh_bound_sum(acts[a], 320), sh_bound_sum(SH_F32, 144),
                                        sh_bound_sum(SH_F32, 144)};
        struct optest f, b;

        begin_route(&f, acts[a], SH_F32);
        moe.agree(&f, 3, made, -1, -1);
        optest_run(&f, &sh_kernels_ref, 1);
        begin_route_bwd(&b, &f, SH_F32);
        moe.agree(&b, 3, sums, -1, -1);
        optest_add_to(&b, 2);
        moe.agree(&b, 3, sums, -1, -1);
        optest_end(&f);
        optest_end(&b);
    }
}

void moe_router_bias_gradient(void **state)
{
    (void)state;
    optest_seed(63);
    begin_route(&forward, SH_F64, SH_F64);
    optest_run(&forward, &sh_kernels_ref, 1);
    begin_route_bwd(&backward, &forward, SH_F64);
    optest_run(&backward, &sh_kernels_ref, 1);
    gradient_check(&forward.call.in[3], &backward.call.out[2], objective_of_forward);
    optest_end(&forward);
    optest_end(&backward);
}
