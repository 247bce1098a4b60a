#include "tests/op/gradient.h"
#include "tests/op/moe.h"

#include "kernels/shape.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};
struct moe moe;

/* By the reference or on the device. */
static void run_on(struct optest *t, bool device)
{
    if (device)
        moe.run(t);
    else
        optest_run(t, &sh_kernels_ref, 1);
}

/* The call is one that its row allows, and the devices agree on it. */
static void compare(const struct optest *t, int n, const struct sh_bound *bound, int alias_in, int alias_out)
{
    char text[SH_MISFIT_TEXT];

    if (sh_shape_misfit(&t->call, text))
        fail_msg("%s: %s", sh_op_info(t->call.kind)->name, text);
    moe.agree(t, n, bound, alias_in, alias_out);
}

/* --- the router --- */

struct router {
    bool sigmoid, norm, bias, lse;
    float scale;
    bool grouped; /* uses the groups of the shape */
    float aux, z; /* backward */
};
static const struct router routers[] = {
    {.scale = 1, .aux = 0.5f},
    {.norm = true, .lse = true, .scale = 1, .aux = 0.25f, .z = 0.125f},
    {.sigmoid = true, .norm = true, .bias = true, .scale = 2.5f, .grouped = true, .aux = 0.5f},
    {.sigmoid = true, .lse = true, .scale = 1},
    {.bias = true, .lse = true, .scale = 3, .grouped = true, .z = 0.5f},
};
enum { ROUTERS = sizeof routers / sizeof *routers };

/* Rows, width, experts, chosen, groups, best groups. One of each; all chosen; no power of two; more rows than a
 * chunk of the backward. */
static const int64_t route_shapes[][6] = {
    {1, 1, 1, 1, 1, 1},     {1, 8, 4, 4, 2, 2},    {3, 17, 5, 2, 5, 3}, {70, 33, 24, 5, 6, 3}, {130, 64, 60, 4, 4, 1},
    {67, 40, 128, 8, 8, 4}, {33, 16, 16, 2, 8, 2}, {5, 12, 6, 6, 6, 6}, {1030, 3, 7, 3, 1, 1},
};
enum { ROUTE_SHAPES = sizeof route_shapes / sizeof *route_shapes };

static void set_router(struct optest *t, const int64_t *s, const struct router *r)
{
    t->attr.route.experts = (int)s[2];
    t->attr.route.chosen = (int)s[3];
    t->attr.route.sigmoid = r->sigmoid;
    t->attr.route.norm = r->norm;
    t->attr.route.scale = r->scale;
    t->attr.route.groups = r->grouped ? (int)s[4] : 0;
    t->attr.route.top_groups = r->grouped ? (int)s[5] : 0;
    t->attr.route.aux = r->aux;
    t->attr.route.z = r->z;
    t->scalars.router_scale = 1 / (double)s[0];
}

/* Multiples of `unit`, up to 2 of them: sums of products are exact, so that equal logits are equal on all devices. */
static void on_a_grid(const struct sh_operand *t, double unit)
{
    for (int64_t i = 0; i < optest_elems(t); i++)
        optest_set(t, i, unit * (double)optest_int(-2, 3));
}

/* Outputs of type `type`: f32, or f64 for differences. */
static void begin_route(struct optest *t, enum sh_dtype act, enum sh_dtype type, const int64_t *s,
                        const struct router *r)
{
    optest_begin(t, SH_OP_ROUTE);
    set_router(t, s, r);
    optest_in(t, 0, act, DIMS(s[0], s[1]));
    optest_in(t, 1, act, DIMS(s[2], s[1]));
    if (act != SH_F64)
        on_a_grid(&t->call.in[0], 0.5), on_a_grid(&t->call.in[1], 0.125);
    if (r->bias)
        optest_in(t, 2, SH_F32, DIMS(s[2]));
    optest_out(t, 0, type, DIMS(s[0], s[3]));
    optest_out(t, 1, SH_I32, DIMS(s[0], s[3]));
    optest_out(t, 2, type, DIMS(s[0], s[2]));
    if (r->lse)
        optest_out(t, 3, type, DIMS(s[0]));
}

/* The backward for the results of a forward that has run. */
static void begin_route_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const int64_t *s,
                            const struct router *r)
{
    optest_begin(t, SH_OP_ROUTE_BWD);
    set_router(t, s, r);
    optest_in(t, 0, f->call.out[0].dtype, DIMS(s[0], s[3]));
    for (int i = 1; i < (r->lse ? 4 : 3); i++)
        gradient_give(t, i, &f->call.out[i]);
    for (int i = 0; i < 2; i++)
        gradient_give(t, 4 + i, &f->call.in[i]);
    optest_out(t, 0, f->call.in[0].dtype, DIMS(s[0], s[1]));
    optest_out(t, 1, sums, DIMS(s[2], s[1]));
}

static void check_route(enum sh_dtype act, const int64_t *s, const struct router *r)
{
    const struct sh_bound bounds[] = {{0, 0x1p-19}, {0, 0}, {0, 0x1p-19}, {0x1p-20, 0x1p-20}};
    struct optest t;

    begin_route(&t, act, SH_F32, s, r);
    compare(&t, 4, bounds, -1, -1);
    optest_end(&t);
}

static void check_route_bwd(enum sh_dtype act, const int64_t *s, const struct router *r, int way)
{
    struct sh_bound bounds[] = {sh_bound_sum(act, 64.0 * (double)s[2]), sh_bound_sum(SH_F32, 16.0 * (double)s[0])};
    struct optest f, t;

    begin_route(&f, act, SH_F32, s, r);
    optest_run(&f, &sh_kernels_ref, 1);
    begin_route_bwd(&t, &f, SH_F32, s, r);
    if (way == 1) /* to be added to */
        optest_in(&t, 6, act, DIMS(s[0], s[1])), optest_add_to(&t, 1);
    if (way == 2) /* a frozen router; the first trained parameter */
        t.call.out[s[0] % 2] = (struct sh_operand){0};
    /* An aliased f32 sum starts with dres instead of ending with it, as in LINEAR_BWD_X. */
    compare(&t, 2, bounds, way == 1 && act != SH_F32 ? 6 : -1, 0);
    optest_end(&f);
    optest_end(&t);
}

void moe_route(void **state)
{
    (void)state;
    optest_seed(21);
    for (int s = 0; s < ROUTE_SHAPES; s += moe.few ? 3 : 1)
        for (int r = 0; r < ROUTERS; r++)
            for (int a = 0; a < moe.n_acts; a++) {
                check_route(acts[a], route_shapes[s], &routers[r]);
                check_route_bwd(acts[a], route_shapes[s], &routers[r], (s + r + a) % 3);
            }
}

/* One row of width 1: the weights of the router are its logits. */
enum { HAND = 6 };
static const struct by_hand {
    const char *what;
    int experts, chosen, groups, top_groups;
    bool sigmoid, norm;
    double logits[HAND], bias[HAND];
    int expert[HAND];
    double weight; /* of the first; NaN: not a number */
} by_hand[] = {
    {"equal ones by number", 4, 3, 0, 0, false, false, {1, 2, 2, 1}, {0}, {1, 2, 0}, 0.36552928931500245},
    {"all chosen, divided by their sum", 3, 3, 0, 0, false, true, {1, 3, 2}, {0}, {1, 2, 0}, 0.66524095577482178},
    {"of the chosen only", 3, 2, 0, 0, false, true, {1, 3, 2}, {0}, {1, 2}, 0.73105857863000490},
    {"a bias chooses only", 4, 2, 0, 0, true, true, {0, 1, 2, 3}, {10, 0, 0, 0}, {0, 3}, 0.34421652573},
    {"the best group by two experts", 6, 2, 3, 1, true, false, {3, -9, 1, 1.5, 2, -9}, {0}, {3, 2}, 0.8175744761936437},
    {"equal groups by number", 6, 2, 3, 2, true, false, {1, 2, 1, 2, 2, 1}, {0}, {1, 3}, 0.8807970779778823},
    {"a group of one", 3, 1, 3, 1, true, false, {1, 2, 1}, {0}, {1}, 0.8807970779778823},
    {"NaN last", 3, 3, 0, 0, true, false, {NAN, 1, 2}, {0}, {2, 1, 0}, 0.8807970779778823},
    {"groups with NaN last", 6, 2, 3, 1, true, false, {NAN, 9, NAN, 9, -3, -2}, {0}, {5, 4}, 0.11920292202211755},
    {"limits", 3, 3, 0, 0, true, false, {0, INFINITY, -INFINITY}, {0}, {1, 0, 2}, 1},
    {"no score at all", 3, 2, 0, 0, true, true, {-INFINITY, -INFINITY, -INFINITY}, {0}, {0, 1}, 0},
    {"a softmax of Inf", 3, 2, 0, 0, false, true, {0, INFINITY, 1}, {0}, {0, 1}, NAN},
    {"a softmax of NaN", 4, 2, 2, 1, false, false, {0, NAN, 1, 2}, {0}, {0, 1}, NAN},
    {"an infinite bias", 3, 2, 0, 0, false, false, {0, 0, 0}, {0, -INFINITY, NAN}, {0, 1}, 1.0 / 3},
};

static void check_by_hand(const struct by_hand *h, bool device)
{
    const int64_t s[] = {1, 1, h->experts, h->chosen, h->groups, h->top_groups};
    const struct router r = {
        .sigmoid = h->sigmoid, .norm = h->norm, .bias = true, .scale = 1, .grouped = h->groups > 0};
    struct optest t;

    begin_route(&t, SH_F32, SH_F32, s, &r);
    optest_set(&t.call.in[0], 0, 1);
    for (int e = 0; e < h->experts; e++) {
        optest_set(&t.call.in[1], e, h->logits[e]);
        optest_set(&t.call.in[2], e, h->bias[e]);
    }
    run_on(&t, device);
    for (int j = 0; j < h->chosen; j++)
        if ((int)optest_get(&t.call.out[1], j) != h->expert[j])
            fail_msg("%s, device %d: slot %d has expert %g, not %d", h->what, device, j, optest_get(&t.call.out[1], j),
                     h->expert[j]);
    double weight = optest_get(&t.call.out[0], 0);
    if (isnan(h->weight) ? !isnan(weight) : !(fabs(weight - h->weight) < 1e-6))
        fail_msg("%s, device %d: the weight is %.9g, not %.9g", h->what, device, weight, h->weight);
    optest_end(&t);
}

/* By turn, from row to row, with the weights of their scores. */
void moe_experts_take_turns(void **state)
{
    const struct router r = {.scale = 1, .norm = true};
    const int64_t shape[] = {4, 3, 5, 2, 1, 1};

    (void)state;
    optest_seed(25);
    for (int d = 0; d < 2; d++) {
        struct optest t;
        begin_route(&t, SH_F32, SH_F32, shape, &r);
        t.attr.route.forced = true;
        run_on(&t, d);
        for (int i = 0; i < 8; i++)
            assert_int_equal((int)optest_get(&t.call.out[1], i), i % 5);
        for (int n = 0; n < 4; n++)
            assert_true(fabs(optest_get(&t.call.out[0], 2 * n) + optest_get(&t.call.out[0], 2 * n + 1) - 1) < 1e-6);
        optest_end(&t);
    }
}

/* More experts than the best groups have, groups that do not divide them, too many of either. */
void moe_route_refuses(void **state)
{
    static const int64_t shapes[][6] = {
        {1, 1, 4, 3, 2, 1}, {1, 1, 5, 1, 2, 1}, {1, 1, 4, 1, 2, 3}, {1, 1, 130, 1, 65, 1}, {1, 1, 2, 3, 0, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct router r = {.scale = 1, .grouped = true};
        struct optest t;
        begin_route(&t, SH_F32, SH_F32, shapes[i], &r);
        assert_int_equal(moe.table->run[SH_OP_ROUTE](&t.call), SH_E_BUG);
        optest_end(&t);
    }
}

void moe_route_by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
        check_by_hand(&by_hand[i], false);
        check_by_hand(&by_hand[i], true);
    }
}

/* What an objective is of: a forward, the gradients of its output 0, and for routers f_e, which is a constant. */
static struct {
    struct optest *f;
    const struct sh_operand *g;
    const double *share;
} of;

/* g weight + both losses; share: that of the forward at the start. */
static double route_objective(void)
{
    struct optest *f = of.f;
    const struct sh_op_attr *a = &f->attr;
    const struct sh_operand *score = &f->call.out[2];
    int64_t E = a->route.experts, N = optest_elems(score) / E;
    double aux = 0, z = 0;

    optest_run(f, &sh_kernels_ref, 1);
    for (int64_t n = 0; n < N; n++) {
        double all = 0, lse = a->route.z != 0 ? optest_get(&f->call.out[3], n) : 0;
        for (int64_t e = 0; e < E; e++)
            all += optest_get(score, n * E + e);
        for (int64_t e = 0; e < E; e++)
            aux += of.share[e] * optest_get(score, n * E + e) / all;
        z += lse * lse;
    }
    return gradient_dot(of.g, &f->call.out[0]) +
           f->scalars.router_scale * ((double)a->route.aux * (double)E * aux + (double)a->route.z * z);
}

static void check_route_gradient(const int64_t *s, const struct router *r)
{
    struct optest f, b;
    double *share = calloc((size_t)s[2], sizeof *share);

    begin_route(&f, SH_F64, SH_F64, s, r);
    optest_run(&f, &sh_kernels_ref, 1);
    for (int64_t i = 0; i < s[0] * s[3]; i++)
        share[(int)optest_get(&f.call.out[1], i)] += 1 / (double)(s[0] * s[3]);
    begin_route_bwd(&b, &f, SH_F64, s, r);
    optest_run(&b, &sh_kernels_ref, 1);
    of.f = &f, of.g = &b.call.in[0], of.share = share;
    for (int in = 0; in < 2; in++)
        gradient_check(&f.call.in[in], &b.call.out[in], route_objective);
    optest_end(&f);
    optest_end(&b);
    free(share);
}

void moe_route_gradient(void **state)
{
    static const int64_t shapes[][6] = {{5, 3, 6, 2, 3, 2}, {2, 4, 3, 3, 1, 1}, {1, 2, 4, 1, 4, 2}};

    (void)state;
    optest_seed(22);
    for (int s = 0; s < 3; s++)
        for (int r = 0; r < ROUTERS; r++)
            check_route_gradient(shapes[s], &routers[r]);
}

/* --- rows --- */

/* Tokens, experts, chosen, how experts are drawn; each with rows of that width. */
enum draw { ANY, ONE_ONLY, FEW };
static const struct plan {
    int64_t N, E, k, C;
    enum draw draw;
} plans[] = {
    {1, 1, 1, 1, ANY},    {1, 7, 7, 5, ANY},     {3, 5, 2, 17, ONE_ONLY},  {33, 6, 3, 33, FEW},
    {130, 60, 4, 8, ANY}, {65, 3, 2, 1025, ANY}, {70, 8, 2, 40, ONE_ONLY},
};
enum { PLANS = sizeof plans / sizeof *plans };

/* Different experts for each token. ONE_ONLY: all tokens have the same; FEW: half of the experts get nothing. */
static void begin_plan(struct optest *t, const struct plan *p)
{
    int64_t among = p->draw == ONE_ONLY ? p->k : p->draw == FEW ? p->E / 2 : p->E;

    optest_begin(t, SH_OP_ROUTE_PLAN);
    t->attr.route.experts = (int)p->E;
    t->attr.route.chosen = (int)p->k;
    optest_in(t, 0, SH_I32, DIMS(p->N, p->k));
    for (int64_t n = 0; n < p->N; n++) {
        int64_t at = optest_int(0, among);
        for (int64_t j = 0; j < p->k; j++)
            optest_set(&t->call.in[0], n * p->k + j, (double)(p->draw == ONE_ONLY ? p->E - 1 - j : (at + j) % among));
    }
    optest_out(t, 0, SH_I32, DIMS(p->N * p->k));
    optest_out(t, 1, SH_I32, DIMS(p->N, p->k));
    optest_out(t, 2, SH_I32, DIMS(p->E + 1));
}

/* The same plan, after it has run. */
static void run_plan(struct optest *t, const struct plan *p)
{
    begin_plan(t, p);
    optest_run(t, &sh_kernels_ref, 1);
}

/* A row's expert and entry are not less than those of the row before; place is the inverse. */
static void check_plan(const struct plan *p)
{
    const struct sh_bound exact[3] = {{0, 0}};
    const struct sh_operand *order, *first;
    struct optest t;

    begin_plan(&t, p);
    compare(&t, 3, exact, -1, -1);
    moe.run(&t);
    order = &t.call.out[0], first = &t.call.out[2];
    assert_true(optest_get(first, 0) == 0 && optest_get(first, p->E) == (double)(p->N * p->k));
    for (int64_t e = 0; e < p->E; e++)
        for (int64_t r = (int64_t)optest_get(first, e); r < (int64_t)optest_get(first, e + 1); r++) {
            int64_t entry = (int64_t)optest_get(order, r);
            assert_true(optest_get(&t.call.in[0], entry) == (double)e);
            assert_true(optest_get(&t.call.out[1], entry) == (double)r);
            assert_true(r == (int64_t)optest_get(first, e) || optest_get(order, r - 1) < (double)entry);
        }
    optest_end(&t);
}

/* What is no expert: refused by a host; a device that cannot say so still makes a permutation. */
static void check_damaged_choice(const struct plan *p)
{
    int64_t M = p->N * p->k, seen = 0;
    struct optest t;

    begin_plan(&t, p);
    optest_set(&t.call.in[0], 0, (double)p->E);
    optest_set(&t.call.in[0], M - 1, -1);
    if (moe.refuses) {
        t.call.work_bytes = moe.table->work_bytes(&t.call, 2);
        t.call.work = calloc(1, (size_t)t.call.work_bytes);
        assert_int_equal(moe.table->run[SH_OP_ROUTE_PLAN](&t.call), SH_E_BUG);
        free(t.call.work);
    } else {
        moe.run(&t);
        for (int64_t i = 0; i < M; i++)
            seen += (int64_t)optest_get(&t.call.out[0], (int64_t)optest_get(&t.call.out[1], i)) == i;
        assert_true(seen == M && optest_get(&t.call.out[2], p->E) == (double)M);
    }
    optest_end(&t);
}

static void check_load(const struct plan *p, bool add)
{
    const struct sh_bound exact = {0, 0};
    struct optest f, t;

    run_plan(&f, p);
    optest_begin(&t, SH_OP_ROUTE_LOAD);
    gradient_give(&t, 0, &f.call.out[2]);
    optest_out(&t, 0, SH_F64, DIMS(p->E));
    if (add)
        optest_add_to(&t, 0);
    compare(&t, 1, &exact, -1, -1);
    optest_end(&f);
    optest_end(&t);
}

static void check_losses(const struct plan *p, bool sigmoid, bool add)
{
    const struct sh_bound bound = {1e-12, 1e-12};
    struct optest f, t;

    run_plan(&f, p);
    optest_begin(&t, SH_OP_ROUTE_LOSS);
    t.attr.route.experts = (int)p->E;
    t.attr.route.aux = 0.5f;
    t.attr.route.z = sigmoid ? 0 : 0.25f;
    t.attr.route.sigmoid = sigmoid;
    optest_in(&t, 0, SH_F32, DIMS(p->N, p->E));
    for (int64_t i = 0; i < p->N * p->E; i++)
        optest_set(&t.call.in[0], i, optest_int(1, 9) / 8.0);
    gradient_give(&t, 1, &f.call.out[2]);
    if (!sigmoid)
        optest_in(&t, 2, SH_F32, DIMS(p->N));
    optest_out(&t, 0, SH_F64, DIMS(2));
    if (add)
        optest_add_to(&t, 0);
    compare(&t, 1, &bound, -1, -1);
    optest_end(&f);
    optest_end(&t);
}

/* Two rows, two experts, of which the first has one choice and the second three: shares 1/4 and 3/4. */
void moe_losses_by_hand(void **state)
{
    static const double score[] = {0.5, 0.25, 0.25, 0.75}, first[] = {0, 1, 4}, lse[] = {2, -1};
    static const double right[2][2] = {
        {0.5 * 2 * ((0.125 + 0.1875) + (0.0625 + 0.5625)), 0.25 * (4 + 1)},
        {0.5 * 2 * ((0.125 + 0.1875) / 0.75 + (0.0625 + 0.5625)), 0.25 * (4 + 1)},
    };

    (void)state;
    for (int d = 0; d < 4; d++) {
        struct optest t;
        optest_begin(&t, SH_OP_ROUTE_LOSS);
        t.attr.route.experts = 2, t.attr.route.aux = 0.5f, t.attr.route.z = 0.25f, t.attr.route.sigmoid = d / 2;
        optest_in(&t, 0, SH_F32, DIMS(2, 2));
        optest_in(&t, 1, SH_I32, DIMS(3));
        optest_in(&t, 2, SH_F32, DIMS(2));
        optest_out(&t, 0, SH_F64, DIMS(2));
        for (int i = 0; i < 4; i++)
            optest_set(&t.call.in[0], i, score[i]);
        for (int i = 0; i < 3; i++)
            optest_set(&t.call.in[1], i, first[i]);
        for (int i = 0; i < 2; i++)
            optest_set(&t.call.in[2], i, lse[i]);
        run_on(&t, d % 2);
        for (int i = 0; i < 2; i++)
            assert_true(fabs(optest_get(&t.call.out[0], i) - right[d / 2][i]) < 1e-12);
        optest_end(&t);
    }
}

/* Loads 1, 3, 2 of mean 2; the biases 1/2, 0, 1/4 become 5/8, -1/8, 1/4, whose mean is 1/4. */
void moe_bias_by_hand(void **state)
{
    static const double load[] = {1, 3, 2}, was[] = {0.5, 0, 0.25}, is[] = {0.375, -0.375, 0};

    (void)state;
    for (int d = 0; d < 2; d++) {
        struct optest t;
        optest_begin(&t, SH_OP_ROUTE_BIAS);
        t.attr.route.step = 0.125f;
        optest_in(&t, 0, SH_F64, DIMS(3));
        optest_out(&t, 0, SH_F32, DIMS(3));
        for (int e = 0; e < 3; e++)
            optest_set(&t.call.in[0], e, load[e]), optest_set(&t.call.out[0], e, was[e]);
        run_on(&t, d);
        for (int e = 0; e < 3; e++)
            assert_true(optest_get(&t.call.out[0], e) == is[e]);
        optest_end(&t);
    }
}

/* Sorted rows that are near: some, or none, behind two rows of near that are others'. */
enum { BEFORE_NEAR = 2 };
struct near {
    int32_t begin, first[3];
    int64_t n;
    struct sh_operand at, groups;
};

static struct near draw_near(int64_t rows)
{
    int32_t begin = (int32_t)optest_int(0, rows), n = (int32_t)optest_int(0, rows - begin + 1);

    return (struct near){.begin = begin, .n = n, .first = {BEFORE_NEAR, BEFORE_NEAR + n / 2, BEFORE_NEAR + n}};
}

/* Inputs i and i + 1. */
static void give_near(struct optest *t, int i, struct near *near)
{
    near->at = (struct sh_operand){.data = &near->begin, .dtype = SH_I32, .ndim = 1, .dim = {1}};
    near->groups = (struct sh_operand){.data = near->first, .dtype = SH_I32, .ndim = 1, .dim = {3}};
    gradient_give(t, i, &near->at);
    gradient_give(t, i + 1, &near->groups);
}

static bool is_near(const struct near *near, int64_t row)
{
    return near && row >= near->begin && row < near->begin + near->n;
}

/* x [N,C], or [N k,C], whose rows come in the order of their entries. */
static void check_gather(enum sh_dtype type, int64_t N, int64_t C, const struct sh_operand *order, struct near *near)
{
    const struct sh_bound exact[2] = {{0, 0}};
    struct optest t;

    optest_begin(&t, SH_OP_ROW_GATHER);
    optest_in(&t, 0, type, DIMS(N, C));
    gradient_give(&t, 1, order);
    optest_out(&t, 0, type, DIMS(order->dim[0], C));
    if (near) {
        give_near(&t, 2, near);
        optest_out(&t, 1, type, DIMS(BEFORE_NEAR + near->n + 1, C));
    }
    compare(&t, near ? 2 : 1, exact, -1, -1);
    moe.run(&t);
    for (int64_t i = 0, k = order->dim[0] / N; i < optest_elems(&t.call.out[0]); i++) {
        int64_t row = (int64_t)optest_get(order, i / C) / k, to = i / C;
        bool there = is_near(near, to);

        to = there ? to - near->begin + BEFORE_NEAR : to;
        assert_true(optest_get(&t.call.out[there], to * C + i % C) == optest_get(&t.call.in[0], row * C + i % C));
    }
    optest_end(&t);
}

/* Where rows are near, nothing reads ys. */
static void check_sum(enum sh_dtype act, const struct plan *p, bool addend, const struct sh_operand *place,
                      struct near *near)
{
    const struct sh_bound sum = sh_bound_sum(act, (double)p->k + 1);
    struct optest t;

    optest_begin(&t, SH_OP_ROW_SUM);
    optest_in(&t, 0, act, DIMS(p->N * p->k, p->C));
    gradient_give(&t, 1, place);
    if (addend)
        optest_in(&t, 2, act, DIMS(p->N, p->C));
    if (near) {
        optest_in(&t, 3, act, DIMS(BEFORE_NEAR + near->n + 1, p->C));
        give_near(&t, 4, near);
    }
    for (int64_t i = 0; i < optest_elems(&t.call.in[0]); i++)
        if (is_near(near, i / p->C))
            optest_set(&t.call.in[0], i, NAN);
    optest_out(&t, 0, act, DIMS(p->N, p->C));
    compare(&t, 1, &sum, addend ? 2 : -1, 0);
    moe.run(&t);
    for (int64_t i = 0; i < optest_elems(&t.call.out[0]); i++)
        assert_true(isfinite(optest_get(&t.call.out[0], i)));
    optest_end(&t);
}

static void check_rows(enum sh_dtype act, const struct plan *p, bool addend)
{
    struct near near = draw_near(p->N * p->k);
    struct optest f;

    run_plan(&f, p);
    for (int some = 0; some < 2; some++) {
        check_gather(act, p->N, p->C, &f.call.out[0], some ? &near : NULL);
        check_gather(act, p->N * p->k, 1, &f.call.out[0], some ? &near : NULL);
        check_gather(act, p->N, 1, &f.call.out[0], some ? &near : NULL);
        check_sum(act, p, addend, &f.call.out[1], some ? &near : NULL);
    }
    optest_end(&f);
}

/* sum of g gather(x) = sum of x ROW_SUM(g): they are each other's backward. */
static void check_each_others_backward(const struct plan *p)
{
    struct optest f, a, b;
    double one = 0, other = 0;

    run_plan(&f, p);
    optest_begin(&a, SH_OP_ROW_GATHER);
    optest_begin(&b, SH_OP_ROW_SUM);
    optest_in(&a, 0, SH_F64, DIMS(p->N, p->C));
    gradient_give(&a, 1, &f.call.out[0]);
    optest_out(&a, 0, SH_F64, DIMS(p->N * p->k, p->C));
    optest_in(&b, 0, SH_F64, DIMS(p->N * p->k, p->C));
    gradient_give(&b, 1, &f.call.out[1]);
    optest_out(&b, 0, SH_F64, DIMS(p->N, p->C));
    optest_run(&a, &sh_kernels_ref, 1);
    optest_run(&b, &sh_kernels_ref, 1);
    for (int64_t i = 0; i < p->N * p->k * p->C; i++)
        one += optest_get(&a.call.out[0], i) * optest_get(&b.call.in[0], i);
    for (int64_t i = 0; i < p->N * p->C; i++)
        other += optest_get(&b.call.out[0], i) * optest_get(&a.call.in[0], i);
    assert_true(fabs(one - other) <= 1e-9 * (1 + fabs(one)));
    optest_end(&f);
    optest_end(&a);
    optest_end(&b);
}

void moe_rows(void **state)
{
    (void)state;
    optest_seed(23);
    for (int p = 0; p < PLANS; p++) {
        check_plan(&plans[p]);
        check_damaged_choice(&plans[p]);
        check_each_others_backward(&plans[p]);
        for (int add = 0; add < 2; add++) {
            check_load(&plans[p], add);
            for (int sigmoid = 0; sigmoid < 2; sigmoid++)
                check_losses(&plans[p], sigmoid, add);
            for (int a = 0; a < moe.n_acts; a++)
                check_rows(acts[a], &plans[p], add);
        }
    }
}

/* --- products of the experts --- */

/* Rows, with more, not a number, that belong to no expert. */
enum { SPARE = 3 };

static void in_with_spare_rows(struct optest *t, int i, enum sh_dtype act, const struct plan *p, int64_t width)
{
    optest_in(t, i, act, DIMS(p->N * p->k + SPARE, width));
    for (int64_t n = p->N * p->k * width; n < optest_elems(&t->call.in[i]); n++)
        optest_set(&t->call.in[i], n, NAN);
}

/* A multiple of 8 if C is one, which tensor cores want. */
static int64_t outs_of(const struct plan *p)
{
    return p->C % 8 ? p->C / 2 + 1 : p->C / 16 * 8 + 8;
}

/* Groups of rows, several for each expert: the first two rows belong to none, and many groups are empty. */
enum { MOST_GROUPS = 512, BEFORE = 2 };
struct groups {
    int32_t first[MOST_GROUPS + 1];
    struct sh_operand operand;
};

static struct sh_operand *groups_operand(struct groups *g, int64_t n)
{
    g->operand = (struct sh_operand){.data = g->first, .dtype = SH_I32, .ndim = 1, .dim = {n + 1}};
    return &g->operand;
}

static const struct sh_operand *draw_groups(struct groups *g, const struct plan *p, int64_t sources)
{
    int64_t n = p->E * sources, rows = p->N * p->k, begin = rows < BEFORE ? 0 : BEFORE;

    assert_true(n <= MOST_GROUPS);
    for (int64_t i = 0; i <= n; i++) {
        g->first[i] = (int32_t)begin;
        if (i == n - 1 || optest_int(0, 3) == 0)
            begin += i == n - 1 ? rows - begin : optest_int(0, 2 * rows / n + 2);
        begin = begin < rows ? begin : rows;
    }
    return groups_operand(g, n);
}

/* Only the groups from `begin` on, less than `end`, keep their rows. */
static const struct sh_operand *only(struct groups *to, const struct sh_operand *first, int64_t begin, int64_t end)
{
    int64_t n = optest_elems(first) - 1;

    for (int64_t i = 0; i <= n; i++)
        to->first[i] = (int32_t)optest_get(first, i < begin ? begin : i < end ? i : end);
    return groups_operand(to, n);
}

static void begin_expert(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, const struct plan *p,
                         const struct sh_operand *first)
{
    int64_t wide = kind == SH_OP_EXPERT_LINEAR ? p->C : outs_of(p);

    optest_begin(t, kind);
    in_with_spare_rows(t, 0, act, p, wide);
    gradient_give(t, 1, first);
    optest_in(t, 2, act, DIMS(p->E, outs_of(p), p->C));
    optest_scale(&t->call.in[2], 1 / sqrt((double)wide));
    optest_out(t, 0, act, DIMS(p->N * p->k + SPARE, kind == SH_OP_EXPERT_LINEAR ? outs_of(p) : p->C));
}

static void begin_expert_w(struct optest *t, enum sh_dtype act, enum sh_dtype sums, const struct plan *p,
                           const struct sh_operand *first)
{
    optest_begin(t, SH_OP_EXPERT_LINEAR_BWD_W);
    in_with_spare_rows(t, 0, act, p, outs_of(p));
    in_with_spare_rows(t, 1, act, p, p->C);
    gradient_give(t, 2, first);
    optest_out(t, 0, sums, DIMS(p->E, outs_of(p), p->C));
}

static void check_experts(enum sh_dtype act, const struct plan *p, const struct sh_operand *first, bool add)
{
    const struct sh_bound rows = sh_bound_sum(act, (double)p->C),
                          sums = sh_bound_sum(SH_F32, 4.0 * (double)(p->N * p->k));
    struct optest t;

    for (int kind = SH_OP_EXPERT_LINEAR; kind <= SH_OP_EXPERT_LINEAR_BWD_X; kind++) {
        begin_expert(&t, (enum sh_op_kind)kind, act, p, first);
        compare(&t, 1, &rows, -1, -1);
        optest_end(&t);
    }
    begin_expert_w(&t, act, SH_F32, p, first);
    if (add)
        optest_add_to(&t, 0);
    compare(&t, 1, &sums, -1, -1);
    optest_end(&t);
}

/* Give input i of a call other numbers of the same shape. */
static void set_ints(struct optest *t, int i, const struct sh_operand *from)
{
    memcpy(t->call.in[i].data, from->data, (size_t)optest_elems(from) * sizeof(int32_t));
}

/* A group's rows have the bits that they have alone. */
static void check_alone(enum sh_op_kind kind, enum sh_dtype act, const struct plan *p, const struct sh_operand *first)
{
    struct groups alone;
    struct optest all, t;

    begin_expert(&all, kind, act, p, first);
    optest_copy(&t, &all);
    moe.run(&all);
    for (int64_t g = 0; g + 1 < optest_elems(first); g++) {
        set_ints(&t, 1, only(&alone, first, g, g + 1));
        moe.run(&t);
    }
    optest_same(&all, &t, 0);
    optest_end(&all);
    optest_end(&t);
}

/* Groups are added in their order: one after the other has the same sums. */
static void check_order(enum sh_dtype act, const struct plan *p, const struct sh_operand *first)
{
    struct groups part;
    struct optest all, t;

    begin_expert_w(&all, act, SH_F32, p, first);
    optest_copy(&t, &all);
    moe.run(&all);
    for (int64_t g = 0; g + 1 < optest_elems(first); g += p->E) {
        set_ints(&t, 2, only(&part, first, g, g + p->E));
        moe.run(&t);
        t.attr.accumulate = 1;
    }
    for (int64_t i = 0; i < optest_elems(&all.call.out[0]); i++)
        assert_true(optest_get(&all.call.out[0], i) == optest_get(&t.call.out[0], i));
    optest_end(&all);
    optest_end(&t);
}

/* Three experts with two groups each, of which the last expert has no rows; a row before them, and one behind. */
void moe_groups_by_hand(void **state)
{
    static const int32_t first[] = {1, 2, 4, 4, 4, 5, 5};
    static const double x[] = {NAN, 2, 3, 4, 5, NAN}, w[] = {10, 100, 1000}, y[] = {-1, 20, 300, 400, 500, -1};
    static const double dw[] = {4, 9 + 16 + 25, 0};
    const struct sh_operand groups = {.data = (void *)first, .dtype = SH_I32, .ndim = 1, .dim = {7}};

    (void)state;
    for (int run = 0; run < 4; run++)
        for (int kind = SH_OP_EXPERT_LINEAR; kind <= SH_OP_EXPERT_LINEAR_BWD_W; kind++) {
            bool of_w = kind == SH_OP_EXPERT_LINEAR_BWD_W, add = run > 1;
            struct optest t;
            optest_begin(&t, (enum sh_op_kind)kind);
            optest_in(&t, 0, SH_F32, DIMS(6, 1));
            for (int i = 0; i < 6; i++)
                optest_set(&t.call.in[0], i, x[i]);
            if (of_w) {
                gradient_give(&t, 1, &t.call.in[0]);
            } else {
                optest_in(&t, 2, SH_F32, DIMS(3, 1, 1));
                for (int e = 0; e < 3; e++)
                    optest_set(&t.call.in[2], e, w[e]);
            }
            gradient_give(&t, of_w ? 2 : 1, &groups);
            if (of_w)
                optest_out(&t, 0, SH_F32, DIMS(3, 1, 1));
            else
                optest_out(&t, 0, SH_F32, DIMS(6, 1));
            for (int i = 0; i < optest_elems(&t.call.out[0]); i++)
                optest_set(&t.call.out[0], i, of_w && !add ? NAN : -1);
            t.attr.accumulate = of_w && add;
            run_on(&t, run % 2);
            for (int i = 0; i < optest_elems(&t.call.out[0]); i++)
                assert_true(optest_get(&t.call.out[0], i) == (of_w ? dw[i] - add : y[i]));
            optest_end(&t);
        }
}

/* A wrong plan is refused, not followed. */
static void check_wrong_plan(const struct plan *p)
{
    struct optest plan, t;

    run_plan(&plan, p);
    begin_expert(&t, SH_OP_EXPERT_LINEAR, SH_F32, p, &plan.call.out[2]);
    t.call.work_bytes = moe.table->work_bytes(&t.call, 2);
    t.call.work = calloc(1, (size_t)t.call.work_bytes + 64);
    optest_set(&t.call.in[1], p->E, (double)(p->N * p->k + SPARE + 1));
    assert_int_equal(moe.table->run[SH_OP_EXPERT_LINEAR](&t.call), SH_E_BUG);
    optest_set(&t.call.in[1], 0, -1);
    assert_int_equal(moe.table->run[SH_OP_EXPERT_LINEAR](&t.call), SH_E_BUG);
    optest_set(&t.call.in[1], 0, 0);
    t.call.in[2].dim[0]++; /* experts: as many groups are no multiple of them */
    assert_int_equal(moe.table->run[SH_OP_EXPERT_LINEAR](&t.call), SH_E_BUG);
    free(t.call.work);
    optest_end(&plan);
    optest_end(&t);
}

/* The rows that belong to an expert. */
static struct sh_operand live(const struct sh_operand *t, const struct sh_operand *first)
{
    int64_t begin = (int64_t)optest_get(first, 0), end = (int64_t)optest_get(first, optest_elems(first) - 1);
    struct sh_operand rows = *t;

    rows.data = (double *)t->data + begin * t->dim[1];
    rows.dim[0] = end - begin;
    return rows;
}

/* dy y(x, w) = x dx(dy, w) = w dw(dy, x), since y is linear in both. */
static void check_expert_gradients(const struct plan *p, const struct sh_operand *first)
{
    struct optest y, dx, dw;

    begin_expert(&y, SH_OP_EXPERT_LINEAR, SH_F64, p, first);
    begin_expert(&dx, SH_OP_EXPERT_LINEAR_BWD_X, SH_F64, p, first);
    begin_expert_w(&dw, SH_F64, SH_F64, p, first);
    memcpy(dx.call.in[2].data, y.call.in[2].data, (size_t)optest_elems(&y.call.in[2]) * sizeof(double));
    memcpy(dw.call.in[0].data, dx.call.in[0].data, (size_t)optest_elems(&dx.call.in[0]) * sizeof(double));
    memcpy(dw.call.in[1].data, y.call.in[0].data, (size_t)optest_elems(&y.call.in[0]) * sizeof(double));
    optest_run(&y, &sh_kernels_ref, 1);
    optest_run(&dx, &sh_kernels_ref, 1);
    optest_run(&dw, &sh_kernels_ref, 1);
    struct sh_operand ys = live(&y.call.out[0], first), dys = live(&dx.call.in[0], first);
    struct sh_operand xs = live(&y.call.in[0], first), dxs = live(&dx.call.out[0], first);
    double sum = gradient_dot(&dys, &ys);
    assert_true(fabs(gradient_dot(&xs, &dxs) - sum) <= 1e-9 * (1 + fabs(sum)));
    assert_true(fabs(gradient_dot(&y.call.in[2], &dw.call.out[0]) - sum) <= 1e-9 * (1 + fabs(sum)));
    optest_end(&y);
    optest_end(&dx);
    optest_end(&dw);
}

static void check_row_add(enum sh_dtype act, const struct plan *p)
{
    const struct sh_bound bound = sh_bound_sum(act, 1);
    struct optest plan, t;

    run_plan(&plan, p);
    optest_begin(&t, SH_OP_ROW_ADD);
    for (int i = 0; i < 2; i++)
        in_with_spare_rows(&t, i, act, p, p->C);
    gradient_give(&t, 2, &plan.call.out[2]);
    optest_out(&t, 0, act, DIMS(p->N * p->k + SPARE, p->C));
    compare(&t, 1, &bound, -1, -1);
    optest_end(&plan);
    optest_end(&t);
}

/* order, first: NULL: absent */
static void begin_swiglu(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, enum sh_dtype weight,
                         const struct plan *p, const struct sh_operand *order, const struct sh_operand *first)
{
    int64_t M = p->N * p->k, columns = kind == SH_OP_SWIGLU_ROWS ? 2 * p->C : p->C;

    optest_begin(t, kind);
    if (first)
        in_with_spare_rows(t, 0, act, p, columns), M += SPARE;
    else
        optest_in(t, 0, act, DIMS(M, columns));
    optest_scale(&t->call.in[0], 2);
    optest_in(t, 1, weight, DIMS(M));
    if (order) {
        optest_in_ints(t, 2, 0, 1, DIMS(M));
        memcpy(t->call.in[2].data, order->data, (size_t)optest_elems(order) * sizeof(int32_t));
    }
    if (first)
        gradient_give(t, 3, first);
    optest_out(t, 0, act, DIMS(M, p->C));
}

static void begin_swiglu_bwd(struct optest *t, const struct optest *f, const struct plan *p)
{
    optest_begin(t, f->call.kind == SH_OP_SWIGLU_ROWS ? SH_OP_SWIGLU_ROWS_BWD : SH_OP_SQUARED_RELU_ROWS_BWD);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    for (int64_t n = p->N * p->k * p->C; n < optest_elems(&t->call.in[0]); n++)
        optest_set(&t->call.in[0], n, NAN);
    for (int i = 0; i < 4; i++)
        if (f->call.in[i].ndim)
            gradient_give(t, 1 + i, &f->call.in[i]);
    optest_out(t, 0, f->call.in[0].dtype, f->call.in[0].ndim, f->call.in[0].dim);
    optest_out(t, 1, f->call.in[1].dtype, f->call.in[1].ndim, f->call.in[1].dim);
}

static void check_swiglu(enum sh_op_kind kind, enum sh_dtype act, const struct plan *p, bool ordered, bool bounded)
{
    const struct sh_bound bounds[] = {sh_bound_sum(act, 64), sh_bound_sum(SH_F32, 32.0 * (double)p->C)};
    struct optest plan, f, b;

    run_plan(&plan, p);
    begin_swiglu(&f, kind, act, SH_F32, p, ordered ? &plan.call.out[0] : NULL, bounded ? &plan.call.out[2] : NULL);
    begin_swiglu_bwd(&b, &f, p);
    compare(&f, 1, bounds, -1, -1);
    compare(&b, 2, bounds, -1, -1);
    moe.run(&f);
    for (int64_t i = 0; i < optest_elems(&f.call.out[0]); i++)
        assert_true(isnan(optest_get(&f.call.out[0], i)) == (i >= p->N * p->k * p->C));
    optest_end(&plan);
    optest_end(&f);
    optest_end(&b);
}

static double swiglu_objective(void)
{
    optest_run(of.f, &sh_kernels_ref, 1);
    return gradient_dot(of.g, &of.f->call.out[0]);
}

void moe_swiglu_gradient(void **state)
{
    static const struct plan p = {.N = 3, .E = 4, .k = 2, .C = 5};
    struct optest plan, f, b;

    (void)state;
    optest_seed(25);
    run_plan(&plan, &p);
    for (int i = 0; i < 4; i++) {
        bool ordered = i & 1;
        begin_swiglu(&f, i / 2 ? SH_OP_SQUARED_RELU_ROWS : SH_OP_SWIGLU_ROWS, SH_F64, SH_F64, &p,
                     ordered ? &plan.call.out[0] : NULL, NULL);
        begin_swiglu_bwd(&b, &f, &p);
        optest_run(&b, &sh_kernels_ref, 1);
        of.f = &f, of.g = &b.call.in[0];
        for (int in = 0; in < 2; in++)
            gradient_check(&f.call.in[in], &b.call.out[in], swiglu_objective);
        optest_end(&f);
        optest_end(&b);
    }
    optest_end(&plan);
}

/* Both products of an expert's rows and their gradient, with one group for each expert and with several. */
static void check_products(const struct plan *p)
{
    struct groups groups;
    const struct sh_operand *spread = draw_groups(&groups, p, 3);
    struct optest plan;

    run_plan(&plan, p);
    if (moe.refuses)
        check_wrong_plan(p);
    check_expert_gradients(p, &plan.call.out[2]);
    check_expert_gradients(p, spread);
    for (int a = 0; a < moe.n_acts; a++) {
        check_experts(acts[a], p, &plan.call.out[2], a & 1);
        check_experts(acts[a], p, spread, !(a & 1));
        if (moe.few || (p->E > 8 && !moe.refuses)) /* many launches, which are slow where threads are fibers */
            continue;
        check_alone(SH_OP_EXPERT_LINEAR, acts[a], p, spread);
        check_alone(SH_OP_EXPERT_LINEAR_BWD_X, acts[a], p, spread);
        check_order(acts[a], p, spread);
    }
    optest_end(&plan);
}

/* The first plans, and some whose products are cut into tiles: odd widths; several tiles of rows of two of four experts;
 * more tiles of rows than a band has; two tiles of one expert, for a simulator. */
void moe_experts(void **state)
{
    static const struct plan cut[] = {{.N = 200, .E = 3, .k = 2, .C = 300, .draw = ANY},
                                      {.N = 300, .E = 4, .k = 1, .C = 264, .draw = FEW},
                                      {.N = 60, .E = 40, .k = 1, .C = 144, .draw = ANY},
                                      {.N = 140, .E = 2, .k = 1, .C = 72, .draw = FEW}};
    enum { CUT = sizeof cut / sizeof *cut };

    (void)state;
    optest_seed(24);
    for (int i = 0; i < PLANS + (moe.few ? 1 : CUT); i++) {
        const struct plan *p = i < PLANS ? &plans[i] : &cut[PLANS + CUT - 1 - i];
        if (p->C > 1000 || (moe.few && p->E > 8)) /* the reference is slow; so is a simulator with many tiles */
            continue;
        check_products(p);
    }
}

void moe_swiglu(void **state)
{
    (void)state;
    optest_seed(27);
    for (int i = 0; i < PLANS; i++)
        for (int a = 0; a < moe.n_acts; a++) {
            for (int way = 0; way < 4; way++)
                for (int squares = 0; squares < 2; squares++)
                    check_swiglu(squares ? SH_OP_SQUARED_RELU_ROWS : SH_OP_SWIGLU_ROWS, acts[a], &plans[i], way & 1,
                                 way & 2);
            check_row_add(acts[a], &plans[i]);
        }
}

/* --- waves --- */

enum { MOST_PLACES = 8, MOST_EXPERTS = 32 };

/* What a router chose on each of P ranks, and in which wave each segment travels. N: the most rows of a segment. */
struct journey {
    int64_t P, here, N, k, room, E;
    int32_t first[MOST_PLACES][MOST_EXPERTS + 1];
    int wave[MOST_PLACES][MOST_EXPERTS];
    int waves;
};

/* Case 0: all ranks choose the same experts. Otherwise none draws as its neighbour does. */
static void draw_choices(struct journey *j, int draw)
{
    static const enum draw draws[] = {ONE_ONLY, FEW, ANY};

    for (int64_t from = 0; from < j->P; from++) {
        struct plan p = {.N = j->N, .E = j->E, .k = j->k, .C = 1, .draw = draws[(draw + (draw ? from : 0)) % 3]};
        struct optest plan;

        if (p.draw == FEW && j->E / 2 < j->k)
            p.draw = ANY;
        run_plan(&plan, &p);
        for (int64_t e = 0; e <= j->E; e++)
            j->first[from][e] = (int32_t)optest_get(&plan.call.out[2], e);
        optest_end(&plan);
    }
}

static int64_t segment(const struct journey *j, int64_t from, int64_t e)
{
    return j->first[from][e + 1] - j->first[from][e];
}

/* The waves of the segments for one rank; how many there are. */
static int deal_out(struct journey *j, int64_t to)
{
    int64_t left = j->room;
    int wave = 0;

    for (int64_t i = 0; i < j->here * j->P; i++) {
        int64_t e = to * j->here + i / j->P, from = i % j->P;
        if (segment(j, from, e) > left)
            wave++, left = j->room;
        left -= segment(j, from, e);
        j->wave[from][e] = wave;
    }
    return wave + 1;
}

static int64_t most_waves(const struct journey *j)
{
    int64_t T = j->P * j->N * (j->k < j->here ? j->k : j->here);
    int64_t one = (T - 1) / (j->room - j->N + 1), other = 2 * T / (j->room + 1);

    return (one < other ? one : other) + 1;
}

/* The rows of a part lie end to end: from that of its first segment to the end of its last. */
static void check_part(const struct journey *j, const struct sh_operand *parts, int64_t from, int64_t to, int wave)
{
    int64_t begin = 0, end = 0, rows = 0, part = from * j->P + to;

    for (int64_t e = to * j->here; e < (to + 1) * j->here; e++)
        if (j->wave[from][e] == wave && segment(j, from, e)) {
            begin = rows ? begin : j->first[from][e];
            end = j->first[from][e + 1];
            rows += segment(j, from, e);
        }
    assert_int_equal(rows, end - begin);
    assert_true(optest_get(parts, part) == (double)rows);
    assert_true(optest_get(parts, j->P * j->P + part) == (double)begin);
}

static void check_groups(const struct journey *j, const struct sh_operand *groups, int64_t place, int wave)
{
    int64_t rows = 0, g = 0;

    assert_true(optest_get(groups, 0) == 0);
    for (int64_t from = 0; from < j->P; from++)
        for (int64_t e = place * j->here; e < (place + 1) * j->here; e++) {
            rows += j->wave[from][e] == wave ? segment(j, from, e) : 0;
            assert_true(optest_get(groups, ++g) == (double)rows);
        }
    assert_true(g + 1 == optest_elems(groups) && rows <= j->room);
}

/* Both numbers are added to those before. */
static void check_used(const struct journey *j, const struct sh_operand *used, int wave, const double before[2])
{
    int64_t most = 0;

    for (int64_t to = 0; to < j->P; to++) {
        int64_t rows = 0;

        for (int64_t i = 0; i < j->P * j->here; i++)
            rows += j->wave[i % j->P][to * j->here + i / j->P] == wave ? segment(j, i % j->P, to * j->here + i / j->P)
                                                                       : 0;
        most = rows > most ? rows : most;
    }
    assert_true(optest_get(used, 0) == before[0] + (most > 0));
    assert_true(optest_get(used, 1) == before[1] + (double)most);
}

static void check_wave(const struct journey *j, int wave)
{
    const struct sh_bound exact[3] = {{0, 0}};
    int64_t place = optest_int(0, j->P);
    double before[2] = {0, 0};
    struct optest t;

    optest_begin(&t, SH_OP_ROUTE_WAVE);
    t.attr.wave.wave = wave;
    t.attr.wave.place = (int)place;
    t.attr.wave.room = j->room;
    optest_in_ints(&t, 0, 0, 1, DIMS(j->P, j->E + 1));
    for (int64_t i = 0; i < j->P * (j->E + 1); i++)
        optest_set(&t.call.in[0], i, j->first[i / (j->E + 1)][i % (j->E + 1)]);
    optest_out(&t, 0, SH_I32, DIMS(2, j->P, j->P));
    optest_out(&t, 1, SH_I32, DIMS(j->E + 1));
    if (wave % 3)
        optest_out(&t, 2, SH_F64, DIMS(2));
    if (wave % 3 == 2)
        optest_add_to(&t, 2);
    for (int i = 0; wave % 3 == 2 && i < 2; i++)
        before[i] = optest_get(&t.call.out[2], i);
    compare(&t, wave % 3 ? 3 : 2, exact, -1, -1);
    moe.run(&t);
    for (int64_t i = 0; i < j->P * j->P; i++)
        check_part(j, &t.call.out[0], i / j->P, i % j->P, wave);
    if (wave % 3)
        check_used(j, &t.call.out[2], wave, before);
    check_groups(j, &t.call.out[1], place, wave);
    optest_end(&t);
}

/* All waves, and two past the last. */
static void check_journey(struct journey *j, int draw)
{
    j->E = j->P * j->here;
    draw_choices(j, draw);
    j->waves = 0;
    for (int64_t to = 0; to < j->P; to++) {
        int waves = deal_out(j, to);
        j->waves = waves > j->waves ? waves : j->waves;
    }
    assert_true(j->waves <= most_waves(j));
    for (int wave = 0; wave < j->waves + 2; wave++)
        check_wave(j, wave);
}

void moe_waves(void **state)
{
    static const int64_t tokens[] = {1, 7, 40}, heres[] = {1, 3, 4};
    struct journey j;

    (void)state;
    optest_seed(26);
    for (j.P = 1; j.P <= MOST_PLACES; j.P += moe.few ? 3 : 1)
        for (int i = 0; i < 45; i += moe.table == &sh_kernels_cpu ? 1 : 7) { /* GPUs are emulated */
            j.here = heres[i % 3];
            j.N = tokens[i / 3 % 3];
            j.k = i % 2 ? 1 : optest_int(1, j.P * j.here + 1);
            j.room = j.N + (i % 4 ? optest_int(0, 3 * j.N) : 0);
            check_journey(&j, i % 5);
        }
}
