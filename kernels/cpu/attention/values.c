/* Norms of values without a weight (Gemma 4), between the product and the norms of queries and keys. Floor: each byte read
 * once and written once; queries and keys are moved as they are. */
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* Elements of a row: up to the keys, of all keys, from where values come, and of a row of x. */
struct places {
    int64_t keys, width, from, in, out, D, K;
};

static struct places places_of(const struct sh_op_call *call)
{
    int64_t D = call->attr->values.head_dim, keys = call->attr->values.heads * D;
    int64_t width = call->attr->values.kv_heads * D, in = keys + call->attr->values.kv_in * D;

    return (struct places){keys, width, in - width, in, keys + 2 * width, D, call->attr->values.kv_heads};
}

static void move(const struct sh_operand *to, int64_t at, const struct sh_operand *from, int64_t begin, int64_t n)
{
    int64_t bytes = sh_dtype_bytes(to->dtype);

    memcpy((char *)to->data + at * bytes, (const char *)from->data + begin * bytes, (size_t)(n * bytes));
}

static float dot(const struct sh_operand *a, int64_t at, const struct sh_operand *b, int64_t begin, int64_t n)
{
    float sum = 0;

    for (int64_t i = 0, here; i < n; i += here) {
        float a_room[SH_CPU_PIECE], b_room[SH_CPU_PIECE];

        here = n - i < SH_CPU_PIECE ? n - i : SH_CPU_PIECE;
        sum +=
            sh_cpu_row_dot(sh_cpu_stage_in(a, at + i, here, a_room), sh_cpu_stage_in(b, begin + i, here, b_room), here);
    }
    return sum;
}

sh_rc sh_cpu_value_norm(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    struct places s = places_of(call);
    float *rstd = call->out[1].data;

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < x->dim[0] * s.K; i++) {
        int64_t row = i / s.K, head = i % s.K, at = row * s.in + s.from + head * s.D;
        int64_t to = row * s.out + s.keys + s.width + head * s.D;

        if (head == 0)
            move(y, row * s.out, x, row * s.in, s.keys + s.width);
        rstd[i] = 1 / sqrtf(dot(x, at, x, at, s.D) / (float)s.D + call->attr->values.eps);
        for (int64_t d = 0, n; d < s.D; d += n) {
            float from_room[SH_CPU_PIECE], room[SH_CPU_PIECE], *out;
            const float *in;

            n = s.D - d < SH_CPU_PIECE ? s.D - d : SH_CPU_PIECE;
            in = sh_cpu_stage_in(x, at + d, n, from_room);
            out = sh_cpu_stage_out(y, to + d, n, room);
            for (int64_t k = 0; k < n; k++)
                out[k] = in[k] * rstd[i];
            sh_cpu_stage_put(y, to + d, n, out);
        }
    }
    return SH_OK;
}

/* Elements [d, d + n) of the gradient of what a head's value is made of; of keys too if these are values as well. */
static void back(const struct sh_op_call *call, const struct places *s, int64_t row, int64_t head, int64_t d, int64_t n,
                 float rstd, float mean)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1], *dx = &call->out[0];
    float dv_room[SH_CPU_PIECE], dk_room[SH_CPU_PIECE], x_room[SH_CPU_PIECE], room[SH_CPU_PIECE];
    int64_t in_head = head * s->D + d, at = row * s->in + s->from + in_head, key = row * s->out + s->keys + in_head;
    const float *dv = sh_cpu_stage_in(dy, key + s->width, n, dv_room), *from = sh_cpu_stage_in(x, at, n, x_room);
    const float *dk = s->from == s->keys ? sh_cpu_stage_in(dy, key, n, dk_room) : NULL;
    float *to = sh_cpu_stage_out(dx, at, n, room);

    for (int64_t k = 0; k < n; k++)
        to[k] = rstd * (dv[k] - from[k] * rstd * mean) + (dk ? dk[k] : 0);
    sh_cpu_stage_put(dx, at, n, to);
}

/* With n = x rstd: dx = rstd (dv - n mean(dv n)). */
sh_rc sh_cpu_value_norm_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1], *dx = &call->out[0];
    struct places s = places_of(call);
    const float *rstd = call->in[2].data;

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < x->dim[0] * s.K; i++) {
        int64_t row = i / s.K, head = i % s.K;
        float sum = dot(dy, row * s.out + s.keys + s.width + head * s.D, x, row * s.in + s.from + head * s.D, s.D);

        if (head == 0)
            move(dx, row * s.in, dy, row * s.out, s.from);
        for (int64_t d = 0, n; d < s.D; d += n) {
            n = s.D - d < SH_CPU_PIECE ? s.D - d : SH_CPU_PIECE;
            back(call, &s, row, head, d, n, rstd[i], sum * rstd[i] / (float)s.D);
        }
    }
    return SH_OK;
}
