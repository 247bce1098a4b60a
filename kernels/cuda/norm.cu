/* LayerNorm and RMSNorm. A block owns a row at a time and keeps it in registers, so that it is read once. Bytes an
 * element, f32 (bf16: half): forward 8, backward 12 and 4 more with dres, and the partial sums of dw and db (work.h).
 * kernels/ref/norm.c has the formulas.
 *
 * A thread has E elements of a row, in vectors of 16 bytes: 8, and 32 where a row has more than 8192 elements; there
 * the backward keeps some of its sums in local memory. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/work.h"

namespace
{
constexpr int MOST_THREADS = 1024, FEW = 8, MANY = 32;

/* Threads that have E elements each of a row of C. */
unsigned row_threads(int64_t C, int E)
{
    return (unsigned)sh_ceil_div(sh_ceil_div(C, E), 32) * 32;
}

/* Where vector p of the thread begins. */
template <int N> __device__ __forceinline__ int64_t column(int p)
{
    return ((int64_t)p * blockDim.x + threadIdx.x) * N;
}

template <class T> struct forward {
    T *y;
    const T *x, *w, *b; /* b NULL: none */
    float *rstd, *mean; /* mean NULL: not wanted */
    int64_t rows, C;
    float eps;
    bool rms, vectors;
};

/* The block's sum of (v - mean)^power over the row. */
template <int P, int N>
__device__ __forceinline__ float row_sum(const float (&v)[P][N], float mean, bool squared, int64_t C)
{
    float sum[1] = {0};

    for (int p = 0; p < P; p++)
        for (int k = 0; k < N; k++)
            if (column<N>(p) + k < C)
                sum[0] += squared ? (v[p][k] - mean) * (v[p][k] - mean) : v[p][k];
    sh_block_sum(sum);
    return sum[0];
}

template <class T, int E> __global__ void __launch_bounds__(MOST_THREADS) norm_kernel(forward<T> f)
{
    constexpr int N = SH_WIDTH<T>, P = E / N;

    for (int64_t row = blockIdx.x; row < f.rows; row += gridDim.x) {
        float v[P][N];
        for (int p = 0; p < P; p++)
            sh_load_some(v[p], f.x + row * f.C + column<N>(p), f.C - column<N>(p), f.vectors);
        float mean = f.rms ? 0 : row_sum(v, 0, false, f.C) / (float)f.C;
        float rstd = 1.0f / sqrtf(row_sum(v, mean, true, f.C) / (float)f.C + f.eps);
        for (int p = 0; p < P; p++) {
            int64_t c = column<N>(p);
            float w[N], b[N] = {0};
            sh_load_some(w, f.w + c, f.C - c, f.vectors);
            if (f.b)
                sh_load_some(b, f.b + c, f.C - c, f.vectors);
            for (int k = 0; k < N; k++)
                v[p][k] = (v[p][k] - mean) * rstd * w[k] + b[k];
            sh_store_some(f.y + row * f.C + c, v[p], f.C - c, f.vectors);
        }
        if (threadIdx.x == 0) {
            f.rstd[row] = rstd;
            if (f.mean)
                f.mean[row] = mean;
        }
    }
}

template <class T> struct backward {
    T *dx;
    const T *dy, *x, *w, *dres; /* dres NULL: none */
    const float *rstd, *mean;   /* mean NULL: 0 */
    float *dw, *db;             /* [parts,C]; db NULL: not wanted */
    int64_t rows, C;
    bool rms, vectors;
};

/* xhat and g = dy w of the thread's elements of a row, and what the row adds to dw and db. */
template <int P, int N> struct sums {
    float xhat[P][N], g[P][N], dw[P][N], db[P][N];
};

template <class T, int P, int N>
__device__ __forceinline__ void read_row(sums<P, N> &s, const backward<T> &f, int64_t row)
{
    float mean = f.mean ? f.mean[row] : 0, rstd = f.rstd[row];

    for (int p = 0; p < P; p++) {
        int64_t c = column<N>(p), at = row * f.C + c, left = f.C - c;
        float dy[N], w[N];
        sh_load_some(dy, f.dy + at, left, f.vectors);
        sh_load_some(s.xhat[p], f.x + at, left, f.vectors);
        sh_load_some(w, f.w + c, left, f.vectors);
        for (int k = 0; k < N; k++) {
            s.xhat[p][k] = k < left ? (s.xhat[p][k] - mean) * rstd : 0;
            s.g[p][k] = dy[k] * w[k];
            s.dw[p][k] += dy[k] * s.xhat[p][k];
            s.db[p][k] += dy[k];
        }
    }
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)) + dres */
template <class T, int P, int N>
__device__ __forceinline__ void write_row(const sums<P, N> &s, const backward<T> &f, int64_t row)
{
    float mean[2] = {0, 0}, rstd = f.rstd[row];

    for (int p = 0; p < P; p++)
        for (int k = 0; k < N; k++) {
            mean[0] += s.g[p][k];
            mean[1] += s.g[p][k] * s.xhat[p][k];
        }
    sh_block_sum(mean);
    mean[0] = f.rms ? 0 : mean[0] / (float)f.C;
    mean[1] /= (float)f.C;
    for (int p = 0; p < P; p++) {
        int64_t c = column<N>(p), at = row * f.C + c;
        float dx[N] = {0};
        if (f.dres)
            sh_load_some(dx, f.dres + at, f.C - c, f.vectors);
        for (int k = 0; k < N; k++)
            dx[k] += rstd * (s.g[p][k] - mean[0] - s.xhat[p][k] * mean[1]);
        sh_store_some(f.dx + at, dx, f.C - c, f.vectors);
    }
}

/* A block has the rows of one part. */
template <class T, int E> __global__ void __launch_bounds__(MOST_THREADS) norm_bwd_kernel(backward<T> f)
{
    constexpr int N = SH_WIDTH<T>, P = E / N;
    int64_t end = f.rows * (blockIdx.x + 1) / gridDim.x;
    sums<P, N> s = {};

    for (int64_t row = f.rows * blockIdx.x / gridDim.x; row < end; row++) {
        read_row(s, f, row);
        write_row(s, f, row);
    }
    for (int p = 0; p < P; p++) {
        int64_t c = column<N>(p), at = blockIdx.x * f.C + c;
        sh_store_some(f.dw + at, s.dw[p], f.C - c, f.vectors);
        if (f.db)
            sh_store_some(f.db + at, s.db[p], f.C - c, f.vectors);
    }
}

sh_rc check_width(int64_t C)
{
    if (C > (int64_t)MOST_THREADS * MANY)
        return sh_fail(SH_E_USAGE, "norm of rows of %lld elements: on a GPU they have %d at most", (long long)C,
                       MOST_THREADS * MANY);
    return SH_OK;
}

template <class T> sh_rc run_forward(const struct sh_op_call *call)
{
    constexpr int N = SH_WIDTH<T>;
    forward<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), sh_data<T>(&call->in[1]),
                    sh_data<T>(&call->in[2]), sh_data<float>(&call->out[1]), sh_data<float>(&call->out[2]),
                    0, sh_elems(&call->in[1]), call->attr->norm.eps, call->attr->norm.rms, false};
    f.rows = sh_elems(&call->in[0]) / f.C;
    f.vectors = sh_aligned<N>(f.y, f.C) && sh_aligned<N>(f.x, f.C) && sh_aligned<N>(f.w, f.C) &&
                sh_aligned<N>(f.b, f.C);
    dim3 grid(sh_blocks(f.rows));

    SH_TRY(check_width(f.C));
    if (f.C <= MOST_THREADS * FEW)
        return SH_LAUNCH((norm_kernel<T, FEW>), grid, dim3(row_threads(f.C, FEW)), 0, call->queue, f);
    return SH_LAUNCH((norm_kernel<T, MANY>), grid, dim3(row_threads(f.C, MANY)), 0, call->queue, f);
}

template <class T> backward<T> backward_of(const struct sh_op_call *call)
{
    constexpr int N = SH_WIDTH<T>;
    backward<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), sh_data<T>(&call->in[1]),
                     sh_data<T>(&call->in[2]), sh_data<T>(&call->in[5]), sh_data<float>(&call->in[3]),
                     sh_data<float>(&call->in[4]), static_cast<float *>(call->work), NULL,
                     0, sh_elems(&call->in[2]), call->attr->norm.rms, false};
    f.rows = sh_elems(&call->in[1]) / f.C;
    f.db = call->out[2].data ? f.dw + sh_cuda_norm_parts(f.rows) * f.C : NULL;
    f.vectors = sh_aligned<N>(f.dx, f.C) && sh_aligned<N>(f.dy, f.C) && sh_aligned<N>(f.x, f.C) &&
                sh_aligned<N>(f.w, f.C) && sh_aligned<N>(f.dres, f.C);
    return f;
}

template <class T> sh_rc run_backward(const struct sh_op_call *call)
{
    backward<T> f = backward_of<T>(call);
    int64_t parts = sh_cuda_norm_parts(f.rows);
    dim3 grid((unsigned)parts);

    SH_TRY(check_width(f.C));
    if (f.C <= MOST_THREADS * FEW)
        SH_TRY(SH_LAUNCH((norm_bwd_kernel<T, FEW>), grid, dim3(row_threads(f.C, FEW)), 0, call->queue, f));
    else
        SH_TRY(SH_LAUNCH((norm_bwd_kernel<T, MANY>), grid, dim3(row_threads(f.C, MANY)), 0, call->queue, f));
    SH_TRY(sh_fold_parts(sh_data<float>(&call->out[1]), sh_op_adds(call, 1), f.dw, parts, f.C, call->queue));
    if (!f.db)
        return SH_OK;
    return sh_fold_parts(sh_data<float>(&call->out[2]), sh_op_adds(call, 2), f.db, parts, f.C, call->queue);
}
} // namespace

extern "C" sh_rc sh_cuda_norm(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) { return run_forward<decltype(zero)>(call); });
}

extern "C" sh_rc sh_cuda_norm_bwd(const struct sh_op_call *call)
{
    SH_REQUIRE(call->work_bytes >= sh_cuda_norm_bwd_work_bytes(call));
    return sh_by_act(call->out[0].dtype, [&](auto zero) { return run_backward<decltype(zero)>(call); });
}
