/* Activations. Bytes per element, f32 (bf16: half): gelu 8, gelu_bwd 12, swiglu and geglu 12, their backward 20.
 * Measured at [16384,3072] on one core of a Zen 5 server whose memcpy moves 40 GB/s from memory: f32 34, 34, 21, 28
 * GB/s; bf16 12 to 14 GB/s, where the time goes to the arithmetic (0.22 ns per element for gelu) and the conversions.
 *
 * GELU's tanh form is x sigmoid(2u): one exponential, and no cancellation where tanh is near -1. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/fold.h"
#include "kernels/cpu/base/map.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/base/wide.h"

#include <string.h>

static const float two_root_2_pi = 1.5957691216057308f; /* 2 sqrt(2/pi) */
static const float cubic = 0.044715f;
static const float root_half = 0.70710678f, root_half_pi = 0.39894228f; /* sqrt(1/2), 1/sqrt(2 pi) */

SH_CLONES static void gelu(float *y, const float *x, const float *none, int64_t n)
{
    (void)none;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * sh_sigmoidf(two_root_2_pi * (x[i] + cubic * x[i] * x[i] * x[i]));
}

/* z is x where du matters; past 20 the sigmoid is 0 or 1 and z prevents 0 * du from being 0 * Inf. NaN stays NaN. */
SH_CLONES static void gelu_bwd(float *dx, const float *dy, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float s = sh_sigmoidf(two_root_2_pi * (x[i] + cubic * x[i] * x[i] * x[i]));
        float z = x[i] > 20.0f ? 20.0f : x[i] < -20.0f ? -20.0f : x[i];
        float du = two_root_2_pi * (1.0f + 3 * cubic * z * z);
        dx[i] = dy[i] * (s + x[i] * s * (1.0f - s) * du);
    }
}

/* The C library's function, one element at a time: few models use it, and next to their products it costs little. */
static void gelu_erf(float *y, const float *x, const float *none, int64_t n)
{
    (void)none;
    for (int64_t i = 0; i < n; i++)
        y[i] = 0.5f * x[i] * erfcf(-x[i] * root_half);
}

static void gelu_erf_bwd(float *dx, const float *dy, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = dy[i] * (0.5f * erfcf(-x[i] * root_half) + x[i] * root_half_pi * expf(-0.5f * x[i] * x[i]));
}

sh_rc sh_cpu_gelu_erf(const struct sh_op_call *call)
{
    sh_cpu_map(&call->out[0], &call->in[0], NULL, gelu_erf, NULL);
    return SH_OK;
}

sh_rc sh_cpu_gelu_erf_bwd(const struct sh_op_call *call)
{
    sh_cpu_map(&call->out[0], &call->in[0], &call->in[1], gelu_erf_bwd, NULL);
    return SH_OK;
}

SH_CLONES static void squared_relu(float *y, const float *x, const float *none, int64_t n)
{
    (void)none;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] < 0 ? 0 : x[i] * x[i];
}

SH_CLONES static void squared_relu_bwd(float *dx, const float *dy, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dx[i] = 2 * dy[i] * (x[i] < 0 ? 0 : x[i]);
}

sh_rc sh_cpu_squared_relu(const struct sh_op_call *call)
{
    sh_cpu_map(&call->out[0], &call->in[0], NULL, squared_relu, NULL);
    return SH_OK;
}

sh_rc sh_cpu_squared_relu_bwd(const struct sh_op_call *call)
{
    sh_cpu_map(&call->out[0], &call->in[0], &call->in[1], squared_relu_bwd, NULL);
    return SH_OK;
}

/* y = gelu(x), any shape: [n]. */
sh_rc sh_cpu_gelu(const struct sh_op_call *call)
{
    sh_cpu_map(&call->out[0], &call->in[0], NULL, gelu, sh_wide_gelu());
    return SH_OK;
}

/* dx from dy and x, all [n]. */
sh_rc sh_cpu_gelu_bwd(const struct sh_op_call *call)
{
    sh_cpu_map(&call->out[0], &call->in[0], &call->in[1], gelu_bwd, sh_wide_gelu_bwd());
    return SH_OK;
}

/* One row of sums [F] per part of the rows. The number of parts depends on the rows only, so threads change no bit. */
int64_t sh_cpu_gelu_bwd_bias_work_bytes(const struct sh_op_call *call, int threads)
{
    int64_t F = sh_cpu_elems(&call->out[1]);

    (void)threads;
    return sh_cpu_folds(sh_cpu_elems(&call->in[0]) / F) * F * (int64_t)sizeof(float);
}

/* Compute elements [at, at + n) of dx and add their columns to sum [n]. */
static void gelu_bwd_bias_piece(const struct sh_op_call *call, bool done, int64_t at, int64_t n, float *sum)
{
    const struct sh_operand *dx = &call->out[0];

    if (!done)
        sh_cpu_map_piece(dx, &call->in[0], &call->in[1], gelu_bwd, sh_wide_gelu_bwd(), at, n);
    sh_cpu_block_add((struct sh_cpu_block){1, n}, sum, n, sh_cpu_at(dx->data, dx->dtype, at), n, dx->dtype);
}

/* In pieces that stay in the L1 cache between the two passes over dx. */
static void gelu_bwd_bias_row(const struct sh_op_call *call, bool done, int64_t row, int64_t F, float *sum)
{
    for (int64_t p = 0; p < sh_cpu_pieces(F); p++)
        gelu_bwd_bias_piece(call, done, row * F + p * SH_CPU_PIECE, sh_cpu_piece_elems(F, p), sum + p * SH_CPU_PIECE);
}

/* GELU_BWD processes dx as one vector, and the remainder after whole vectors of the processor may be rounded
 * differently. So rows that are not a whole number of vectors are not processed one by one. */
sh_rc sh_cpu_gelu_bwd_bias(const struct sh_op_call *call)
{
    enum { VECTOR = 64 };
    int64_t F = sh_cpu_elems(&call->out[1]), rows = sh_cpu_elems(&call->in[0]) / F, parts = sh_cpu_folds(rows);
    /* Whole tensor first, then only the column sums: see above. */
    bool done = F % VECTOR != 0;
    float *sums = call->work;

    SH_REQUIRE(call->work_bytes >= sh_cpu_gelu_bwd_bias_work_bytes(call, 1));
    if (done)
        SH_TRY(sh_cpu_gelu_bwd(call));
#pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < parts; part++) {
        memset(sums + part * F, 0, (size_t)F * sizeof *sums);
        for (int64_t row = sh_cpu_fold_row(rows, part); row < sh_cpu_fold_row(rows, part + 1); row++)
            gelu_bwd_bias_row(call, done, row, F, sums + part * F);
    }
    sh_cpu_fold(call->out[1].data, sh_op_adds(call, 1), sums, parts, F, F);
    return SH_OK;
}

/* h = silu(gate) up. All [n]. */
SH_CLONES static void swiglu(float *h, const float *gate, const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        h[i] = gate[i] * sh_sigmoidf(gate[i]) * up[i];
}

/* From s = sigmoid(gate): d silu / d gate = s (1 + gate (1 - s)). */
SH_CLONES static void swiglu_bwd(float *dgate, float *dup, const float *dh, const float *gate, const float *up,
                                 int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float s = sh_sigmoidf(gate[i]);
        dgate[i] = dh[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
        dup[i] = dh[i] * gate[i] * s;
    }
}

/* GELU in place of silu. */
SH_CLONES static void geglu(float *h, const float *gate, const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i];
        h[i] = g * sh_sigmoidf(two_root_2_pi * (g + cubic * g * g * g)) * up[i];
    }
}

/* z as in gelu_bwd. */
SH_CLONES static void geglu_bwd(float *dgate, float *dup, const float *dh, const float *gate, const float *up,
                                int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], s = sh_sigmoidf(two_root_2_pi * (g + cubic * g * g * g));
        float z = g > 20.0f ? 20.0f : g < -20.0f ? -20.0f : g;
        float du = two_root_2_pi * (1.0f + 3 * cubic * z * z);
        dgate[i] = dh[i] * up[i] * (s + g * s * (1.0f - s) * du);
        dup[i] = dh[i] * g * s;
    }
}

/* Elements [f, f + n) of row `row`, which has F elements. */
static void gated_piece(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    const struct sh_operand *gu = &call->in[0], *h = &call->out[0];
    float gate_room[SH_CPU_PIECE], up_room[SH_CPU_PIECE], h_room[SH_CPU_PIECE];
    float *to = sh_cpu_stage_out(h, row * F + f, n, h_room);
    int64_t gate = row * 2 * F + f, up = gate + F;

    (call->kind == SH_OP_GEGLU ? geglu : swiglu)(to, sh_cpu_stage_in(gu, gate, n, gate_room),
                                                 sh_cpu_stage_in(gu, up, n, up_room), n);
    sh_cpu_stage_put(h, row * F + f, n, to);
}

/* gu and dgu [N,2F]: a row is all gates, then all ups. */
static void gated_bwd_piece(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    const struct sh_operand *dh = &call->in[0], *gu = &call->in[1], *dgu = &call->out[0];
    float dh_room[SH_CPU_PIECE], gate_room[SH_CPU_PIECE], up_room[SH_CPU_PIECE];
    float dgate_room[SH_CPU_PIECE], dup_room[SH_CPU_PIECE];
    int64_t gate = row * 2 * F + f, up = gate + F;
    float *dgate = sh_cpu_stage_out(dgu, gate, n, dgate_room), *dup = sh_cpu_stage_out(dgu, up, n, dup_room);

    (call->kind == SH_OP_GEGLU_BWD ? geglu_bwd : swiglu_bwd)(dgate, dup, sh_cpu_stage_in(dh, row * F + f, n, dh_room),
                                                             sh_cpu_stage_in(gu, gate, n, gate_room),
                                                             sh_cpu_stage_in(gu, up, n, up_room), n);
    sh_cpu_stage_put(dgu, gate, n, dgate);
    sh_cpu_stage_put(dgu, up, n, dup);
}

/* The same if everything is bf16 and there are loops for it. */
static void swiglu_wide(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    const sh_bf16 *gate = (const sh_bf16 *)call->in[0].data + row * 2 * F + f;

    sh_wide_swiglu()((sh_bf16 *)call->out[0].data + row * F + f, gate, gate + F, n);
}

static void swiglu_bwd_wide(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n)
{
    const sh_bf16 *dh = (const sh_bf16 *)call->in[0].data + row * F + f;
    const sh_bf16 *gate = (const sh_bf16 *)call->in[1].data + row * 2 * F + f;
    sh_bf16 *dgate = (sh_bf16 *)call->out[0].data + row * 2 * F + f;

    sh_wide_swiglu_bwd()(dgate, dgate + F, dh, gate, gate + F, n);
}

typedef void (*row_piece_fn)(const struct sh_op_call *call, int64_t row, int64_t F, int64_t f, int64_t n);

/* Pieces of all rows in one loop, so that a few long rows still give work to all threads. */
static void over_rows(const struct sh_op_call *call, const struct sh_operand *h, row_piece_fn f)
{
    int64_t F = h->dim[h->ndim - 1], pieces = sh_cpu_pieces(F), all = sh_cpu_elems(h) / F * pieces;

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < all; p++)
        f(call, p / pieces, F, p % pieces * SH_CPU_PIECE, sh_cpu_piece_elems(F, p % pieces));
}

sh_rc sh_cpu_swiglu(const struct sh_op_call *call)
{
    bool bf16 = call->in[0].dtype == SH_BF16 && call->out[0].dtype == SH_BF16;

    over_rows(call, &call->out[0], bf16 && sh_wide_swiglu() ? swiglu_wide : gated_piece);
    return SH_OK;
}

sh_rc sh_cpu_swiglu_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dh = &call->in[0], *gu = &call->in[1], *dgu = &call->out[0];
    bool bf16 = dh->dtype == SH_BF16 && gu->dtype == SH_BF16 && dgu->dtype == SH_BF16;

    over_rows(call, dh, bf16 && sh_wide_swiglu_bwd() ? swiglu_bwd_wide : gated_bwd_piece);
    return SH_OK;
}

sh_rc sh_cpu_geglu(const struct sh_op_call *call)
{
    over_rows(call, &call->out[0], gated_piece);
    return SH_OK;
}

sh_rc sh_cpu_geglu_bwd(const struct sh_op_call *call)
{
    over_rows(call, &call->in[0], gated_bwd_piece);
    return SH_OK;
}
