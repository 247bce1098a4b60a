/* The operations of a mixture of experts: choices by hand, gradients by finite differences, and the CPU's kernels
 * against the reference. */
#include "kernels/shape.h"
#include "tests/op/agree.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum sh_dtype acts[] = {SH_F32, SH_BF16, SH_F16};
enum { ACTS = 3 };

/* The call is one that its row allows, and the devices agree on it. */
static void compare(const struct optest *t, int n, const struct agree_bound *bound, int alias_in, int alias_out)
{
    char text[SH_MISFIT_TEXT];

    if (sh_shape_misfit(&t->call, text))
        fail_msg("%s: %s", sh_op_info(t->call.kind)->name, text);
    agree(t, n, bound, alias_in, alias_out);
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
    t->scalars.loss_scale = 1 / (double)s[0];
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

static void give(struct optest *to, int i, const struct sh_operand *from)
{
    optest_in(to, i, from->dtype, from->ndim, from->dim);
    memcpy(to->call.in[i].data, from->data, (size_t)(optest_elems(from) * sh_dtype_bytes(from->dtype)));
}

/* The backward for the results of a forward that has run. */
static void begin_route_bwd(struct optest *t, const struct optest *f, enum sh_dtype sums, const int64_t *s,
                            const struct router *r)
{
    optest_begin(t, SH_OP_ROUTE_BWD);
    set_router(t, s, r);
    optest_in(t, 0, f->call.out[0].dtype, DIMS(s[0], s[3]));
    for (int i = 1; i < (r->lse ? 4 : 3); i++)
        give(t, i, &f->call.out[i]);
    for (int i = 0; i < 2; i++)
        give(t, 4 + i, &f->call.in[i]);
    optest_out(t, 0, f->call.in[0].dtype, DIMS(s[0], s[1]));
    optest_out(t, 1, sums, DIMS(s[2], s[1]));
}

static void check_route(enum sh_dtype act, const int64_t *s, const struct router *r)
{
    const struct agree_bound bounds[] = {{0, 0x1p-19}, {0, 0}, {0, 0x1p-19}, {0x1p-20, 0x1p-20}};
    struct optest t;

    begin_route(&t, act, SH_F32, s, r);
    compare(&t, 4, bounds, -1, -1);
    optest_end(&t);
}

static void check_route_bwd(enum sh_dtype act, const int64_t *s, const struct router *r, int way)
{
    struct agree_bound bounds[] = {agree_sum(act, 64.0 * (double)s[2]), agree_sum(SH_F32, 16.0 * (double)s[0])};
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

static void route(void **state)
{
    (void)state;
    optest_seed(21);
    for (int s = 0; s < ROUTE_SHAPES; s++)
        for (int r = 0; r < ROUTERS; r++)
            for (int a = 0; a < ACTS; a++) {
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

static void check_by_hand(const struct by_hand *h, const struct sh_kernel_table *device)
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
    optest_run(&t, device, 2);
    for (int j = 0; j < h->chosen; j++)
        if ((int)optest_get(&t.call.out[1], j) != h->expert[j])
            fail_msg("%s on %s: slot %d has expert %g, not %d", h->what, device->name, j, optest_get(&t.call.out[1], j),
                     h->expert[j]);
    double weight = optest_get(&t.call.out[0], 0);
    if (isnan(h->weight) ? !isnan(weight) : !(fabs(weight - h->weight) < 1e-6))
        fail_msg("%s on %s: the weight is %.9g, not %.9g", h->what, device->name, weight, h->weight);
    optest_end(&t);
}

/* More experts than the best groups have, groups that do not divide them, too many of either. */
static void route_refuses(void **state)
{
    static const int64_t shapes[][6] = {
        {1, 1, 4, 3, 2, 1}, {1, 1, 5, 1, 2, 1}, {1, 1, 4, 1, 2, 3}, {1, 1, 130, 1, 65, 1}, {1, 1, 2, 3, 0, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct router r = {.scale = 1, .grouped = true};
        struct optest t;
        begin_route(&t, SH_F32, SH_F32, shapes[i], &r);
        assert_int_equal(sh_kernels_cpu.run[SH_OP_ROUTE](&t.call), SH_E_BUG);
        optest_end(&t);
    }
}

static void route_by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
        check_by_hand(&by_hand[i], &sh_kernels_ref);
        check_by_hand(&by_hand[i], &sh_kernels_cpu);
    }
}

/* Gradient `grad` of input `in`, against differences of L, as in test_ref.c. g: the gradients of output 0. */
typedef double objective(struct optest *f, const struct sh_operand *g, const double *share);

static void check_gradient(struct optest *f, int in, const struct sh_operand *grad, objective *L,
                           const struct sh_operand *g, const double *share)
{
    const double h = 0x1p-16;

    for (int64_t i = 0; i < optest_elems(&f->call.in[in]); i++) {
        double old = optest_get(&f->call.in[in], i), got = optest_get(grad, i);
        optest_set(&f->call.in[in], i, old + h);
        double up = L(f, g, share);
        optest_set(&f->call.in[in], i, old - h);
        double want = (up - L(f, g, share)) / (2 * h);
        optest_set(&f->call.in[in], i, old);
        if (!(fabs(want - got) <= 1e-6 * (1 + fabs(want))))
            fail_msg("%s: the gradient of input %d element %lld is %.9g, differences give %.9g",
                     sh_op_info(f->call.kind)->name, in, (long long)i, got, want);
    }
}

static double dot(const struct sh_operand *a, const struct sh_operand *b)
{
    double sum = 0;

    for (int64_t i = 0; i < optest_elems(a); i++)
        sum += optest_get(a, i) * optest_get(b, i);
    return sum;
}

/* g weight + both losses; shares: f_e of the forward at the start, which is a constant. */
static double route_objective(struct optest *f, const struct sh_operand *g, const double *share)
{
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
            aux += share[e] * optest_get(score, n * E + e) / all;
        z += lse * lse;
    }
    return dot(g, &f->call.out[0]) +
           f->scalars.loss_scale * ((double)a->route.aux * (double)E * aux + (double)a->route.z * z);
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
    for (int in = 0; in < 2; in++)
        check_gradient(&f, in, &b.call.out[in], route_objective, &b.call.in[0], share);
    optest_end(&f);
    optest_end(&b);
    free(share);
}

static void route_gradient(void **state)
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
    const struct agree_bound exact[3] = {{0, 0}};
    const struct sh_operand *order, *first;
    struct optest t;

    begin_plan(&t, p);
    compare(&t, 3, exact, -1, -1);
    optest_run(&t, &sh_kernels_cpu, 2);
    order = &t.call.out[0], first = &t.call.out[2];
    assert_true(optest_get(first, 0) == 0 && optest_get(first, p->E) == (double)(p->N * p->k));
    for (int64_t e = 0; e < p->E; e++)
        for (int64_t r = (int64_t)optest_get(first, e); r < (int64_t)optest_get(first, e + 1); r++) {
            int64_t entry = (int64_t)optest_get(order, r);
            assert_true(optest_get(&t.call.in[0], entry) == (double)e);
            assert_true(optest_get(&t.call.out[1], entry) == (double)r);
            assert_true(r == (int64_t)optest_get(first, e) || optest_get(order, r - 1) < (double)entry);
        }
    optest_set(&t.call.in[0], 0, (double)p->E);
    t.call.work = calloc(1, (size_t)t.call.work_bytes);
    assert_int_equal(sh_kernels_cpu.run[SH_OP_ROUTE_PLAN](&t.call), SH_E_BUG);
    free(t.call.work);
    optest_end(&t);
}

static void check_load(const struct plan *p, bool add)
{
    const struct agree_bound exact = {0, 0};
    struct optest f, t;

    run_plan(&f, p);
    optest_begin(&t, SH_OP_ROUTE_LOAD);
    give(&t, 0, &f.call.out[2]);
    optest_out(&t, 0, SH_F64, DIMS(p->E));
    if (add)
        optest_add_to(&t, 0);
    compare(&t, 1, &exact, -1, -1);
    optest_end(&f);
    optest_end(&t);
}

/* Loads 1, 3, 2 of mean 2; the biases 1/2, 0, 1/4 become 5/8, -1/8, 1/4, whose mean is 1/4. */
static void bias_by_hand(void **state)
{
    static const double load[] = {1, 3, 2}, was[] = {0.5, 0, 0.25}, is[] = {0.375, -0.375, 0};
    const struct sh_kernel_table *const devices[] = {&sh_kernels_ref, &sh_kernels_cpu};

    (void)state;
    for (int d = 0; d < 2; d++) {
        struct optest t;
        optest_begin(&t, SH_OP_ROUTE_BIAS);
        t.attr.route.step = 0.125f;
        optest_in(&t, 0, SH_F64, DIMS(3));
        optest_out(&t, 0, SH_F32, DIMS(3));
        for (int e = 0; e < 3; e++)
            optest_set(&t.call.in[0], e, load[e]), optest_set(&t.call.out[0], e, was[e]);
        optest_run(&t, devices[d], 2);
        for (int e = 0; e < 3; e++)
            assert_true(optest_get(&t.call.out[0], e) == is[e]);
        optest_end(&t);
    }
}

static void check_rows(enum sh_dtype act, const struct plan *p, bool addend)
{
    const struct agree_bound exact = {0, 0}, sum = agree_sum(act, (double)p->k + 1);
    struct optest f, t;

    run_plan(&f, p);
    optest_begin(&t, SH_OP_ROW_GATHER);
    optest_in(&t, 0, act, DIMS(p->N, p->C));
    give(&t, 1, &f.call.out[0]);
    optest_out(&t, 0, act, DIMS(p->N * p->k, p->C));
    compare(&t, 1, &exact, -1, -1);
    optest_end(&t);
    optest_begin(&t, SH_OP_ROW_SUM);
    optest_in(&t, 0, act, DIMS(p->N * p->k, p->C));
    give(&t, 1, &f.call.out[1]);
    if (addend)
        optest_in(&t, 2, act, DIMS(p->N, p->C));
    optest_out(&t, 0, act, DIMS(p->N, p->C));
    compare(&t, 1, &sum, addend ? 2 : -1, 0);
    optest_end(&f);
    optest_end(&t);
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
    give(&a, 1, &f.call.out[0]);
    optest_out(&a, 0, SH_F64, DIMS(p->N * p->k, p->C));
    optest_in(&b, 0, SH_F64, DIMS(p->N * p->k, p->C));
    give(&b, 1, &f.call.out[1]);
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

static void rows(void **state)
{
    (void)state;
    optest_seed(23);
    for (int p = 0; p < PLANS; p++) {
        check_plan(&plans[p]);
        check_each_others_backward(&plans[p]);
        for (int add = 0; add < 2; add++) {
            check_load(&plans[p], add);
            for (int a = 0; a < ACTS; a++)
                check_rows(acts[a], &plans[p], add);
        }
    }
}

/* --- products of the experts --- */

/* Rows, with three more, not a number, that belong to no expert. */
static void in_with_spare_rows(struct optest *t, int i, enum sh_dtype act, const struct plan *p, int64_t width)
{
    optest_in(t, i, act, DIMS(p->N * p->k + 3, width));
    for (int64_t n = p->N * p->k * width; n < optest_elems(&t->call.in[i]); n++)
        optest_set(&t->call.in[i], n, NAN);
}

static int64_t outs_of(const struct plan *p)
{
    return p->C / 2 + 1;
}

static void begin_expert(struct optest *t, enum sh_op_kind kind, enum sh_dtype act, const struct plan *p,
                         const struct sh_operand *first)
{
    int64_t wide = kind == SH_OP_EXPERT_LINEAR ? p->C : outs_of(p);

    optest_begin(t, kind);
    in_with_spare_rows(t, 0, act, p, wide);
    give(t, 1, first);
    optest_in(t, 2, act, DIMS(p->E, outs_of(p), p->C));
    optest_scale(&t->call.in[2], 1 / sqrt((double)wide));
    optest_out(t, 0, act, DIMS(p->N * p->k + 3, kind == SH_OP_EXPERT_LINEAR ? p->C / 2 + 1 : p->C));
}

static void begin_expert_w(struct optest *t, enum sh_dtype act, enum sh_dtype sums, const struct plan *p,
                           const struct sh_operand *first)
{
    optest_begin(t, SH_OP_EXPERT_LINEAR_BWD_W);
    in_with_spare_rows(t, 0, act, p, outs_of(p));
    in_with_spare_rows(t, 1, act, p, p->C);
    give(t, 2, first);
    optest_out(t, 0, sums, DIMS(p->E, outs_of(p), p->C));
}

static void check_experts(enum sh_dtype act, const struct plan *p, bool add)
{
    const struct agree_bound rows = agree_sum(act, (double)p->C), sums = agree_sum(SH_F32, 4.0 * (double)(p->N * p->k));
    struct optest plan, t;

    run_plan(&plan, p);
    for (int kind = SH_OP_EXPERT_LINEAR; kind <= SH_OP_EXPERT_LINEAR_BWD_X; kind++) {
        begin_expert(&t, (enum sh_op_kind)kind, act, p, &plan.call.out[2]);
        compare(&t, 1, &rows, -1, -1);
        optest_end(&t);
    }
    begin_expert_w(&t, act, SH_F32, p, &plan.call.out[2]);
    if (add)
        optest_add_to(&t, 0);
    compare(&t, 1, &sums, -1, -1);
    optest_end(&t);
    optest_end(&plan);
}

/* A wrong plan is refused, not followed. */
static void check_wrong_plan(const struct plan *p)
{
    struct optest plan, t;

    run_plan(&plan, p);
    begin_expert(&t, SH_OP_EXPERT_LINEAR, SH_F32, p, &plan.call.out[2]);
    t.call.work_bytes = sh_kernels_cpu.work_bytes(&t.call, 2);
    t.call.work = calloc(1, (size_t)t.call.work_bytes + 64);
    optest_set(&t.call.in[1], p->E, (double)(p->N * p->k + 4));
    assert_int_equal(sh_kernels_cpu.run[SH_OP_EXPERT_LINEAR](&t.call), SH_E_BUG);
    optest_set(&t.call.in[1], 0, -1);
    assert_int_equal(sh_kernels_cpu.run[SH_OP_EXPERT_LINEAR](&t.call), SH_E_BUG);
    free(t.call.work);
    optest_end(&plan);
    optest_end(&t);
}

/* The rows that belong to an expert. */
static struct sh_operand live(const struct sh_operand *t, const struct plan *p)
{
    struct sh_operand rows = *t;

    rows.dim[0] = p->N * p->k;
    return rows;
}

/* dy y(x, w) = x dx(dy, w) = w dw(dy, x), since y is linear in both. */
static void check_expert_gradients(const struct plan *p)
{
    struct optest plan, y, dx, dw;

    run_plan(&plan, p);
    begin_expert(&y, SH_OP_EXPERT_LINEAR, SH_F64, p, &plan.call.out[2]);
    begin_expert(&dx, SH_OP_EXPERT_LINEAR_BWD_X, SH_F64, p, &plan.call.out[2]);
    begin_expert_w(&dw, SH_F64, SH_F64, p, &plan.call.out[2]);
    memcpy(dx.call.in[2].data, y.call.in[2].data, (size_t)optest_elems(&y.call.in[2]) * sizeof(double));
    memcpy(dw.call.in[0].data, dx.call.in[0].data, (size_t)optest_elems(&dx.call.in[0]) * sizeof(double));
    memcpy(dw.call.in[1].data, y.call.in[0].data, (size_t)optest_elems(&y.call.in[0]) * sizeof(double));
    optest_run(&y, &sh_kernels_ref, 1);
    optest_run(&dx, &sh_kernels_ref, 1);
    optest_run(&dw, &sh_kernels_ref, 1);
    struct sh_operand ys = live(&y.call.out[0], p), dys = live(&dx.call.in[0], p);
    struct sh_operand xs = live(&y.call.in[0], p), dxs = live(&dx.call.out[0], p);
    double sum = dot(&dys, &ys);
    assert_true(fabs(dot(&xs, &dxs) - sum) <= 1e-9 * (1 + fabs(sum)));
    assert_true(fabs(dot(&y.call.in[2], &dw.call.out[0]) - sum) <= 1e-9 * (1 + fabs(sum)));
    optest_end(&plan);
    optest_end(&y);
    optest_end(&dx);
    optest_end(&dw);
}

static void begin_swiglu(struct optest *t, enum sh_dtype act, enum sh_dtype weight, const struct plan *p,
                         const struct sh_operand *order)
{
    optest_begin(t, SH_OP_SWIGLU_ROWS);
    optest_in(t, 0, act, DIMS(p->N * p->k, 2 * p->C));
    optest_scale(&t->call.in[0], 2);
    optest_in(t, 1, weight, DIMS(p->N, p->k));
    give(t, 2, order);
    optest_out(t, 0, act, DIMS(p->N * p->k, p->C));
}

static void begin_swiglu_bwd(struct optest *t, const struct optest *f, const struct plan *p)
{
    optest_begin(t, SH_OP_SWIGLU_ROWS_BWD);
    optest_in(t, 0, f->call.out[0].dtype, f->call.out[0].ndim, f->call.out[0].dim);
    for (int i = 0; i < 3; i++)
        give(t, 1 + i, &f->call.in[i]);
    optest_out(t, 0, f->call.in[0].dtype, DIMS(p->N * p->k, 2 * p->C));
    optest_out(t, 1, f->call.in[1].dtype, DIMS(p->N, p->k));
}

static void check_swiglu(enum sh_dtype act, const struct plan *p)
{
    const struct agree_bound bounds[] = {agree_sum(act, 64), agree_sum(SH_F32, 32.0 * (double)p->C)};
    struct optest plan, f, b;

    run_plan(&plan, p);
    begin_swiglu(&f, act, SH_F32, p, &plan.call.out[0]);
    begin_swiglu_bwd(&b, &f, p);
    compare(&f, 1, bounds, -1, -1);
    compare(&b, 2, bounds, -1, -1);
    optest_end(&plan);
    optest_end(&f);
    optest_end(&b);
}

static double swiglu_objective(struct optest *f, const struct sh_operand *g, const double *none)
{
    (void)none;
    optest_run(f, &sh_kernels_ref, 1);
    return dot(g, &f->call.out[0]);
}

static void swiglu_gradient(void **state)
{
    static const struct plan p = {.N = 3, .E = 4, .k = 2, .C = 5};
    struct optest plan, f, b;

    (void)state;
    optest_seed(25);
    run_plan(&plan, &p);
    begin_swiglu(&f, SH_F64, SH_F64, &p, &plan.call.out[0]);
    begin_swiglu_bwd(&b, &f, &p);
    optest_run(&b, &sh_kernels_ref, 1);
    for (int in = 0; in < 2; in++)
        check_gradient(&f, in, &b.call.out[in], swiglu_objective, &b.call.in[0], NULL);
    optest_end(&plan);
    optest_end(&f);
    optest_end(&b);
}

/* The first plans, and one whose products are cut into tiles. */
static void experts(void **state)
{
    static const struct plan large = {.N = 200, .E = 3, .k = 2, .C = 300, .draw = ANY};

    (void)state;
    optest_seed(24);
    for (int i = 0; i <= PLANS; i++) {
        const struct plan *p = i < PLANS ? &plans[i] : &large;
        if (p->C > 1000) /* the reference is slow */
            continue;
        check_expert_gradients(p);
        check_wrong_plan(p);
        for (int a = 0; a < ACTS; a++) {
            check_experts(acts[a], p, false);
            check_experts(acts[a], p, true);
        }
    }
    for (int i = 0; i < PLANS; i++)
        for (int a = 0; a < ACTS; a++)
            check_swiglu(acts[a], &plans[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route),           cmocka_unit_test(route_by_hand),
        cmocka_unit_test(route_gradient),  cmocka_unit_test(rows),
        cmocka_unit_test(bias_by_hand),    cmocka_unit_test(experts),
        cmocka_unit_test(swiglu_gradient), cmocka_unit_test(route_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
