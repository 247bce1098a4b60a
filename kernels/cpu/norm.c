/* LayerNorm and RMSNorm, one row at a time; a row stays in the L1 or L2 cache for its second pass. Bytes per element,
 * f32 (bf16: half): forward 8, and 8 more with ADD before it; backward 12 and 4 more with dres, and the partial sums
 * (fold.h). Measured at [16384,768] on one core, where memcpy moves 40 GB/s: f32 40 forward, 33 backward; bf16 17 and
 * 24 GB/s.
 *
 * Scratch holds w and b as f32, and for each thread the rows that are converted from and to 16 bits. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/fold.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/stage.h"

#include <omp.h>
#include <string.h>

enum { FLOAT = sizeof(float), FWD_ROWS = 2, BWD_ROWS = 3 };

/* Floats of one row in scratch: rows start on cache lines, so that no two threads write to the same one. */
static int64_t row_floats(int64_t C)
{
    return sh_cpu_round64(C * FLOAT) / FLOAT;
}

/* In float: a row has a few thousand elements, and 16 lanes accumulate in parallel. */
SH_CLONES static float sum(const float *x, int64_t C)
{
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t c = 0; c < C; c++)
        s += x[c];
    return s;
}

/* Squares of differences, not the difference of squares: the latter loses all digits if the mean is large. */
SH_CLONES static float squares(const float *x, int64_t C, float mean)
{
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t c = 0; c < C; c++)
        s += (x[c] - mean) * (x[c] - mean);
    return s;
}

SH_CLONES static void scale(float *y, const float *x, const float *w, const float *b, float mean, float rstd, int64_t C)
{
    if (b) {
#pragma omp simd
        for (int64_t c = 0; c < C; c++)
            y[c] = (x[c] - mean) * rstd * w[c] + b[c];
    } else {
#pragma omp simd
        for (int64_t c = 0; c < C; c++)
            y[c] = (x[c] - mean) * rstd * w[c];
    }
}

/* The weight as f32, in `room` unless it is f32 already. */
static const float *weight(const struct sh_op_call *call, const struct sh_operand *w, int64_t C, float *room)
{
    const float *as_it_is = sh_cpu_stage_in(w, 0, C, room);

    if (!call->attr->norm.plus_one)
        return as_it_is;
    for (int64_t c = 0; c < C; c++)
        room[c] = 1 + as_it_is[c];
    return room;
}

/* x is staged, so that statistics and result read it from cache. */
static void norm_row(const struct sh_op_call *call, int64_t n, int64_t C, const float *w, const float *b, float *room)
{
    const struct sh_operand *y = &call->out[0], *mean_out = &call->out[2];
    const float *x = sh_cpu_stage_in(&call->in[0], n * C, C, room);
    float *to = sh_cpu_stage_out(y, n * C, C, room + row_floats(C));
    float mean = call->attr->norm.rms ? 0 : sum(x, C) / (float)C;
    float rstd = 1.0f / sqrtf(squares(x, C, mean) / (float)C + call->attr->norm.eps);

    scale(to, x, w, b, mean, rstd, C);
    sh_cpu_stage_put(y, n * C, C, to);
    ((float *)call->out[1].data)[n] = rstd;
    if (mean_out->data)
        ((float *)mean_out->data)[n] = mean;
}

int64_t sh_cpu_norm_work_bytes(const struct sh_op_call *call, int threads)
{
    int64_t C = sh_cpu_elems(&call->in[1]);
    return (2 + (int64_t)threads * FWD_ROWS) * row_floats(C) * FLOAT;
}

/* Row n of ADD. */
static void add_row(const struct sh_op_call *call, int64_t n, int64_t C, float *room)
{
    const struct sh_operand *a = &call->in[0], *b = &call->in[1], *s = &call->out[0];
    struct sh_cpu_block row = {1, C};
    int64_t ahead = (n + 1) * C;

    sh_cpu_prefetch_elems(a, ahead, C);
    sh_cpu_prefetch_elems(b, ahead, C);
    sh_cpu_block_load(row, room, C, sh_cpu_at(a->data, a->dtype, n * C), C, a->dtype);
    sh_cpu_block_add(row, room, C, sh_cpu_at(b->data, b->dtype, n * C), C, b->dtype);
    sh_cpu_block_store(row, sh_cpu_at(s->data, s->dtype, n * C), C, s->dtype, room, C);
}

/* add: the ADD_NORM of which `call` is the norm; NULL: none. */
static sh_rc run_norm(const struct sh_op_call *call, const struct sh_op_call *add)
{
    int64_t C = sh_cpu_elems(&call->in[1]), N = sh_cpu_elems(&call->in[0]) / C, step = row_floats(C);
    float *work = call->work, *rooms = work + 2 * step;

    SH_REQUIRE(call->work_bytes >= sh_cpu_norm_work_bytes(call, omp_get_max_threads()));
    const float *w = weight(call, &call->in[1], C, work);
    const float *b = call->in[2].data ? sh_cpu_stage_in(&call->in[2], 0, C, work + step) : NULL;
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; n++) {
        float *room = rooms + omp_get_thread_num() * FWD_ROWS * step;
        if (add)
            add_row(add, n, C, room);
        norm_row(call, n, C, w, b, room);
    }
    return SH_OK;
}

sh_rc sh_cpu_norm(const struct sh_op_call *call)
{
    return run_norm(call, NULL);
}

/* The norm inside ADD_NORM: its input is the sum, and its operands are shifted by one. */
static struct sh_op_call norm_of(const struct sh_op_call *add)
{
    struct sh_op_call norm = *add;

    norm.in[0] = add->out[0];
    for (int k = 1; k < 3; k++)
        norm.in[k] = add->in[k + 1];
    for (int k = 0; k < 3; k++)
        norm.out[k] = add->out[k + 1];
    return norm;
}

int64_t sh_cpu_add_norm_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_op_call norm = norm_of(call);
    return sh_cpu_norm_work_bytes(&norm, threads);
}

sh_rc sh_cpu_add_norm(const struct sh_op_call *call)
{
    struct sh_op_call norm = norm_of(call);
    return run_norm(&norm, call);
}

/* One row of the backward: xhat = (x - mean) rstd, g = dy w (kernels/ref/norm.c has the formulas). */
struct row {
    const float *dy, *x, *w;
    float mean, rstd, g_mean, gx_mean;
    int64_t C;
};

/* The two means that flow back, and the row's contribution to dw and db (NULL: not wanted), in one pass. */
SH_CLONES static void reduce(struct row *r, float *dw, float *db)
{
    const float *dy = r->dy, *x = r->x, *w = r->w;
    float mean = r->mean, rstd = r->rstd, g = 0, gx = 0;
#pragma omp simd reduction(+ : g, gx)
    for (int64_t c = 0; c < r->C; c++) {
        float xhat = (x[c] - mean) * rstd;
        g += dy[c] * w[c];
        gx += dy[c] * w[c] * xhat;
        dw[c] += dy[c] * xhat;
    }
    for (int64_t c = 0; db && c < r->C; c++)
        db[c] += dy[c];
    r->g_mean = g / (float)r->C;
    r->gx_mean = gx / (float)r->C;
}

/* dx may be dres (NULL: none). */
SH_CLONES static void apply(float *dx, const struct row *r, const float *dres)
{
    const float *dy = r->dy, *x = r->x, *w = r->w;
    float mean = r->mean, rstd = r->rstd, g_mean = r->g_mean, gx_mean = r->gx_mean;
    if (dres) {
#pragma omp simd
        for (int64_t c = 0; c < r->C; c++)
            dx[c] = rstd * (dy[c] * w[c] - g_mean - (x[c] - mean) * rstd * gx_mean) + dres[c];
    } else {
#pragma omp simd
        for (int64_t c = 0; c < r->C; c++)
            dx[c] = rstd * (dy[c] * w[c] - g_mean - (x[c] - mean) * rstd * gx_mean);
    }
}

/* dres is staged in the place where dx will be written: each element is read before it is overwritten. */
static void norm_bwd_row(const struct sh_op_call *call, int64_t n, struct row r, float *dw, float *db, float *room)
{
    const struct sh_operand *dres = &call->in[5], *dx = &call->out[0];
    int64_t step = row_floats(r.C), at = n * r.C;
    float *to = sh_cpu_stage_out(dx, at, r.C, room + 2 * step);

    r.dy = sh_cpu_stage_in(&call->in[0], at, r.C, room);
    r.x = sh_cpu_stage_in(&call->in[1], at, r.C, room + step);
    r.rstd = ((const float *)call->in[3].data)[n];
    /* RMSNorm has no mean, so nothing flows back through it. */
    r.mean = call->in[4].data ? ((const float *)call->in[4].data)[n] : 0;
    reduce(&r, dw, db);
    if (call->attr->norm.rms)
        r.g_mean = 0;
    apply(to, &r, dres->data ? sh_cpu_stage_in(dres, at, r.C, room + 2 * step) : NULL);
    sh_cpu_stage_put(dx, at, r.C, to);
}

/* Scratch of the backward, in floats from its start: w, the parts of dw (even if dw is not wanted: a single loop
 * gives the same bits in both cases), those of db and of the bias of NORM_BWD_BIAS, and the buffers of the threads. */
struct bwd_work {
    int64_t N, C, step, parts, dw, db, bias, rooms, end;
    bool has_db, has_bias;
};

static struct bwd_work bwd_work_of(const struct sh_op_call *call, int threads)
{
    int64_t C = sh_cpu_elems(&call->in[2]), N = sh_cpu_elems(&call->in[1]) / C;
    struct bwd_work k = {.N = N, .C = C, .step = row_floats(C), .parts = sh_cpu_folds(N)};

    k.has_db = call->out[2].ndim > 0;
    k.dw = k.step;
    k.db = k.dw + k.parts * k.step;
    k.has_bias = call->out[3].ndim > 0;
    k.bias = k.db + (k.has_db ? k.parts * k.step : 0);
    k.rooms = k.bias + (k.has_bias ? k.parts * k.step : 0);
    k.end = k.rooms + threads * BWD_ROWS * k.step;
    return k;
}

/* Scratch in bytes for one call. */
int64_t sh_cpu_norm_bwd_work_bytes(const struct sh_op_call *call, int threads)
{
    return bwd_work_of(call, threads).end * FLOAT;
}

/* Add row n of dx while it is still in the L1 cache. */
static void add_to_bias(const struct sh_operand *dx, int64_t n, int64_t C, float *sum)
{
    sh_cpu_block_add((struct sh_cpu_block){1, C}, sum, C, sh_cpu_at(dx->data, dx->dtype, n * C), C, dx->dtype);
}

/* Rows of one part, in order. */
static void norm_bwd_part(const struct sh_op_call *call, const struct bwd_work *k, int64_t part, const float *w)
{
    float *work = call->work, *dw = work + k->dw + part * k->step;
    float *db = k->has_db ? work + k->db + part * k->step : NULL;
    float *bias = k->has_bias ? work + k->bias + part * k->step : NULL;
    float *room = work + k->rooms + omp_get_thread_num() * BWD_ROWS * k->step;

    memset(dw, 0, (size_t)(k->C * FLOAT));
    if (db)
        memset(db, 0, (size_t)(k->C * FLOAT));
    if (bias)
        memset(bias, 0, (size_t)(k->C * FLOAT));
    for (int64_t n = sh_cpu_fold_row(k->N, part); n < sh_cpu_fold_row(k->N, part + 1); n++) {
        norm_bwd_row(call, n, (struct row){.w = w, .C = k->C}, dw, db, room);
        if (bias)
            add_to_bias(&call->out[0], n, k->C, bias);
    }
}

sh_rc sh_cpu_norm_bwd(const struct sh_op_call *call)
{
    struct bwd_work k = bwd_work_of(call, omp_get_max_threads());
    float *work = call->work;

    SH_REQUIRE(call->work_bytes >= k.end * FLOAT);
    const float *w = weight(call, &call->in[2], k.C, work);
#pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < k.parts; part++)
        norm_bwd_part(call, &k, part, w);
    if (call->out[1].data)
        sh_cpu_fold(call->out[1].data, sh_op_adds(call, 1), work + k.dw, k.parts, k.step, k.C);
    if (k.has_db)
        sh_cpu_fold(call->out[2].data, sh_op_adds(call, 2), work + k.db, k.parts, k.step, k.C);
    if (k.has_bias)
        sh_cpu_fold(call->out[3].data, sh_op_adds(call, 3), work + k.bias, k.parts, k.step, k.C);
    return SH_OK;
}
