/* Between the products of latent attention and attention itself: queries, keys and values of heads, where ROPE and
 * attention expect them. Floor: each byte read once and written once; rows are moved by pieces of a head. */
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

/* Numbers of elements. */
struct sizes {
    int64_t H, P, R, V, D;
    int64_t bytes; /* of an element */
};

static struct sizes sizes_of(const struct sh_op_call *call)
{
    int64_t P = call->attr->latent.plain, R = call->attr->latent.turned;

    return (struct sizes){call->attr->latent.heads, P,     R,
                          call->attr->latent.value, P + R, sh_dtype_bytes(call->in[0].dtype)};
}

static char *elem(const struct sh_operand *t, int64_t at)
{
    return (char *)t->data + at * sh_dtype_bytes(t->dtype);
}

/* n elements from one place to another. */
static void move(const struct sizes *s, const struct sh_operand *to, int64_t at, const struct sh_operand *from,
                 int64_t begin, int64_t n)
{
    memcpy(elem(to, at), elem(from, begin), (size_t)(n * s->bytes));
}

/* Zeros have the same bytes in all types. */
static void clear(const struct sizes *s, const struct sh_operand *to, int64_t at, int64_t n)
{
    memset(elem(to, at), 0, (size_t)(n * s->bytes));
}

/* Head i of all rows: its query, key and value begin here in qkv. */
struct place {
    int64_t row, q, k, v;
};

static struct place place_of(const struct sizes *s, int64_t i)
{
    int64_t row = i / s->H, q = (row * 3 * s->H + i % s->H) * s->D;

    return (struct place){row, q, q + s->H * s->D, q + 2 * s->H * s->D};
}

sh_rc sh_cpu_latent_heads(const struct sh_op_call *call)
{
    const struct sh_operand *q = &call->in[0], *kv = &call->in[1], *turned = &call->in[2], *qkv = &call->out[0];
    struct sizes s = sizes_of(call);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < q->dim[0] * s.H; i++) {
        struct place at = place_of(&s, i);
        int64_t pair = i * (s.P + s.V); /* a key without position, and a value */

        move(&s, qkv, at.q, q, i * s.D + s.P, s.R);
        move(&s, qkv, at.q + s.R, q, i * s.D, s.P);
        move(&s, qkv, at.k, turned, at.row * s.R, s.R);
        move(&s, qkv, at.k + s.R, kv, pair, s.P);
        move(&s, qkv, at.v, kv, pair + s.P, s.V);
        clear(&s, qkv, at.v + s.V, s.D - s.V);
    }
    return SH_OK;
}

/* The gradient of the vector that all heads of a row share, in the order of heads. */
static void add_heads(const struct sizes *s, const struct sh_operand *dqkv, const struct sh_operand *dturned,
                      int64_t row)
{
    int64_t first = place_of(s, row * s->H).k;

    for (int64_t d = 0, n; d < s->R; d += n) {
        float to_room[SH_CPU_PIECE], room[SH_CPU_PIECE], *sum;

        n = s->R - d < SH_CPU_PIECE ? s->R - d : SH_CPU_PIECE;
        sum = sh_cpu_stage_out(dturned, row * s->R + d, n, to_room);
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t h = 0; h < s->H; h++) {
            const float *x = sh_cpu_stage_in(dqkv, first + h * s->D + d, n, room);

            for (int64_t i = 0; i < n; i++)
                sum[i] += x[i];
        }
        sh_cpu_stage_put(dturned, row * s->R + d, n, sum);
    }
}

sh_rc sh_cpu_latent_heads_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dqkv = &call->in[0], *dq = &call->out[0], *dkv = &call->out[1], *dturned = &call->out[2];
    struct sizes s = sizes_of(call);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < dqkv->dim[0] * s.H; i++) {
        struct place at = place_of(&s, i);
        int64_t pair = i * (s.P + s.V);

        if (dq->data) {
            move(&s, dq, i * s.D, dqkv, at.q + s.R, s.P);
            move(&s, dq, i * s.D + s.P, dqkv, at.q, s.R);
        }
        if (dkv->data) {
            move(&s, dkv, pair, dqkv, at.k + s.R, s.P);
            move(&s, dkv, pair + s.P, dqkv, at.v, s.V);
        }
    }
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < (dturned->data ? dqkv->dim[0] : 0); row++)
        add_heads(&s, dqkv, dturned, row);
    return SH_OK;
}

sh_rc sh_cpu_latent_values(const struct sh_op_call *call)
{
    struct sizes s = sizes_of(call);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < call->in[0].dim[0] * s.H; i++)
        move(&s, &call->out[0], i * s.V, &call->in[0], i * s.D, s.V);
    return SH_OK;
}

sh_rc sh_cpu_latent_values_bwd(const struct sh_op_call *call)
{
    struct sizes s = sizes_of(call);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < call->in[0].dim[0] * s.H; i++) {
        move(&s, &call->out[0], i * s.D, &call->in[0], i * s.V, s.V);
        clear(&s, &call->out[0], i * s.D + s.V, s.D - s.V);
    }
    return SH_OK;
}
