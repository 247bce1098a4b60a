/* LayerNorm and RMSNorm. A block owns one row at a time and keeps it in registers, so that it is read once. Bytes per
 * element, f32 (bf16: half): forward 8, of a sum 16; backward 12 and 4 more with dres, and the partial sums of dw, db
 * and the bias before the norm (work.h). kernels/ref/norm.c has the formulas.
 *
 * A thread holds E elements of a row, in vectors of 16 bytes: 8, or 32 if a row has more than 8192 elements, in which
 * case the backward keeps some of its sums in local memory. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/work.h"

namespace
{
constexpr int MOST_THREADS = 1024, FEW = 8, MANY = 32;

/* Threads needed for a row of C elements if each has E of them. */
unsigned row_threads(int64_t C, int E)
{
    return (unsigned)sh_ceil_div(sh_ceil_div(C, E), 32) * 32;
}

/* The first column of the thread's vector p. */
template <int N> __device__ __forceinline__ int64_t column(int p)
{
    return ((int64_t)p * blockDim.x + threadIdx.x) * N;
}

/* Arguments of one launch; rows [rows,C]. */
template <class T> struct forward {
    T *y, *sum;                /* sum: of x and more; NULL: the norm of x alone */
    const T *x, *more, *w, *b; /* b NULL: none */
    float *rstd, *mean;        /* mean NULL: not wanted */
    int64_t rows, C;
    float eps;
    bool rms, plus_one, vectors;
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

/* v = x + more, rounded, as in ADD. */
template <class T, int N>
__device__ __forceinline__ void add_more(float (&v)[N], const forward<T> &f, int64_t at, int64_t left)
{
    float more[N];

    sh_load_some(more, f.more + at, left, f.vectors);
    for (int k = 0; k < N; k++)
        v[k] = sh_widen(sh_narrow<T>(v[k] + more[k]));
    sh_store_some(f.sum + at, v, left, f.vectors);
}

/* Each block takes rows blockIdx, + gridDim, ...: one row at a time in registers. */
template <class T, int E> __global__ void __launch_bounds__(MOST_THREADS) norm_kernel(forward<T> f)
{
    constexpr int N = SH_WIDTH<T>, P = E / N;

    for (int64_t row = blockIdx.x; row < f.rows; row += gridDim.x) {
        float v[P][N];
        for (int p = 0; p < P; p++) {
            int64_t c = column<N>(p);
            sh_load_some(v[p], f.x + row * f.C + c, f.C - c, f.vectors);
            if (f.sum)
                add_more(v[p], f, row * f.C + c, f.C - c);
        }
        float mean = f.rms ? 0 : row_sum(v, 0, false, f.C) / (float)f.C;
        float rstd = 1.0f / sqrtf(row_sum(v, mean, true, f.C) / (float)f.C + f.eps);
        for (int p = 0; p < P; p++) {
            int64_t c = column<N>(p);
            float w[N], b[N] = {0};
            sh_load_some(w, f.w + c, f.C - c, f.vectors);
            if (f.b)
                sh_load_some(b, f.b + c, f.C - c, f.vectors);
            for (int k = 0; k < N; k++)
                v[p][k] = (v[p][k] - mean) * rstd * (f.plus_one ? 1 + w[k] : w[k]) + b[k];
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
    float *dw, *db, *dbias;     /* [parts,C]; NULL: not wanted; dbias: sums of dx */
    int64_t rows, C;
    bool rms, plus_one, vectors;
};

/* Per thread, for its elements of a row: xhat, and the part of dx that is known before the means of the row are; and
 * the contribution of the rows to dw, db and dbias. */
template <int P, int N> struct sums {
    float xhat[P][N], dx[P][N], dw[P][N], db[P][N], dbias[P][N];
};

/* Everything that is read of a row is read here: loads issued after the block's sum would wait for memory once more.
 * With g = dy w: dx = rstd g + dres, and the thread's sums of g and of g xhat. */
template <class T, int P, int N>
__device__ __forceinline__ void read_row(sums<P, N> &s, float (&mean_g)[2], const backward<T> &f, int64_t row)
{
    float mean = f.mean ? f.mean[row] : 0, rstd = f.rstd[row];

    for (int p = 0; p < P; p++) {
        int64_t c = column<N>(p), at = row * f.C + c, left = f.C - c;
        float dy[N], w[N], dres[N] = {0};
        sh_load_some(dy, f.dy + at, left, f.vectors);
        sh_load_some(s.xhat[p], f.x + at, left, f.vectors);
        sh_load_some(w, f.w + c, left, f.vectors);
        if (f.dres)
            sh_load_some(dres, f.dres + at, left, f.vectors);
        for (int k = 0; k < N; k++) {
            float g = dy[k] * (f.plus_one ? 1 + w[k] : w[k]);
            s.xhat[p][k] = k < left ? (s.xhat[p][k] - mean) * rstd : 0;
            s.dx[p][k] = rstd * g + dres[k];
            s.dw[p][k] += dy[k] * s.xhat[p][k];
            s.db[p][k] += dy[k];
            mean_g[0] += g;
            mean_g[1] += g * s.xhat[p][k];
        }
    }
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)) + dres; the bias sums the stored values. */
template <bool BIAS, class T, int P, int N>
__device__ __forceinline__ void write_row(sums<P, N> &s, float (&mean_g)[2], const backward<T> &f, int64_t row)
{
    float rstd = f.rstd[row];

    sh_block_sum(mean_g);
    mean_g[0] = f.rms ? 0 : mean_g[0] / (float)f.C;
    mean_g[1] /= (float)f.C;
    for (int p = 0; p < P; p++) {
        int64_t c = column<N>(p);
        for (int k = 0; k < N; k++)
            s.dx[p][k] -= rstd * (mean_g[0] + s.xhat[p][k] * mean_g[1]);
        sh_store_some(f.dx + row * f.C + c, s.dx[p], f.C - c, f.vectors);
        for (int k = 0; BIAS && k < N; k++)
            s.dbias[p][k] += sh_widen(sh_narrow<T>(s.dx[p][k]));
    }
}

/* A block handles the rows of one part. */
template <class T, int E, bool BIAS> __global__ void __launch_bounds__(MOST_THREADS) norm_bwd_kernel(backward<T> f)
{
    constexpr int N = SH_WIDTH<T>, P = E / N;
    int64_t end = f.rows * (blockIdx.x + 1) / gridDim.x;
    sums<P, N> s = {};

    for (int64_t row = f.rows * blockIdx.x / gridDim.x; row < end; row++) {
        float mean_g[2] = {0, 0};
        read_row(s, mean_g, f, row);
        write_row<BIAS>(s, mean_g, f, row);
    }
    for (int p = 0; p < P; p++) {
        int64_t c = column<N>(p), at = blockIdx.x * f.C + c;
        if (f.dw)
            sh_store_some(f.dw + at, s.dw[p], f.C - c, f.vectors);
        if (f.db)
            sh_store_some(f.db + at, s.db[p], f.C - c, f.vectors);
        if (BIAS)
            sh_store_some(f.dbias + at, s.dbias[p], f.C - c, f.vectors);
    }
}

sh_rc check_width(int64_t C)
{
    if (C > (int64_t)MOST_THREADS * MANY)
        return sh_fail(SH_E_USAGE, "norm of rows of %lld elements: the limit on a GPU is %d", (long long)C,
                       MOST_THREADS * MANY);
    return SH_OK;
}

template <class T> sh_rc run_forward(const struct sh_op_call *call)
{
    constexpr int N = SH_WIDTH<T>;
    bool adds = call->kind == SH_OP_ADD_NORM;
    const struct sh_operand *in = call->in + adds, *out = call->out + adds; /* for a sum, start at `more` and y */
    /* clang-format off */
    forward<T> f = {sh_data<T>(&out[0]), adds ? sh_data<T>(&call->out[0]) : NULL, sh_data<T>(&call->in[0]),
                    sh_data<T>(&in[0]), sh_data<T>(&in[1]), sh_data<T>(&in[2]), sh_data<float>(&out[1]),
                    sh_data<float>(&out[2]), 0, sh_elems(&in[1]), call->attr->norm.eps, call->attr->norm.rms,
                    call->attr->norm.plus_one, false};
    f.rows = sh_elems(&call->in[0]) / f.C;
    f.vectors = sh_aligned<N>(f.y, f.C) && sh_aligned<N>(f.sum, f.C) && sh_aligned<N>(f.x, f.C) &&
                sh_aligned<N>(f.more, f.C) && sh_aligned<N>(f.w, f.C) && sh_aligned<N>(f.b, f.C);
    dim3 grid(sh_blocks(f.rows));

    SH_TRY(check_width(f.C));
    if (f.C <= MOST_THREADS * FEW)
        return SH_LAUNCH((norm_kernel<T, FEW>), grid, dim3(row_threads(f.C, FEW)), 0, call->queue, f);
    return SH_LAUNCH((norm_kernel<T, MANY>), grid, dim3(row_threads(f.C, MANY)), 0, call->queue, f);
}

template <class T> backward<T> backward_of(const struct sh_op_call *call)
{
    constexpr int N = SH_WIDTH<T>;
    /* clang-format off */
    backward<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), sh_data<T>(&call->in[1]),
                     sh_data<T>(&call->in[2]), sh_data<T>(&call->in[5]), sh_data<float>(&call->in[3]),
                     sh_data<float>(&call->in[4]), NULL, NULL, NULL,
                     0, sh_elems(&call->in[2]), call->attr->norm.rms, call->attr->norm.plus_one, false};
    /* clang-format on */
    f.rows = sh_elems(&call->in[1]) / f.C;
    float *wanted[] = {NULL, NULL, NULL}, *room = static_cast<float *>(call->work);
    for (int i = 0; i < 3; i++)
        if (call->out[1 + i].data) {
            wanted[i] = room;
            room += sh_cuda_row_parts(f.rows) * f.C;
        }
    f.dw = wanted[0];
    f.db = wanted[1];
    f.dbias = wanted[2];
    f.vectors = sh_aligned<N>(f.dx, f.C) && sh_aligned<N>(f.dy, f.C) && sh_aligned<N>(f.x, f.C) &&
                sh_aligned<N>(f.w, f.C) && sh_aligned<N>(f.dres, f.C);
    return f;
}

template <bool BIAS, class T> sh_rc launch_backward(const backward<T> &f, void *queue)
{
    dim3 grid((unsigned)sh_cuda_row_parts(f.rows));

    if (f.C <= MOST_THREADS * FEW)
        return SH_LAUNCH((norm_bwd_kernel<T, FEW, BIAS>), grid, dim3(row_threads(f.C, FEW)), 0, queue, f);
    return SH_LAUNCH((norm_bwd_kernel<T, MANY, BIAS>), grid, dim3(row_threads(f.C, MANY)), 0, queue, f);
}

template <class T> sh_rc run_backward(const struct sh_op_call *call)
{
    backward<T> f = backward_of<T>(call);
    const float *sums[] = {f.dw, f.db, f.dbias};

    SH_TRY(check_width(f.C));
    SH_TRY(f.dbias ? launch_backward<true>(f, call->queue) : launch_backward<false>(f, call->queue));
    for (int i = 0; i < 3; i++)
        if (sums[i])
            SH_TRY(sh_fold_parts(sh_data<float>(&call->out[i + 1]), sh_op_adds(call, i + 1), sums[i],
                                 sh_cuda_row_parts(f.rows), f.C, call->queue));
    return SH_OK;
}
} // namespace

extern "C" sh_rc sh_cuda_norm(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) { return run_forward<decltype(zero)>(call); });
}

extern "C" sh_rc sh_cuda_norm_bwd(const struct sh_op_call *call)
{
    SH_REQUIRE(call->work_bytes >= sh_cuda_norm_bwd_work_bytes(call));
    return sh_by_act(call->out[0].dtype, [&](auto zero) { return run_backward<decltype(zero)>(call); });
}
