/* A sink of each head: attention's output and log-sum-exp as they are with one more number in the softmax. Floor: o read
 * once and written once; the numbers for it are one for D elements. */
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"

#include <math.h>

/* Row `row` of all sequences, head h: where its number is in [B,H,T]. */
static int64_t lse_at(const struct sh_operand *lse, int64_t row, int64_t h)
{
    int64_t H = lse->dim[1], T = lse->dim[2];

    return (row / T * H + h) * T + row % T;
}

static float number(const struct sh_operand *t, int64_t i)
{
    float room;

    return *sh_cpu_stage_in(t, i, 1, &room);
}

/* Elements [at, at + n) of o times `by`. */
static void scale(const struct sh_op_call *call, int64_t at, int64_t n, float by)
{
    const struct sh_operand *o = &call->in[0], *y = &call->out[0];

    for (int64_t end = at + n; at < end; at += SH_CPU_PIECE) {
        float o_room[SH_CPU_PIECE], y_room[SH_CPU_PIECE];
        int64_t here = end - at < SH_CPU_PIECE ? end - at : SH_CPU_PIECE;
        const float *from = sh_cpu_stage_in(o, at, here, o_room);
        float *to = sh_cpu_stage_out(y, at, here, y_room);

        for (int64_t i = 0; i < here; i++)
            to[i] = from[i] * by;
        sh_cpu_stage_put(y, at, here, to);
    }
}

/* From the larger of the two on, so no exponential overflows. A query without keys has -Inf and an output of 0. */
sh_rc sh_cpu_sink(const struct sh_op_call *call)
{
    const struct sh_operand *lse = &call->in[1];
    int64_t H = call->attr->attn.heads, D = call->attr->attn.head_dim, n = sh_cpu_elems(lse);
    const float *from = lse->data;
    float *total = call->out[1].data;

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        int64_t at = lse_at(lse, i / H, i % H);
        float sink = number(&call->in[2], i % H), score = from[at];

        total[at] = fmaxf(score, sink) + log1pf(expf(-fabsf(score - sink)));
        scale(call, i * D, D, expf(score - total[at]));
    }
    return SH_OK;
}

static float dot(const struct sh_operand *a, const struct sh_operand *b, int64_t at, int64_t n)
{
    float sum = 0;

    for (int64_t end = at + n; at < end; at += SH_CPU_PIECE) {
        float a_room[SH_CPU_PIECE], b_room[SH_CPU_PIECE];
        int64_t here = end - at < SH_CPU_PIECE ? end - at : SH_CPU_PIECE;

        sum += sh_cpu_row_dot(sh_cpu_stage_in(a, at, here, a_room), sh_cpu_stage_in(b, at, here, b_room), here);
    }
    return sum;
}

/* A head is one thread's, which adds its rows in order. */
sh_rc sh_cpu_sink_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *total = &call->in[2];
    int64_t H = call->attr->attn.heads, D = call->attr->attn.head_dim, rows = sh_cpu_elems(total) / H;
    const float *lse = total->data;
    float *dsink = call->out[0].data;

#pragma omp parallel for schedule(static)
    for (int64_t h = 0; h < H; h++) {
        float sink = number(&call->in[3], h);
        double sum = 0;

        for (int64_t row = 0; row < rows; row++)
            sum -= (double)expf(sink - lse[lse_at(total, row, h)]) *
                   (double)dot(&call->in[0], &call->in[1], (row * H + h) * D, D);
        dsink[h] = (float)(sum + (sh_op_adds(call, 0) ? (double)dsink[h] : 0));
    }
    return SH_OK;
}
