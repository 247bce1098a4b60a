/* The router: one product, then each row's scores and choice. Floor: 2 N C E operations; the rows take E calls of expf
 * and as many comparisons, some percent of it. The C library's expf gives equal logits equal bits wherever they are in
 * a row, which a vectorised loop with a remainder need not. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/gemv.h"
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"

#include <math.h>

/* Where one row's experts come from, and how many are wanted. */
struct choice {
    const float *score, *bias; /* [E]; bias NULL: none */
    int64_t E, k;
    int groups, top_groups;
};

static struct sh_matmul logits_of(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1];
    int64_t E = w->dim[0], C = w->dim[1];

    /* clang-format off */
    return (struct sh_matmul){
        .m = sh_cpu_elems(&call->out[2]) / E, .n = E, .k = C,
        .in_dtype = x->dtype, .out_dtype = SH_F32,
        .a = x->data, .lda = C,
        .b = w->data, .ldb = C, .trans_b = true,
        .c = call->out[2].data, .ldc = E, .bias = call->in[3].data,
    };
    /* clang-format on */
}

int64_t sh_cpu_route_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_matmul g = logits_of(call);

    return sh_gemm_work_bytes(&g, threads);
}

/* From logits to scores, in place; lse: the log of the sum of the logits' exponentials, or NULL. */
static void softmax(float *s, int64_t E, float *lse)
{
    float most = sh_cpu_row_max(s, E), sum = 0;

    for (int64_t e = 0; e < E; e++) {
        s[e] = expf(s[e] - most);
        sum += s[e];
    }
    for (int64_t e = 0; e < E; e++)
        s[e] /= sum;
    if (lse)
        *lse = most + logf(sum);
}

/* The same. */
static void sigmoid(float *s, int64_t E, float *lse)
{
    float most = sh_cpu_row_max(s, E), sum = 0;

    for (int64_t e = 0; e < E; e++) {
        sum += lse ? expf(s[e] - most) : 0;
        s[e] = 1.0f / (1.0f + expf(-s[e]));
    }
    if (lse)
        *lse = most + logf(sum);
}

/* NaN comes last. */
static bool ahead(float a, float b)
{
    return a > b || (isnan(b) && !isnan(a));
}

static float wish(const struct choice *c, int64_t e)
{
    return c->bias ? c->score[e] + c->bias[e] : c->score[e];
}

/* Keep the list [k] in order; the numbers come ascending, so an equal one goes behind. */
static int64_t insert(const struct choice *c, int32_t *list, int64_t have, int64_t e)
{
    float mine = wish(c, e);
    int64_t at = have < c->k ? have : c->k - 1;

    if (have == c->k && !ahead(mine, wish(c, list[at])))
        return have;
    for (; at > 0 && ahead(mine, wish(c, list[at - 1])); at--)
        list[at] = list[at - 1];
    list[at] = (int32_t)e;
    return have < c->k ? have + 1 : have;
}

/* The sum of the two best of a group; of its only one. */
static float group_wish(const struct choice *c, int group)
{
    int64_t size = c->E / c->groups, end = (group + 1) * size, have = 0;
    struct choice two = *c;
    int32_t best[2] = {0, 0};

    two.k = 2;
    for (int64_t e = group * size; e < end; e++)
        have = insert(&two, best, have, e);
    return wish(c, best[0]) + (have == 2 ? wish(c, best[1]) : 0);
}

/* A bit for each group whose experts may be chosen. */
static uint64_t open_groups(const struct choice *c)
{
    float sum[SH_ROUTE_GROUPS];
    uint64_t open = 0;

    for (int g = 0; g < c->groups; g++)
        sum[g] = group_wish(c, g);
    for (int t = 0; t < c->top_groups; t++) {
        int best = -1;
        for (int g = 0; g < c->groups; g++)
            if (!(open >> g & 1) && (best < 0 || ahead(sum[g], sum[best])))
                best = g;
        open |= (uint64_t)1 << best;
    }
    return open;
}

static void choose(const struct choice *c, int32_t *list)
{
    uint64_t open = c->groups ? open_groups(c) : 1;
    int64_t size = c->groups ? c->E / c->groups : c->E, have = 0;

    for (int64_t e = 0; e < c->E; e++)
        if (open >> (e / size) & 1)
            have = insert(c, list, have, e);
}

static void take_turns(const struct choice *c, int64_t n, int32_t *list)
{
    for (int64_t j = 0; j < c->k; j++)
        list[j] = (int32_t)((n * c->k + j) % c->E);
}

/* 1e-20 as in the published models: scores that are all 0 give weights of 0. */
static void weigh(const struct sh_op_call *call, const float *score, const int32_t *list, float *weight)
{
    int64_t k = call->attr->route.chosen;
    float by = call->attr->route.scale, sum = 1e-20f;

    for (int64_t j = 0; j < k; j++)
        sum += score[list[j]];
    if (call->attr->route.norm)
        by /= sum;
    for (int64_t j = 0; j < k; j++)
        weight[j] = by * score[list[j]];
}

static void route_row(const struct sh_op_call *call, int64_t E, int64_t n)
{
    int64_t k = call->attr->route.chosen;
    float *score = (float *)call->out[2].data + n * E;
    float *lse = call->out[3].data ? (float *)call->out[3].data + n : NULL;
    int32_t *list = (int32_t *)call->out[1].data + n * k;
    struct choice c = {.score = score,
                       .bias = call->in[2].data,
                       .E = E,
                       .k = k,
                       .groups = call->attr->route.groups,
                       .top_groups = call->attr->route.top_groups};

    (call->attr->route.sigmoid ? sigmoid : softmax)(score, E, lse);
    if (call->attr->route.forced)
        take_turns(&c, n, list);
    else
        choose(&c, list);
    weigh(call, score, list, (float *)call->out[0].data + n * k);
}

/* Whether any row has k experts to choose from. */
static bool can_choose(const struct sh_op_call *call, int64_t E)
{
    int groups = call->attr->route.groups, top = call->attr->route.top_groups;

    if (!groups)
        return call->attr->route.chosen <= E;
    return groups <= SH_ROUTE_GROUPS && E % groups == 0 && top <= groups &&
           call->attr->route.chosen <= top * (E / groups);
}

sh_rc sh_cpu_route(const struct sh_op_call *call)
{
    struct sh_matmul g = logits_of(call);

    SH_REQUIRE(can_choose(call, g.n));
    if (sh_gemv_takes(&g))
        sh_gemv_run(&g);
    else
        SH_TRY(sh_gemm_run(&g, call->work, call->work_bytes));
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < g.m; n++)
        route_row(call, g.n, n);
    return SH_OK;
}
