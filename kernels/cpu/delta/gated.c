/* Gates: the norm of heads with its gate, a piece of one head at a time, and the gate of attention's output. Floor: each
 * operand once.
 *
 * Scratch of the norm's backward: a row of sums for each part of the heads (base/fold.h). */
#include "kernels/delta.h"

#include "kernels/cpu/base/fold.h"
#include "kernels/cpu/base/map.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

/* y = x rstd w silu(z) */
SH_CLONES static void gate_norm(float *y, const float *x, const float *z, const float *w, float rstd, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * rstd * w[i] * (z[i] * sh_sigmoidf(z[i]));
}

sh_rc sh_cpu_gated_norm(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *z = &call->in[1], *y = &call->out[0];
    int64_t V = call->attr->delta.value_dim, heads = sh_cpu_elems(x) / V;
    float *rstd = call->out[1].data, w_room[SH_DELTA_HEAD];
    const float *w = sh_cpu_stage_in(&call->in[2], 0, V, w_room);

#pragma omp parallel for schedule(static)
    for (int64_t h = 0; h < heads; h++) {
        float x_room[SH_DELTA_HEAD], z_room[SH_DELTA_HEAD], y_room[SH_DELTA_HEAD];
        const float *from = sh_cpu_stage_in(x, h * V, V, x_room);
        float *to = sh_cpu_stage_out(y, h * V, V, y_room);

        rstd[h] = 1 / sqrtf(sh_cpu_row_dot(from, from, V) / (float)V + call->attr->delta.eps);
        gate_norm(to, from, sh_cpu_stage_in(z, h * V, V, z_room), w, rstd[h], V);
        sh_cpu_stage_put(y, h * V, V, to);
    }
    return SH_OK;
}

/* n = x rstd; d = dy w silu(z); dz; dw += dy n silu(z). The rows may not overlap. */
SH_CLONES static void gate_back(float *restrict d, float *restrict dz, float *restrict dw, float *restrict n,
                                const float *restrict dy, const float *restrict z, const float *restrict w, int64_t V)
{
    for (int64_t i = 0; i < V; i++) {
        float s = sh_sigmoidf(z[i]), gated = z[i] * s;

        dw[i] += dy[i] * n[i] * gated;
        dz[i] = dy[i] * w[i] * n[i] * s * (1 + z[i] * (1 - s));
        d[i] = dy[i] * w[i] * gated;
    }
}

/* dx = rstd (d - n mean) */
SH_CLONES static void norm_back(float *dx, const float *d, const float *n, float rstd, float mean, int64_t V)
{
    for (int64_t i = 0; i < V; i++)
        dx[i] = rstd * (d[i] - n[i] * mean);
}

static void head_back(const struct sh_op_call *call, int64_t h, const float *w, float *dw)
{
    float dy[SH_DELTA_HEAD], z[SH_DELTA_HEAD], n[SH_DELTA_HEAD], d[SH_DELTA_HEAD], dz[SH_DELTA_HEAD], dx[SH_DELTA_HEAD];
    int64_t V = call->attr->delta.value_dim;
    float rstd = ((const float *)call->in[4].data)[h], *const rooms[] = {dy, n, z};

    for (int i = 0; i < 3; i++) {
        const struct sh_operand *t = &call->in[i];

        sh_cpu_block_load((struct sh_cpu_block){1, V}, rooms[i], V, sh_cpu_at(t->data, t->dtype, h * V), V, t->dtype);
    }
    sh_cpu_row_scale(n, V, rstd);
    gate_back(d, dz, dw, n, dy, z, w, V);
    norm_back(dx, d, n, rstd, sh_cpu_row_dot(d, n, V) / (float)V, V);
    for (int i = 0; i < 2; i++) {
        const struct sh_operand *t = &call->out[i];

        sh_cpu_block_store((struct sh_cpu_block){1, V}, sh_cpu_at(t->data, t->dtype, h * V), V, t->dtype, i ? dz : dx,
                           V);
    }
}

int64_t sh_cpu_gated_norm_bwd_work_bytes(const struct sh_op_call *call, int threads)
{
    int64_t V = call->attr->delta.value_dim;

    (void)threads;
    return sh_cpu_folds(sh_cpu_elems(&call->in[1]) / V) * sh_cpu_round64(V * 4);
}

sh_rc sh_cpu_gated_norm_bwd(const struct sh_op_call *call)
{
    int64_t V = call->attr->delta.value_dim, heads = sh_cpu_elems(&call->in[1]) / V;
    int64_t parts = sh_cpu_folds(heads), stride = sh_cpu_round64(V * 4) / 4;
    float *sums = call->work, w_room[SH_DELTA_HEAD];
    const float *w = sh_cpu_stage_in(&call->in[3], 0, V, w_room);

#pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < parts; part++) {
        memset(sums + part * stride, 0, (size_t)V * sizeof *sums);
        for (int64_t h = sh_cpu_fold_row(heads, part); h < sh_cpu_fold_row(heads, part + 1); h++)
            head_back(call, h, w, sums + part * stride);
    }
    if (call->out[2].data)
        sh_cpu_fold(call->out[2].data, sh_op_adds(call, 2), sums, parts, stride, V);
    return SH_OK;
}

/* ---- the gate of attention ---- */

SH_CLONES static void gate(float *y, const float *x, const float *z, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * sh_sigmoidf(z[i]);
}

sh_rc sh_cpu_gate(const struct sh_op_call *call)
{
    sh_cpu_map(&call->out[0], &call->in[0], &call->in[1], gate, NULL);
    return SH_OK;
}

/* dz = dy x s (1 - s) */
SH_CLONES static void gate_derivative(float *restrict dz, const float *restrict dy, const float *restrict x,
                                      const float *restrict z, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float s = sh_sigmoidf(z[i]);

        dz[i] = dy[i] * x[i] * s * (1 - s);
    }
}

sh_rc sh_cpu_gate_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1], *z = &call->in[2], *dz = &call->out[1];
    int64_t n = sh_cpu_elems(dy);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < sh_cpu_pieces(n); i++) {
        float dy_room[SH_CPU_PIECE], x_room[SH_CPU_PIECE], z_room[SH_CPU_PIECE], dz_room[SH_CPU_PIECE];
        int64_t at = i * SH_CPU_PIECE, m = sh_cpu_piece_elems(n, i);
        float *to = sh_cpu_stage_out(dz, at, m, dz_room);

        gate_derivative(to, sh_cpu_stage_in(dy, at, m, dy_room), sh_cpu_stage_in(x, at, m, x_room),
                        sh_cpu_stage_in(z, at, m, z_room), m);
        sh_cpu_stage_put(dz, at, m, to);
        sh_cpu_map_piece(&call->out[0], dy, z, gate, NULL, at, m);
    }
    return SH_OK;
}

/* Rows [q and gate head by head | k | v] apart, or back. */
static void move(const struct sh_operand *whole, const struct sh_operand *qkv, const struct sh_operand *gates,
                 const struct sh_op_attr *attr, bool join)
{
    int64_t size = sh_dtype_bytes(whole->dtype), D = attr->attn.head_dim * size, H = attr->attn.heads;
    int64_t wide = whole->dim[1] * size, narrow = qkv->dim[1] * size;

#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < whole->dim[0]; n++) {
        char *row = (char *)whole->data + n * wide, *left = (char *)qkv->data + n * narrow;
        char *right = (char *)gates->data + n * H * D;

        for (int64_t h = 0; h < H; h++) {
            char *q = row + 2 * h * D, *a = left + h * D, *b = right + h * D;

            memcpy(join ? q : a, join ? a : q, (size_t)D);
            memcpy(join ? q + D : b, join ? b : q + D, (size_t)D);
        }
        memcpy(join ? row + 2 * H * D : left + H * D, join ? left + H * D : row + 2 * H * D, (size_t)(narrow - H * D));
    }
}

sh_rc sh_cpu_split_gate(const struct sh_op_call *call)
{
    move(&call->in[0], &call->out[0], &call->out[1], call->attr, false);
    return SH_OK;
}

sh_rc sh_cpu_join_gate(const struct sh_op_call *call)
{
    move(&call->out[0], &call->in[0], &call->in[1], call->attr, true);
    return SH_OK;
}
