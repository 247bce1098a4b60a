/* The norm of groups of columns that a gate has multiplied, a piece of one row's group at a time. Floor: each operand once.
 *
 * Scratch: w as f32; of a thread a few rows of a group; in the backward a row of sums for each part of the rows
 * (base/fold.h). */
#include "kernels/cpu/base/fold.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <string.h>

enum { FORWARD_ROWS = 2, BACKWARD_ROWS = 4 };

/* Columns of a group; floats of a row of it, and of all columns. */
static int64_t width_of(const struct sh_op_call *call)
{
    return call->attr->delta.value_dim;
}

static int64_t stride_of(int64_t n)
{
    return sh_cpu_round64(n * 4) / 4;
}

static int64_t all_of(const struct sh_op_call *call)
{
    return width_of(call) * call->attr->delta.heads;
}

int64_t sh_cpu_gate_norm_work_bytes(const struct sh_op_call *call, int threads)
{
    return (stride_of(all_of(call)) + threads * FORWARD_ROWS * stride_of(width_of(call))) * 4;
}

int64_t sh_cpu_gate_norm_bwd_work_bytes(const struct sh_op_call *call, int threads)
{
    int64_t parts = sh_cpu_folds(call->in[0].dim[0]);

    return ((1 + parts) * stride_of(all_of(call)) + threads * BACKWARD_ROWS * stride_of(width_of(call))) * 4;
}

static float *load_weights(const struct sh_op_call *call, const struct sh_operand *w)
{
    int64_t n = all_of(call);

    sh_cpu_block_load((struct sh_cpu_block){1, n}, call->work, n, w->data, n, w->dtype);
    return call->work;
}

static void load(const struct sh_operand *t, int64_t at, int64_t n, float *to)
{
    sh_cpu_block_load((struct sh_cpu_block){1, n}, to, n, sh_cpu_at(t->data, t->dtype, at), n, t->dtype);
}

static void store(const struct sh_operand *t, int64_t at, int64_t n, const float *from)
{
    sh_cpu_block_store((struct sh_cpu_block){1, n}, sh_cpu_at(t->data, t->dtype, at), n, t->dtype, from, n);
}

/* x = x silu(z) */
SH_CLONES static void gate(float *restrict x, const float *restrict z, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= z[i] * sh_sigmoidf(z[i]);
}

/* y = y rstd w */
SH_CLONES static void weigh(float *restrict y, const float *restrict w, float rstd, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] *= rstd * w[i];
}

sh_rc sh_cpu_gate_norm(const struct sh_op_call *call)
{
    int64_t V = width_of(call), H = call->attr->delta.heads, rows = call->in[0].dim[0];
    float *rstd = call->out[1].data;
    const float *w = load_weights(call, &call->in[2]);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * H; i++) {
        float *x = (float *)call->work + stride_of(V * H) + omp_get_thread_num() * FORWARD_ROWS * stride_of(V);
        float *z = x + stride_of(V);

        load(&call->in[0], i * V, V, x);
        load(&call->in[1], i * V, V, z);
        gate(x, z, V);
        rstd[i] = 1 / sqrtf(sh_cpu_row_dot(x, x, V) / (float)V + call->attr->delta.eps);
        weigh(x, w + i % H * V, rstd[i], V);
        store(&call->out[0], i * V, V, x);
    }
    return SH_OK;
}

/* n = x silu(z) rstd, d = dy w, dw += dy n; dy becomes d. */
SH_CLONES static void weights_back(float *restrict n, float *restrict dy, float *restrict dw, const float *restrict x,
                                   const float *restrict z, const float *restrict w, float rstd, int64_t V)
{
    for (int64_t i = 0; i < V; i++) {
        n[i] = x[i] * (z[i] * sh_sigmoidf(z[i])) * rstd;
        dw[i] += dy[i] * n[i];
        dy[i] *= w[i];
    }
}

/* With du = rstd (d - n mean): dx = du silu(z), dz = du x silu'(z), in place of x and z. */
SH_CLONES static void inputs_back(float *restrict x, float *restrict z, const float *restrict d,
                                  const float *restrict n, float rstd, float mean, int64_t V)
{
    for (int64_t i = 0; i < V; i++) {
        float du = rstd * (d[i] - n[i] * mean), s = sh_sigmoidf(z[i]), gated = z[i] * s;
        float dz = du * x[i] * s * (1 + z[i] * (1 - s));

        x[i] = du * gated;
        z[i] = dz;
    }
}

static void group_back(const struct sh_op_call *call, int64_t i, const float *w, float *room, float *dw)
{
    int64_t V = width_of(call), stride = stride_of(V);
    float *dy = room, *x = dy + stride, *z = x + stride, *n = z + stride, rstd = ((const float *)call->in[4].data)[i];

    load(&call->in[0], i * V, V, dy);
    load(&call->in[1], i * V, V, x);
    load(&call->in[2], i * V, V, z);
    weights_back(n, dy, dw, x, z, w, rstd, V);
    inputs_back(x, z, dy, n, rstd, sh_cpu_row_dot(dy, n, V) / (float)V, V);
    store(&call->out[0], i * V, V, x);
    store(&call->out[1], i * V, V, z);
}

sh_rc sh_cpu_gate_norm_bwd(const struct sh_op_call *call)
{
    int64_t V = width_of(call), H = call->attr->delta.heads, rows = call->in[0].dim[0], parts = sh_cpu_folds(rows);
    int64_t all = stride_of(V * H);
    float *sums = (float *)call->work + all, *rooms = sums + parts * all;
    const float *w = load_weights(call, &call->in[3]);

#pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < parts; part++) {
        float *room = rooms + omp_get_thread_num() * BACKWARD_ROWS * stride_of(V);

        memset(sums + part * all, 0, (size_t)(V * H) * sizeof *sums);
        for (int64_t i = sh_cpu_fold_row(rows, part) * H; i < sh_cpu_fold_row(rows, part + 1) * H; i++)
            group_back(call, i, w + i % H * V, room, sums + part * all + i % H * V);
    }
    if (call->out[2].data)
        sh_cpu_fold(call->out[2].data, sh_op_adds(call, 2), sums, parts, all, V * H);
    return SH_OK;
}
