/* Short convolution over time with SiLU. A thread has some columns of a sequence and goes over its rows, so that the
 * rows that it looks back at are still in the L1 cache. Floor: x read once and y written once; backward twice that.
 *
 * Scratch: w as f32 [W,C], and the bias [C]; in the backward a sum for each sequence and weight in f64, then for each
 * element of the bias, and these are added in order. */
#include "kernels/delta.h"

#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

/* Columns of a piece; the longest convolution that the configuration allows. */
enum { COLS = 256, TAPS = 8 };

struct piece {
    const struct sh_operand *x, *docs, *tail; /* tail [B,W-1,C]: rows before row 0; NULL: there are none */
    const float *w, *bias;                    /* [W] rows, C apart; [C], NULL: none */
    int64_t b, at, n, T, C, W;
};

static int64_t pieces(int64_t C)
{
    return (C + COLS - 1) / COLS;
}

/* Asked before there are data, too: scratch is planned by shapes. `first`: the input that is x. */
static bool has_bias(const struct sh_op_call *call, int first)
{
    return call->in[first + 3].ndim > 0;
}

/* Rows of C elements that the weights are, with the bias as the last one. */
static int64_t rows_of_weights(const struct sh_op_call *call, int first)
{
    return call->in[first + 1].dim[2] + has_bias(call, first);
}

static struct piece piece_of(const struct sh_op_call *call, int first, int64_t i)
{
    const struct sh_operand *x = &call->in[first];
    int64_t C = x->dim[2], at = i % pieces(C) * COLS, W = call->in[first + 1].dim[2];
    const float *w = (const float *)call->work + at;

    return (struct piece){.x = x,
                          .docs = &call->in[first + 2],
                          .w = w,
                          .bias = has_bias(call, first) ? w + W * C : NULL,
                          .b = i / pieces(C),
                          .at = at,
                          .n = C - at < COLS ? C - at : COLS,
                          .T = x->dim[1],
                          .C = C,
                          .W = W};
}

int64_t sh_cpu_short_conv_work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return sh_cpu_round64(call->in[0].dim[2] * rows_of_weights(call, 0) * 4);
}

int64_t sh_cpu_short_conv_bwd_work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    int64_t elems = call->in[1].dim[2] * rows_of_weights(call, 1);

    return sh_cpu_round64(elems * 4) + call->in[1].dim[0] * elems * 8;
}

/* [C,1,W] to [W,C] in f32, and the bias behind it. */
static void load_weights(const struct sh_op_call *call, int first)
{
    const struct sh_operand *w = &call->in[first + 1], *bias = &call->in[first + 3];
    float *to = call->work;
    int64_t C = w->dim[0], W = w->dim[2];

    if (has_bias(call, first))
        sh_cpu_block_load((struct sh_cpu_block){1, C}, to + W * C, C, bias->data, C, bias->dtype);

    for (int64_t c = 0; c < C; c++) {
        float room[TAPS];
        const float *from = sh_cpu_stage_in(w, c * W, W, room);

        for (int64_t j = 0; j < W; j++)
            to[j * C + c] = from[j];
    }
}

static const float *row(const struct piece *p, int64_t t, float *room)
{
    if (t < 0)
        return sh_cpu_stage_in(p->tail, ((p->b + 1) * (p->W - 1) + t) * p->C + p->at, p->n, room);
    return sh_cpu_stage_in(p->x, (p->b * p->T + t) * p->C + p->at, p->n, room);
}

SH_CLONES static void add_product(float *restrict to, const float *restrict a, const float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += a[i] * b[i];
}

SH_CLONES static void add_to_sums(double *restrict to, const float *restrict a, const float *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += (double)a[i] * (double)b[i];
}

/* The sums of row t, whose text begins at row `first`. */
static void convolve(const struct piece *p, int64_t t, int64_t first, float *sum)
{
    memset(sum, 0, (size_t)p->n * sizeof *sum);
    if (p->bias)
        memcpy(sum, p->bias, (size_t)p->n * sizeof *sum);
    for (int64_t j = 0; j < p->W; j++) {
        int64_t from = t - (p->W - 1) + j;
        float room[COLS];

        if (from >= first)
            add_product(sum, p->w + j * p->C, row(p, from, room), p->n);
    }
}

SH_CLONES static void silu(float *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * sh_sigmoidf(x[i]);
}

/* d = dy silu'(x) */
SH_CLONES static void silu_back(float *restrict d, const float *restrict dy, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float s = sh_sigmoidf(x[i]);

        d[i] = dy[i] * s * (1 + x[i] * (1 - s));
    }
}

static void make_row(const struct piece *p, int64_t t, int64_t first, const struct sh_operand *y)
{
    int64_t at = (p->b * p->T + t) * p->C + p->at;
    float sum[COLS], room[COLS], *to = sh_cpu_stage_out(y, at, p->n, room);

    convolve(p, t, first, sum);
    silu(to, sum, p->n);
    sh_cpu_stage_put(y, at, p->n, to);
}

sh_rc sh_cpu_short_conv(const struct sh_op_call *call)
{
    int64_t n = call->in[0].dim[0] * pieces(call->in[0].dim[2]);

    load_weights(call, 0);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        struct piece p = piece_of(call, 0, i);

        for (int64_t t = 0; t < p.T; t++)
            make_row(&p, t, sh_delta_first(p.docs, p.b, t), &call->out[0]);
    }
    return SH_OK;
}

/* The last W - 1 of the rows of the tail and the n new ones; those before row `first` are zeros. Each comes from a later
 * place than the one it goes to. */
static void keep_tail(const struct piece *p, int64_t n, int64_t first)
{
    const struct sh_operand *x = p->x, *tail = p->tail;
    size_t bytes = (size_t)(p->n * sh_dtype_bytes(x->dtype));

    for (int64_t j = 0; j < p->W - 1; j++) {
        int64_t from = n - (p->W - 1) + j, before = p->b * (p->W - 1);
        char *to = sh_cpu_at(tail->data, tail->dtype, (before + j) * p->C + p->at);

        if (from >= 0)
            memcpy(to, sh_cpu_at(x->data, x->dtype, (p->b * p->T + from) * p->C + p->at), bytes);
        else if (from >= first)
            memcpy(to, sh_cpu_at(tail->data, tail->dtype, (before + p->W - 1 + from) * p->C + p->at), bytes);
        else
            memset(to, 0, bytes);
    }
}

sh_rc sh_cpu_short_conv_cache(const struct sh_op_call *call)
{
    const struct sh_operand *y = &call->out[0];
    const int32_t *at = call->in[2].data, *count = call->in[4].data;
    int64_t n = call->in[0].dim[0] * pieces(call->in[0].dim[2]);

    load_weights(call, 0);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        struct piece p = piece_of(call, 0, i);
        int64_t first = at[p.b * p.T] == 0 ? 0 : 1 - p.W;

        p.tail = &call->out[1];
        for (int64_t t = 0; t < count[p.b]; t++)
            make_row(&p, t, first, y);
        for (int64_t t = count[p.b]; t < p.T; t++)
            memset(sh_cpu_at(y->data, y->dtype, (p.b * p.T + t) * p.C + p.at), 0,
                   (size_t)(p.n * sh_dtype_bytes(y->dtype)));
        if (count[p.b])
            keep_tail(&p, count[p.b], first);
    }
    return SH_OK;
}

/* From the last row on. d keeps the derivatives by the sums of the newest W rows, that of row t at t mod W. */
static void piece_back(const struct sh_op_call *call, const struct piece *p, double *dw)
{
    float d[TAPS][COLS];

    for (int64_t t = p->T - 1; t >= 0; t--) {
        int64_t at = (p->b * p->T + t) * p->C + p->at, first = sh_delta_first(p->docs, p->b, t);
        float sum[COLS], room[COLS], dx_room[COLS], *dx = sh_cpu_stage_out(&call->out[0], at, p->n, dx_room);

        convolve(p, t, first, sum);
        silu_back(d[t % p->W], sh_cpu_stage_in(&call->in[0], at, p->n, room), sum, p->n);
        memset(dx, 0, (size_t)p->n * sizeof *dx);
        for (int64_t i = 0; p->bias && i < p->n; i++)
            dw[p->W * p->C + i] += (double)d[t % p->W][i];
        for (int64_t j = 0; j < p->W; j++) {
            int64_t back = p->W - 1 - j;

            if (t - back >= first && call->out[1].data)
                add_to_sums(dw + j * p->C, d[t % p->W], row(p, t - back, room), p->n);
            if (t + back < p->T && sh_delta_first(p->docs, p->b, t + back) <= t)
                add_product(dx, p->w + j * p->C, d[(t + back) % p->W], p->n);
        }
        sh_cpu_stage_put(&call->out[0], at, p->n, dx);
    }
}

/* Output k [C,each] from the rows of sums from `row` on. */
static void sum_weights(const struct sh_op_call *call, const double *sums, int k, int64_t row, int64_t each)
{
    int64_t B = call->in[1].dim[0], C = call->in[1].dim[2], rows = rows_of_weights(call, 1);
    float *to = call->out[k].data;

    for (int64_t i = 0; to && i < C * each; i++) {
        double sum = sh_op_adds(call, k) ? (double)to[i] : 0;

        for (int64_t b = 0; b < B; b++)
            sum += sums[(b * rows + row + i % each) * C + i / each];
        to[i] = (float)sum;
    }
}

sh_rc sh_cpu_short_conv_bwd(const struct sh_op_call *call)
{
    int64_t B = call->in[1].dim[0], C = call->in[1].dim[2], W = call->in[2].dim[2];
    int64_t elems = C * rows_of_weights(call, 1), n = B * pieces(C);
    double *sums = (double *)((char *)call->work + sh_cpu_round64(elems * 4));

    load_weights(call, 1);
    memset(sums, 0, (size_t)(B * elems) * sizeof *sums);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        struct piece p = piece_of(call, 1, i);

        piece_back(call, &p, sums + p.b * elems + p.at);
    }
    sum_weights(call, sums, 1, 0, W);
    sum_weights(call, sums, 2, W, 1);
    return SH_OK;
}
