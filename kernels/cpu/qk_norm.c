/* RMSNorm of queries and keys, a piece of neighbouring groups at a time: it is converted at once and stays in the L1
 * cache for its second pass. Bytes per element, f32 (bf16: half): forward 8, backward 12, and the partial sums (fold.h);
 * for values 8, none in place.
 *
 * Scratch: wq and wk as f32, in the backward a row of sums per part and weight, and per thread the buffers of a
 * piece. */
#include "kernels/qk_norm.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/fold.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/stage.h"

#include <omp.h>
#include <string.h>

enum { FLOAT = sizeof(float), FWD_ROOMS = 2, BWD_ROOMS = 3 };

/* Floats from the start of the scratch; rows start on cache lines. */
struct work {
    struct sh_qk_norm s;
    int64_t steps[2], room; /* of wq and wk; of one buffer */
    int64_t parts, sums, rooms, end;
};

/* A row that starts on a cache line shares no line with another thread's row. */
static int64_t row_floats(int64_t elems)
{
    return sh_cpu_round64(elems * FLOAT) / FLOAT;
}

/* The scratch, in floats; parts are 0 in the forward:
 *
 *     wq | wk | sums of part 0: wq, wk | sums of part 1 | ... | rooms of thread 0 | rooms of thread 1 | ... */
static struct work work_of(const struct sh_op_call *call, int first_weight, int n_rooms, int threads)
{
    struct work k = {.s = sh_qk_norm_of(call, &call->in[first_weight])};

    k.steps[0] = row_floats(k.s.wq);
    k.steps[1] = row_floats(k.s.wk);
    k.room = k.steps[0] > k.steps[1] ? k.steps[0] : k.steps[1];
    k.room = k.room > SH_CPU_PIECE ? k.room : SH_CPU_PIECE;
    k.sums = k.steps[0] + k.steps[1];
    k.parts = n_rooms == BWD_ROOMS ? sh_cpu_folds(k.s.rows) : 0;
    k.rooms = k.sums + k.parts * k.sums;
    k.end = k.rooms + (int64_t)threads * n_rooms * k.room;
    return k;
}

int64_t sh_cpu_qk_norm_work_bytes(const struct sh_op_call *call, int threads)
{
    return work_of(call, 1, FWD_ROOMS, threads).end * FLOAT;
}

int64_t sh_cpu_qk_norm_bwd_work_bytes(const struct sh_op_call *call, int threads)
{
    return work_of(call, 2, BWD_ROOMS, threads).end * FLOAT;
}

/* Both weights as f32 at the start of the scratch. */
static void load_weights(const struct sh_op_call *call, const struct work *k, int first)
{
    float *to = call->work;

    for (int i = 0; i < 2; to += k->steps[i++]) {
        const struct sh_operand *w = &call->in[first + i];
        int64_t n = sh_cpu_elems(w);
        sh_cpu_block_load((struct sh_cpu_block){1, n}, to, n, w->data, n, w->dtype);
        for (int64_t c = 0; call->attr->qk.plus_one && c < n; c++)
            to[c] += 1;
    }
}

/* Copy the values of row n. */
static void copy_values(const struct sh_qk_norm *s, const struct sh_operand *to, const struct sh_operand *from,
                        int64_t n)
{
    int64_t at = n * s->row + s->cols, bytes = (s->row - s->cols) * sh_dtype_bytes(to->dtype);

    if (to->data != from->data)
        memcpy(sh_cpu_at(to->data, to->dtype, at), sh_cpu_at(from->data, from->dtype, at), (size_t)bytes);
}

SH_CLONES static float squares(const float *x, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * x[c];
    return sum;
}

SH_CLONES static void scale(float *y, const float *x, const float *w, float rstd, int64_t n)
{
#pragma omp simd
    for (int64_t c = 0; c < n; c++)
        y[c] = x[c] * rstd * w[c];
}

/* Neighbouring groups of one weight in a row: as many as a piece holds, at least one. */
struct piece {
    int64_t group, count, width, at; /* the first of them, in rstd and in the tensor */
    int64_t weight;                  /* in the scratch, or in a part's sums */
    int64_t mean;                    /* in QK_MEANS' result, if other ranks have heads too */
};

/* The piece of row n from group g on: queries first, then keys, as rstd [N,G] has them. */
static struct piece piece_of(const struct work *k, int64_t n, int64_t g)
{
    const struct sh_qk_norm *s = &k->s;
    bool key = g >= s->q;
    int64_t width = key ? s->wk : s->wq, most = width < SH_CPU_PIECE ? SH_CPU_PIECE / width : 1;
    int64_t left = (key ? s->q + s->k : s->q) - g;

    return (struct piece){.group = n * (s->q + s->k) + g,
                          .count = left < most ? left : most,
                          .width = width,
                          .at = n * s->row + (key ? s->q_cols + (g - s->q) * width : g * width),
                          .weight = key ? k->steps[0] : 0,
                          .mean = 2 * n + key};
}

static void forward_piece(const struct sh_op_call *call, const struct work *k, struct piece p, float *room)
{
    const float *w = (const float *)call->work + p.weight, *means = call->in[3].data;
    const float *x = sh_cpu_stage_in(&call->in[0], p.at, p.count * p.width, room);
    float *to = sh_cpu_stage_out(&call->out[0], p.at, p.count * p.width, room + k->room);
    float *rstd = (float *)call->out[1].data + p.group;

    for (int64_t g = 0; g < p.count; g++) {
        const float *from = x + g * p.width;
        float mean = means ? means[p.mean] : squares(from, p.width) / (float)p.width;
        rstd[g] = 1.0f / sqrtf(mean + call->attr->qk.eps);
        scale(to + g * p.width, from, w, rstd[g], p.width);
    }
    sh_cpu_stage_put(&call->out[0], p.at, p.count * p.width, to);
}

static void forward_row(const struct sh_op_call *call, const struct work *k, int64_t n, float *room)
{
    for (int64_t g = 0; g < k->s.q + k->s.k;) {
        struct piece p = piece_of(k, n, g);
        forward_piece(call, k, p, room);
        g += p.count;
    }
    copy_values(&k->s, &call->out[0], &call->in[0], n);
}

sh_rc sh_cpu_qk_norm(const struct sh_op_call *call)
{
    struct work k = work_of(call, 1, FWD_ROOMS, omp_get_max_threads());
    float *rooms = (float *)call->work + k.rooms;

    SH_REQUIRE(sh_qk_norm_fits(&k.s) && call->work_bytes >= k.end * FLOAT);
    load_weights(call, &k, 1);
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < k.s.rows; n++)
        forward_row(call, &k, n, rooms + omp_get_thread_num() * FWD_ROOMS * k.room);
    return SH_OK;
}

/* Add the group's contribution to dw; return the sum of dy w xhat. */
SH_CLONES static float reduce(float *dw, const float *dy, const float *x, const float *w, float rstd, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++) {
        float xhat = x[c] * rstd;
        sum += dy[c] * w[c] * xhat;
        dw[c] += dy[c] * xhat;
    }
    return sum;
}

/* dx may be dy. */
SH_CLONES static void apply(float *dx, const float *dy, const float *x, const float *w, float rstd, float mean,
                            int64_t n)
{
#pragma omp simd
    for (int64_t c = 0; c < n; c++)
        dx[c] = rstd * (dy[c] * w[c] - x[c] * rstd * mean);
}

/* sums: of this part, for wq and after it for wk. */
static void backward_piece(const struct sh_op_call *call, const struct work *k, struct piece p, float *sums,
                           float *room)
{
    const struct sh_operand *dx = &call->out[0];
    int64_t n = p.count * p.width;
    const float *means = call->in[5].data;
    const float *w = (const float *)call->work + p.weight, *rstd = (const float *)call->in[4].data + p.group;
    const float *dy = sh_cpu_stage_in(&call->in[0], p.at, n, room);
    const float *x = sh_cpu_stage_in(&call->in[1], p.at, n, room + k->room);
    float *to = sh_cpu_stage_out(dx, p.at, n, room + 2 * k->room);

    for (int64_t i = 0, g = 0; g < p.count; g++, i += p.width) {
        float mean = reduce(sums + p.weight, dy + i, x + i, w, rstd[g], p.width) / (float)p.width;
        if (means)
            mean = rstd[g] * means[p.mean];
        apply(to + i, dy + i, x + i, w, rstd[g], mean, p.width);
    }
    sh_cpu_stage_put(dx, p.at, n, to);
}

static void backward_row(const struct sh_op_call *call, const struct work *k, int64_t n, float *sums, float *room)
{
    for (int64_t g = 0; g < k->s.q + k->s.k;) {
        struct piece p = piece_of(k, n, g);
        backward_piece(call, k, p, sums, room);
        g += p.count;
    }
    copy_values(&k->s, &call->out[0], &call->in[0], n);
}

/* One thread handles all rows of a part, so that sums have one order; the parts are folded afterwards, for the
 * weights that are trained. */
sh_rc sh_cpu_qk_norm_bwd(const struct sh_op_call *call)
{
    struct work k = work_of(call, 2, BWD_ROOMS, omp_get_max_threads());
    float *work = call->work;

    SH_REQUIRE(sh_qk_norm_fits(&k.s) && call->work_bytes >= k.end * FLOAT);
    load_weights(call, &k, 2);
#pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < k.parts; part++) {
        float *sums = work + k.sums + part * k.sums, *room = work + k.rooms + omp_get_thread_num() * BWD_ROOMS * k.room;
        memset(sums, 0, (size_t)(k.sums * FLOAT));
        for (int64_t n = sh_cpu_fold_row(k.s.rows, part); n < sh_cpu_fold_row(k.s.rows, part + 1); n++)
            backward_row(call, &k, n, sums, room);
    }
    if (call->out[1].data)
        sh_cpu_fold(call->out[1].data, sh_op_adds(call, 1), work + k.sums, k.parts, k.sums, k.s.wq);
    if (call->out[2].data)
        sh_cpu_fold(call->out[2].data, sh_op_adds(call, 2), work + k.sums + k.steps[0], k.parts, k.sums, k.s.wk);
    return SH_OK;
}

/* Scratch of QK_MEANS: per thread room for a stretch of a, b and w. */
static int64_t means_room(const struct sh_op_call *call)
{
    int most = call->attr->qk.q_width > call->attr->qk.k_width ? call->attr->qk.q_width : call->attr->qk.k_width;

    return row_floats(most);
}

int64_t sh_cpu_qk_means_work_bytes(const struct sh_op_call *call, int threads)
{
    return BWD_ROOMS * means_room(call) * threads * FLOAT;
}

/* w: NULL: 1. */
SH_CLONES static float products(const float *a, const float *b, const float *w, float plus, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++)
        sum += a[c] * b[c] * (w ? w[c] + plus : 1.0f);
    return sum;
}

sh_rc sh_cpu_qk_means(const struct sh_op_call *call)
{
    int64_t room = means_room(call), width[2] = {call->attr->qk.q_width, call->attr->qk.k_width};
    int64_t row = width[0] + 2 * width[1];
    float *out = call->out[0].data, plus = call->attr->qk.plus_one ? 1 : 0;

    SH_REQUIRE(call->work_bytes >= sh_cpu_qk_means_work_bytes(call, omp_get_max_threads()));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < call->in[0].dim[0] * 2; i++) {
        int64_t key = i % 2, at = i / 2 * row + key * width[0];
        float *to = (float *)call->work + omp_get_thread_num() * BWD_ROOMS * room;
        const struct sh_operand *w = &call->in[2 + key];
        float sum = products(sh_cpu_stage_in(&call->in[0], at, width[key], to),
                             sh_cpu_stage_in(&call->in[1], at, width[key], to + room),
                             w->data ? sh_cpu_stage_in(w, 0, width[key], to + 2 * room) : NULL, plus, width[key]);

        out[i] = sum / (float)(width[key] * call->attr->qk.ranks);
    }
    return SH_OK;
}
