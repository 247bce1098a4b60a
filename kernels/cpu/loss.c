/* Loss of logits whose words are spread over ranks (kernels/op.h): each row is read twice by LOSS_PART, and once by
 * LOSS_REST, which may write its gradient over it. SCORE_REST reads what LOSS_PART has made alone. Pieces of a row are added in their order, so the number of threads
 * does not show. Bound by memory and exponentials: 3 N V of them read, N V written. */
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel/head_panels.h"

#include <math.h>
#include <string.h>

/* Logits [at, at + n) of a part as a copy that may be changed; slope: derivatives of the cap, NULL: not wanted. */
static void copy_piece(const struct sh_op_call *call, int64_t at, int64_t n, float *to, float *slope)
{
    const float *x = sh_cpu_stage_in(&call->in[0], at, n, to);
    float cap = call->attr->part.cap;

    if (x != to)
        memcpy(to, x, (size_t)n * sizeof *to);
    if (cap != 0)
        sh_cpu_row_cap(to, slope, n, 1 / cap, cap);
}

/* The same to read only, in the tensor itself if that is possible. */
static const float *read_piece(const struct sh_op_call *call, int64_t at, int64_t n, float *room)
{
    if (call->attr->part.cap == 0)
        return sh_cpu_stage_in(&call->in[0], at, n, room);
    copy_piece(call, at, n, room, NULL);
    return room;
}

static int64_t piece_of(int64_t V, int64_t at)
{
    return V - at < SH_CPU_PIECE ? V - at : SH_CPU_PIECE;
}

/* The first of n neighbours that is as large as `max`; 0 if none is. */
static int64_t likeliest(const struct sh_op_call *call, int64_t at, int64_t n, float max)
{
    float room[SH_CPU_PIECE];
    const float *x = read_piece(call, at, n, room);

    for (int64_t i = 0; i < n; i++)
        if (x[i] == max)
            return i;
    return 0;
}

static void part_of_row(const struct sh_op_call *call, int64_t row)
{
    const struct sh_operand *z = &call->in[0];
    int64_t V = z->dim[1], first = row * V, target = ((const int32_t *)call->in[1].data)[row] - call->attr->part.first;
    float room[SH_CPU_PIECE], max = -INFINITY, *stat = (float *)call->out[0].data + 3 * row;
    int64_t best = 0; /* where the piece with the largest begins */
    double sum = 0;

    for (int64_t at = 0; at < V; at += SH_CPU_PIECE) {
        float most = sh_cpu_row_max(read_piece(call, first + at, piece_of(V, at), room), piece_of(V, at));

        best = most > max ? at : best;
        max = fmaxf(max, most);
    }
    if (call->out[1].data)
        ((int32_t *)call->out[1].data)[row] =
            (int32_t)(call->attr->part.first + best + likeliest(call, first + best, piece_of(V, best), max));
    stat[2] = 0;
    for (int64_t at = 0; at < V; at += SH_CPU_PIECE) {
        copy_piece(call, first + at, piece_of(V, at), room, NULL);
        if (target >= at && target < at + piece_of(V, at))
            stat[2] = room[target - at];
        sum += (double)sh_cpu_row_exp(room, piece_of(V, at), 1, max);
    }
    stat[0] = max;
    stat[1] = (float)sum;
}

sh_rc sh_cpu_loss_part(const struct sh_op_call *call)
{
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < call->in[0].dim[0]; row++)
        part_of_row(call, row);
    return SH_OK;
}

/* The parts of a row, put together: largest logit, sum of exponentials, target's logit; the first rank whose largest that
 * is. */
struct whole {
    float max;
    double sum, at_target;
    int64_t rank;
};

static struct whole whole_of(const struct sh_operand *parts, int64_t row)
{
    int64_t P = parts->dim[0], N = parts->dim[1];
    const float *stats = (const float *)parts->data + 3 * row;
    struct whole w = {.max = -INFINITY};

    for (int64_t p = 0; p < P; p++) {
        w.rank = stats[3 * p * N] > w.max ? p : w.rank;
        w.max = fmaxf(w.max, stats[3 * p * N]);
        w.at_target += (double)stats[3 * p * N + 2];
    }
    for (int64_t p = 0; p < P; p++)
        w.sum += (double)stats[3 * p * N + 1] * exp((double)stats[3 * p * N] - (double)w.max);
    return w;
}

static double lse_of(struct whole w)
{
    return log(w.sum) + (double)w.max;
}

/* (softmax - onehot) * loss_scale, with more of the softmax for the square; 0 without a target. */
static void write_gradient(const struct sh_op_call *call, int64_t row, struct whole w, int32_t word)
{
    const struct sh_operand *z = &call->in[0], *dz = &call->out[1];
    int64_t V = z->dim[1], first = row * V, target = word - call->attr->part.first;
    double share = 1 + 2 * call->attr->part.squares * lse_of(w);
    float scale = (float)call->scalars->loss_scale, factor = (float)(share * call->scalars->loss_scale / w.sum);
    float room[SH_CPU_PIECE], to[SH_CPU_PIECE], slope[SH_CPU_PIECE];

    for (int64_t at = 0; at < V; at += SH_CPU_PIECE) {
        int64_t n = piece_of(V, at);
        float *y = sh_cpu_stage_out(dz, first + at, n, to);

        copy_piece(call, first + at, n, room, slope);
        sh_cpu_row_exp(room, n, 1, w.max);
        sh_cpu_row_scale(room, n, factor);
        if (target >= at && target < at + n)
            room[target - at] -= scale;
        if (call->attr->part.cap != 0)
            sh_cpu_row_times(room, slope, n);
        if (word < 0)
            memset(room, 0, (size_t)n * sizeof *room);
        memcpy(y, room, (size_t)n * sizeof *room);
        sh_cpu_stage_put(dz, first + at, n, y);
    }
}

/* Losses of rows and their squares, so that their sums have one order. */
int64_t sh_cpu_loss_rest_work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return sh_cpu_round64((call->attr->part.squares == 0 ? 1 : 2) * call->in[0].dim[0] * (int64_t)sizeof(double));
}

sh_rc sh_cpu_loss_rest(const struct sh_op_call *call)
{
    int64_t N = call->in[0].dim[0];
    double *loss = call->work, *squares = call->attr->part.squares == 0 ? NULL : loss + N;
    struct sh_panel_head_sums sums = {0};

#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++) {
        int32_t word = ((const int32_t *)call->in[2].data)[row];
        struct whole w = whole_of(&call->in[1], row);
        bool counts = word >= 0 && call->attr->part.first == 0;
        double lse = lse_of(w);

        loss[row] = counts ? lse - w.at_target : 0;
        if (squares)
            squares[row] = counts ? call->attr->part.squares * lse * lse : 0;
        if (call->out[1].data)
            write_gradient(call, row, w, word);
    }
    for (int64_t row = 0; row < N; row++)
        sh_panel_head_add(&sums, loss, squares, row);
    sh_panel_head_store(call, sums);
    return SH_OK;
}

sh_rc sh_cpu_score_rest(const struct sh_op_call *call)
{
    const int32_t *words = call->in[1].data, *targets = call->in[2].data;
    float *logprob = call->out[0].data;
    int32_t *word = call->out[1].data;
    int64_t N = call->in[0].dim[1];

#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++) {
        struct whole w = whole_of(&call->in[0], row);

        logprob[row] = targets[row] < 0 ? 0 : (float)(w.at_target - (double)w.max - log(w.sum));
        word[row] = words[w.rank * N + row];
    }
    return SH_OK;
}
