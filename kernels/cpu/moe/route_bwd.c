/* The router's backward: the gradients of a row's logits from those of its weights and from the two losses, then both
 * products of the router's linear layer. All in f32, since the gradients of logits are small differences: x and w are
 * widened on the way, x in chunks of rows, whose products are added to dw in order. Floor: 4 N C E operations. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"

#include <omp.h>
#include <string.h>

enum { CHUNK = 1024 }; /* rows */

/* A call's sizes, and the offsets of its scratch in bytes: gradients of logits, shares of experts, w and a chunk of
 * rows in f32, scratch of the products. */
struct route {
    const struct sh_op_call *call;
    int64_t N, C, E, k, chunk;
    int64_t share, w, rows, products, bytes;
};

static struct route route_of(const struct sh_op_call *call, int threads)
{
    const struct sh_operand *w = &call->in[5];
    struct route r = {.call = call, .C = w->dim[1], .E = w->dim[0], .k = call->attr->route.chosen};
    bool wide = w->dtype == SH_F32; /* used where it is */

    r.N = sh_cpu_elems(&call->in[2]) / r.E;
    r.chunk = r.N < CHUNK ? r.N : CHUNK;
    r.share = sh_cpu_round64(r.N * r.E * (int64_t)sizeof(float));
    r.w = r.share + sh_cpu_round64(r.E * (int64_t)sizeof(float));
    r.rows = r.w + (wide ? 0 : sh_cpu_round64(r.E * r.C * (int64_t)sizeof(float)));
    r.products = r.rows + (wide ? 0 : sh_cpu_round64(r.chunk * r.C * (int64_t)sizeof(float)));
    int64_t most = r.chunk > r.E ? r.chunk : r.E;
    struct sh_matmul g = {.m = most, .n = r.C, .k = most, .in_dtype = SH_F32, .out_dtype = SH_F32};
    r.bytes = r.products + sh_gemm_work_bytes(&g, threads);
    return r;
}

int64_t sh_cpu_route_bwd_work_bytes(const struct sh_op_call *call, int threads)
{
    return route_of(call, threads).bytes;
}

static float *scratch(const struct route *r, int64_t at)
{
    return (float *)(void *)((char *)r->call->work + at);
}

/* f_e. One thread: N k small numbers, next to products of N C E. */
static void count_shares(const struct route *r)
{
    const int32_t *expert = r->call->in[1].data;
    float *share = scratch(r, r->share);
    int64_t M = r->N * r->k;

    memset(share, 0, (size_t)r->E * sizeof *share);
    for (int64_t i = 0; i < M; i++)
        share[expert[i]] += 1.0f;
    for (int64_t e = 0; e < r->E; e++)
        share[e] /= (float)M;
}

/* d [E]: the gradients of scores; only those of the chosen are not 0. */
static void through_weights(const struct route *r, int64_t n, float *d)
{
    const float *dweight = (const float *)r->call->in[0].data + n * r->k;
    const float *score = (const float *)r->call->in[2].data + n * r->E;
    const int32_t *expert = (const int32_t *)r->call->in[1].data + n * r->k;
    float sum = 1e-20f, mean = 0, by = r->call->attr->route.scale;

    for (int64_t j = 0; j < r->k; j++)
        sum += score[expert[j]];
    for (int64_t j = 0; j < r->k && r->call->attr->route.norm; j++)
        mean += dweight[j] * (score[expert[j]] / sum);
    if (r->call->attr->route.norm)
        by /= sum;
    memset(d, 0, (size_t)r->E * sizeof *d);
    for (int64_t j = 0; j < r->k; j++)
        d[expert[j]] = by * (dweight[j] - mean);
}

/* The loss aux: p is the score, or a sigmoid's share of the row. */
static void add_aux(const struct route *r, int64_t n, float *d)
{
    const float *score = (const float *)r->call->in[2].data + n * r->E, *share = scratch(r, r->share);
    float by = (float)((double)r->call->attr->route.aux * (double)r->E * r->call->scalars->router_scale);
    float sum = 1, mean = 0;

    if (r->call->attr->route.sigmoid) {
        sum = 1e-20f;
        for (int64_t e = 0; e < r->E; e++)
            sum += score[e];
        mean = sh_cpu_row_dot(share, score, r->E) / sum;
    }
    for (int64_t e = 0; e < r->E; e++)
        d[e] += by * ((share[e] - mean) / sum);
}

/* From the gradients of scores to those of logits, in place; z's comes with the softmax. */
static void through_scores(const struct route *r, int64_t n, float *d)
{
    const float *score = (const float *)r->call->in[2].data + n * r->E, *lse = r->call->in[3].data;
    float z = r->call->attr->route.z, shift = 0;

    if (r->call->attr->route.sigmoid) {
        for (int64_t e = 0; e < r->E; e++)
            d[e] *= score[e] * (1.0f - score[e]);
        return;
    }
    if (z != 0)
        shift = (float)(2 * (double)z * r->call->scalars->router_scale) * lse[n];
    shift -= sh_cpu_row_dot(d, score, r->E);
    for (int64_t e = 0; e < r->E; e++)
        d[e] = score[e] * (d[e] + shift);
}

static void logits_row(const struct route *r, int64_t n)
{
    float *d = scratch(r, 0) + n * r->E;

    through_weights(r, n, d);
    if (r->call->attr->route.aux != 0)
        add_aux(r, n, d);
    through_scores(r, n, d);
}

/* Rows [first, first + rows) of t in f32: its own, or in `room`. */
static const float *wide_rows(const struct sh_operand *t, int64_t first, int64_t rows, int64_t C, float *room)
{
    if (t->dtype == SH_F32)
        return (const float *)t->data + first * C;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; i++)
        sh_cpu_block_load((struct sh_cpu_block){1, C}, room + i * C, C, sh_cpu_at(t->data, t->dtype, (first + i) * C),
                          C, t->dtype);
    return room;
}

/* dx of some rows, in 16 bits: the sums in `from`, plus dres, rounded once. */
static void store_rows(const struct route *r, int64_t first, int64_t rows, float *from)
{
    const struct sh_operand *dres = &r->call->in[6], *dx = &r->call->out[0];
    struct sh_cpu_block row = {1, r->C};

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = (first + i) * r->C;
        if (dres->data)
            sh_cpu_block_add(row, from + i * r->C, r->C, sh_cpu_at(dres->data, dres->dtype, at), r->C, dres->dtype);
        sh_cpu_block_store(row, sh_cpu_at(dx->data, dx->dtype, at), r->C, dx->dtype, from + i * r->C, r->C);
    }
}

static sh_rc product(const struct route *r, const struct sh_matmul *g)
{
    return sh_gemm_run(g, (char *)r->call->work + r->products, r->bytes - r->products);
}

/* dw (+)= d' x of some rows. */
static sh_rc add_dw(const struct route *r, int64_t first, int64_t rows)
{
    float *dw = r->call->out[1].data;
    const float *x = wide_rows(&r->call->in[4], first, rows, r->C, scratch(r, r->rows));
    struct sh_matmul g = {.m = r->E,
                          .n = r->C,
                          .k = rows,
                          .a = scratch(r, 0) + first * r->E,
                          .lda = r->E,
                          .trans_a = true,
                          .b = x,
                          .ldb = r->C,
                          .c = dw,
                          .ldc = r->C,
                          .addend = first || sh_op_adds(r->call, 1) ? dw : NULL};

    return product(r, &g);
}

/* dx = d w + dres of some rows. */
static sh_rc make_dx(const struct route *r, const float *w, int64_t first, int64_t rows)
{
    const struct sh_operand *dres = &r->call->in[6], *dx = &r->call->out[0];
    bool wide = dx->dtype == SH_F32;
    struct sh_matmul g = {.m = rows,
                          .n = r->C,
                          .k = r->E,
                          .a = scratch(r, 0) + first * r->E,
                          .lda = r->E,
                          .b = w,
                          .ldb = r->C,
                          .c = wide ? (float *)dx->data + first * r->C : scratch(r, r->rows),
                          .ldc = r->C,
                          .addend = wide && dres->data ? (const float *)dres->data + first * r->C : NULL};

    SH_TRY(product(r, &g));
    if (!wide)
        store_rows(r, first, rows, scratch(r, r->rows));
    return SH_OK;
}

/* db (+)= the sums of the columns of d: E numbers, next to products of N C E. */
static void add_db(const struct route *r)
{
    const float *d = scratch(r, 0);
    float *db = r->call->out[2].data;

#pragma omp parallel for schedule(static)
    for (int64_t e = 0; e < r->E; e++) {
        double sum = 0;
        for (int64_t n = 0; n < r->N; n++)
            sum += (double)d[n * r->E + e];
        db[e] = (float)(sum + (sh_op_adds(r->call, 2) ? (double)db[e] : 0));
    }
}

sh_rc sh_cpu_route_bwd(const struct sh_op_call *call)
{
    struct route r = route_of(call, omp_get_max_threads());
    const float *w = NULL;

    SH_REQUIRE(call->work_bytes >= r.bytes);
    SH_REQUIRE(call->attr->route.z == 0 || (call->in[3].data && !call->attr->route.sigmoid));
    count_shares(&r);
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < r.N; n++)
        logits_row(&r, n);
    if (call->out[2].data)
        add_db(&r);
    if (call->out[0].data)
        w = wide_rows(&call->in[5], 0, r.E, r.C, scratch(&r, r.w));
    for (int64_t first = 0; first < r.N; first += r.chunk) {
        int64_t rows = r.N - first < r.chunk ? r.N - first : r.chunk;
        if (call->out[1].data)
            SH_TRY(add_dw(&r, first, rows));
        if (w)
            SH_TRY(make_dx(&r, w, first, rows));
    }
    return SH_OK;
}
