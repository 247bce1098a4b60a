/* The state-space dual form from a kept state on, row by row: a piece of a text has few. A thread has a head of a sequence and
 * changes its state in place.
 *
 * Scratch of a thread: a row of a head as f32, and what it makes. */
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"
#include "kernels/scan.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static int64_t floats_of(const struct sh_delta *s)
{
    return sh_cpu_round64(2 * (s->D + s->V) * 4) / 4;
}

int64_t sh_cpu_scan_cache_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_delta s = sh_space_of(call, &call->in[0]);

    return threads * floats_of(&s) * 4;
}

static double number(const struct sh_operand *x, int64_t at)
{
    float room;

    return (double)*sh_cpu_stage_in(x, at, 1, &room);
}

/* S = decay S + B (step X)', out = S'C + skip X */
static void run_row(const struct sh_op_call *call, const struct sh_delta *s, int64_t row, int64_t h, float *S,
                    float *room)
{
    const struct sh_operand *x = &call->in[0], *heads = &call->in[2], *y = &call->out[0];
    int64_t at = row * s->row, group = at + s->H * s->V + h / (s->H / s->K) * s->D, made = (row * s->H + h) * s->V;
    const float *X = sh_cpu_stage_in(x, at + h * s->V, s->V, room);
    const float *B = sh_cpu_stage_in(x, group, s->D, room + s->V);
    const float *C = sh_cpu_stage_in(x, group + s->K * s->D, s->D, room + s->V + s->D);
    float *out = sh_cpu_stage_out(y, made, s->V, room + s->V + 2 * s->D);
    double raw = number(&call->in[1], row * s->H + h) + number(heads, s->H + h);
    double step = fmax(fmax(raw, 0) + log1p(exp(-fabs(raw))), (double)call->attr->delta.least);
    float decay = (float)exp(-exp(number(heads, h)) * step), skip = (float)number(heads, 2 * s->H + h);

    for (int64_t v = 0; v < s->V; v++)
        out[v] = skip * X[v];
    for (int64_t d = 0; d < s->D; d++) {
        float write = B[d] * (float)step, *at_d = S + d * s->V;

        for (int64_t v = 0; v < s->V; v++) {
            at_d[v] = decay * at_d[v] + write * X[v];
            out[v] += C[d] * at_d[v];
        }
    }
    sh_cpu_stage_put(y, made, s->V, out);
}

static void run_head(const struct sh_op_call *call, const struct sh_delta *s, int64_t b, int64_t h, float *room)
{
    const struct sh_operand *y = &call->out[0];
    int64_t count = ((const int32_t *)call->in[4].data)[b];
    float *S = (float *)call->out[1].data + (b * s->H + h) * s->D * s->V;

    if (count && ((const int32_t *)call->in[3].data)[b * s->T] == 0)
        memset(S, 0, (size_t)(s->D * s->V) * sizeof *S);
    for (int64_t t = 0; t < count; t++)
        run_row(call, s, b * s->T + t, h, S, room);
    for (int64_t t = count; t < s->T; t++)
        memset(sh_cpu_at(y->data, y->dtype, ((b * s->T + t) * s->H + h) * s->V), 0,
               (size_t)(s->V * sh_dtype_bytes(y->dtype)));
}

sh_rc sh_cpu_scan_cache(const struct sh_op_call *call)
{
    struct sh_delta s = sh_space_of(call, &call->in[0]);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < s.B * s.H; i++)
        run_head(call, &s, i / s.H, i % s.H, (float *)call->work + omp_get_thread_num() * floats_of(&s));
    return SH_OK;
}
