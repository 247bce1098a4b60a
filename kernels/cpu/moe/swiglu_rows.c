/* SwiGLU, or the square of what is above 0, of the experts' rows, times the weight that the router gave each row. Bytes
 * per element as for swiglu (act.c): 12 in f32, half of it in 16 bits; 20 in the backward. Of squares 8 and 12. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/base/wide.h"

SH_CLONES static void forward(float *h, const float *gate, const float *up, float weight, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        h[i] = gate[i] * sh_sigmoidf(gate[i]) * up[i] * weight;
}

/* Returns the part of dweight: the sum of dh silu(gate) up. */
SH_CLONES static float backward(float *dgate, float *dup, const float *dh, const float *gate, const float *up,
                                float weight, int64_t n)
{
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float s = sh_sigmoidf(gate[i]), d = dh[i] * weight;
        sum += dh[i] * gate[i] * s * up[i];
        dgate[i] = d * up[i] * s * (1.0f + gate[i] * (1.0f - s));
        dup[i] = d * gate[i] * s;
    }
    return sum;
}

/* What gpt-oss has in place of it (kernels/op.h): gate and up are neighbours. */
struct limits {
    float limit, alpha;
};

SH_CLONES static void forward_limited(float *h, const float *gu, struct limits by, float weight, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float gate = gu[2 * i], up = gu[2 * i + 1];
        gate = gate > by.limit ? by.limit : gate;
        up = up > by.limit ? by.limit : up < -by.limit ? -by.limit : up;
        h[i] = gate * sh_sigmoidf(by.alpha * gate) * (up + 1.0f) * weight;
    }
}

/* Returns the part of dweight. */
SH_CLONES static float backward_limited(float *dgu, const float *dh, const float *gu, struct limits by, float weight,
                                        int64_t n)
{
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float gate = gu[2 * i], up = gu[2 * i + 1], d = dh[i] * weight, s;
        float gate_passes = gate > by.limit ? 0.0f : 1.0f, up_passes = up > by.limit || up < -by.limit ? 0.0f : 1.0f;
        gate = gate > by.limit ? by.limit : gate;
        up = (up > by.limit ? by.limit : up < -by.limit ? -by.limit : up) + 1.0f;
        s = sh_sigmoidf(by.alpha * gate);
        sum += dh[i] * gate * s * up;
        dgu[2 * i] = gate_passes * d * up * s * (1.0f + by.alpha * gate * (1.0f - s));
        dgu[2 * i + 1] = up_passes * d * gate * s;
    }
    return sum;
}

SH_CLONES static void forward_squared(float *h, const float *x, float weight, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        h[i] = (x[i] < 0 ? 0 : x[i] * x[i]) * weight;
}

/* Returns the part of dweight. */
SH_CLONES static float backward_squared(float *dx, const float *dh, const float *x, float weight, int64_t n)
{
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float above = x[i] < 0 ? 0 : x[i];
        sum += dh[i] * above * above;
        dx[i] = 2 * dh[i] * weight * above;
    }
    return sum;
}

static struct limits limits_of(const struct sh_op_call *call)
{
    return (struct limits){call->attr->rows.limit, call->attr->rows.alpha};
}

/* Where the weight of a row is. */
static int64_t entry_of(const struct sh_operand *order, int64_t row)
{
    return order->data ? ((const int32_t *)order->data)[row] : row;
}

static float weight_of(const struct sh_operand *weight, const struct sh_operand *order, int64_t row)
{
    return ((const float *)weight->data)[entry_of(order, row)];
}

static int64_t live_rows(const struct sh_operand *first, int64_t M)
{
    return first->data ? ((const int32_t *)first->data)[sh_cpu_elems(first) - 1] : M;
}

/* Elements [f, f + n) of a row. */
static void forward_piece(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    const struct sh_operand *gu = &call->in[0], *h = &call->out[0];
    float gate_room[SH_CPU_PIECE], up_room[SH_CPU_PIECE], h_room[SH_CPU_PIECE];
    float *to = sh_cpu_stage_out(h, row * F + f, n, h_room);
    int64_t gate = row * 2 * F + f, up = gate + F;

    forward(to, sh_cpu_stage_in(gu, gate, n, gate_room), sh_cpu_stage_in(gu, up, n, up_room),
            weight_of(&call->in[1], &call->in[2], row), n);
    sh_cpu_stage_put(h, row * F + f, n, to);
}

/* The same with a limit. */
static void forward_piece_limited(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    const struct sh_operand *gu = &call->in[0], *h = &call->out[0];
    float gu_room[2 * SH_CPU_PIECE], h_room[SH_CPU_PIECE];
    float *to = sh_cpu_stage_out(h, row * F + f, n, h_room);

    forward_limited(to, sh_cpu_stage_in(gu, 2 * (row * F + f), 2 * n, gu_room), limits_of(call),
                    weight_of(&call->in[1], &call->in[2], row), n);
    sh_cpu_stage_put(h, row * F + f, n, to);
}

static float backward_piece_limited(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    const struct sh_operand *dh = &call->in[0], *gu = &call->in[1], *dgu = &call->out[0];
    float dh_room[SH_CPU_PIECE], gu_room[2 * SH_CPU_PIECE], dgu_room[2 * SH_CPU_PIECE];
    int64_t at = 2 * (row * F + f);
    float *to = sh_cpu_stage_out(dgu, at, 2 * n, dgu_room);
    float sum = backward_limited(to, sh_cpu_stage_in(dh, row * F + f, n, dh_room),
                                 sh_cpu_stage_in(gu, at, 2 * n, gu_room), limits_of(call),
                                 weight_of(&call->in[2], &call->in[3], row), n);

    sh_cpu_stage_put(dgu, at, 2 * n, to);
    return sum;
}

static float backward_piece(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    const struct sh_operand *dh = &call->in[0], *gu = &call->in[1], *dgu = &call->out[0];
    float dh_room[SH_CPU_PIECE], gate_room[SH_CPU_PIECE], up_room[SH_CPU_PIECE];
    float dgate_room[SH_CPU_PIECE], dup_room[SH_CPU_PIECE];
    int64_t gate = row * 2 * F + f, up = gate + F;
    float *dgate = sh_cpu_stage_out(dgu, gate, n, dgate_room), *dup = sh_cpu_stage_out(dgu, up, n, dup_room);
    float sum = backward(dgate, dup, sh_cpu_stage_in(dh, row * F + f, n, dh_room),
                         sh_cpu_stage_in(gu, gate, n, gate_room), sh_cpu_stage_in(gu, up, n, up_room),
                         weight_of(&call->in[2], &call->in[3], row), n);

    sh_cpu_stage_put(dgu, gate, n, dgate);
    sh_cpu_stage_put(dgu, up, n, dup);
    return sum;
}

/* Of squares, whose rows are as long as what they make. */
static void forward_piece_squared(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    float x_room[SH_CPU_PIECE], h_room[SH_CPU_PIECE];
    float *to = sh_cpu_stage_out(&call->out[0], row * F + f, n, h_room);

    forward_squared(to, sh_cpu_stage_in(&call->in[0], row * F + f, n, x_room),
                    weight_of(&call->in[1], &call->in[2], row), n);
    sh_cpu_stage_put(&call->out[0], row * F + f, n, to);
}

static float backward_piece_squared(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    float dh_room[SH_CPU_PIECE], x_room[SH_CPU_PIECE], dx_room[SH_CPU_PIECE];
    int64_t at = row * F + f;
    float *to = sh_cpu_stage_out(&call->out[0], at, n, dx_room);
    float sum = backward_squared(to, sh_cpu_stage_in(&call->in[0], at, n, dh_room),
                                 sh_cpu_stage_in(&call->in[1], at, n, x_room),
                                 weight_of(&call->in[2], &call->in[3], row), n);

    sh_cpu_stage_put(&call->out[0], at, n, to);
    return sum;
}

/* SwiGLU if everything is bf16 and there are loops for it. */
static void forward_wide(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    const sh_bf16 *gate = (const sh_bf16 *)call->in[0].data + row * 2 * F + f;

    sh_wide_swiglu_row()((sh_bf16 *)call->out[0].data + row * F + f, gate, gate + F,
                         weight_of(&call->in[1], &call->in[2], row), n);
}

static float backward_wide(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    const sh_bf16 *dh = (const sh_bf16 *)call->in[0].data + row * F + f;
    const sh_bf16 *gate = (const sh_bf16 *)call->in[1].data + row * 2 * F + f;
    sh_bf16 *dgate = (sh_bf16 *)call->out[0].data + row * 2 * F + f;

    return sh_wide_swiglu_row_bwd()(dgate, dgate + F, dh, gate, gate + F, weight_of(&call->in[2], &call->in[3], row),
                                    n);
}

/* Elements [f, f + n) of a row. */
typedef void (*forward_fn)(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n);
typedef float (*backward_fn)(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n);

static forward_fn forward_of(const struct sh_op_call *call)
{
    if (call->attr->rows.limit > 0)
        return forward_piece_limited;
    return call->in[0].dtype == SH_BF16 && sh_wide_swiglu_row() ? forward_wide : forward_piece;
}

static backward_fn backward_of(const struct sh_op_call *call)
{
    if (call->attr->rows.limit > 0)
        return backward_piece_limited;
    return call->in[0].dtype == SH_BF16 && sh_wide_swiglu_row_bwd() ? backward_wide : backward_piece;
}

/* Pieces of all rows in one loop, as in act.c. */
static sh_rc run_forward(const struct sh_op_call *call, forward_fn piece)
{
    int64_t M = call->out[0].dim[0], F = call->out[0].dim[1], pieces = sh_cpu_pieces(F);
    int64_t live = live_rows(&call->in[3], M);

    SH_REQUIRE(live >= 0 && live <= M);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < live * pieces; p++)
        piece(call, p / pieces, F, p % pieces * SH_CPU_PIECE, sh_cpu_piece_elems(F, p % pieces));
    return SH_OK;
}

/* A row is one thread's, which adds its pieces in order. */
static sh_rc run_backward(const struct sh_op_call *call, backward_fn piece)
{
    int64_t M = call->in[0].dim[0], F = call->in[0].dim[1], pieces = sh_cpu_pieces(F);
    int64_t live = live_rows(&call->in[4], M);
    const float *more = call->in[5].data;
    float *dweight = call->out[1].data;

    SH_REQUIRE(live >= 0 && live <= M);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < live; row++) {
        float sum = 0;
        for (int64_t p = 0; p < pieces; p++)
            sum += piece(call, row, F, p * SH_CPU_PIECE, sh_cpu_piece_elems(F, p));
        dweight[entry_of(&call->in[3], row)] = sum + (more ? more[entry_of(&call->in[3], row)] : 0);
    }
    return SH_OK;
}

sh_rc sh_cpu_swiglu_rows(const struct sh_op_call *call)
{
    return run_forward(call, forward_of(call));
}

sh_rc sh_cpu_swiglu_rows_bwd(const struct sh_op_call *call)
{
    return run_backward(call, backward_of(call));
}

sh_rc sh_cpu_squared_relu_rows(const struct sh_op_call *call)
{
    return run_forward(call, forward_piece_squared);
}

sh_rc sh_cpu_squared_relu_rows_bwd(const struct sh_op_call *call)
{
    return run_backward(call, backward_piece_squared);
}
