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
constexpr int RESIDENT = 512; /* blocks of several rows each: about as many as an H100 holds at once */

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

/* What is read for a vector of a row, and the vector's weights. */
template <class T> struct operands {
    sh_raw<T> x, more, w, b;
};

template <class T>
__device__ __forceinline__ void load_vector(operands<T> &in, const forward<T> &f, int64_t row, int p, bool vectors)
{
    int64_t c = column<SH_WIDTH<T>>(p), at = row * f.C + c, left = f.C - c;

    in.x.load(f.x + at, left, vectors);
    if (f.sum)
        in.more.load(f.more + at, left, vectors);
}

template <class T>
__device__ __forceinline__ void load_weights(operands<T> &in, const forward<T> &f, int p, bool vectors)
{
    int64_t c = column<SH_WIDTH<T>>(p), left = f.C - c;

    in.w.load(f.w + c, left, vectors);
    if (f.b)
        in.b.load(f.b + c, left, vectors);
}

/* v = x, or x + more, rounded, as in ADD. */
template <class T, int N>
__device__ __forceinline__ void take_vector(float (&v)[N], const operands<T> &in, const forward<T> &f, int64_t row,
                                            int p, bool vectors)
{
    int64_t c = column<N>(p);
    float more[N];

    in.x.widen(v);
    if (!f.sum)
        return;
    in.more.widen(more);
    for (int k = 0; k < N; k++)
        v[k] = sh_widen(sh_narrow<T>(v[k] + more[k]));
    sh_store_some(f.sum + row * f.C + c, v, f.C - c, vectors);
}

template <class T, int N>
__device__ __forceinline__ void put_vector(const float (&v)[N], const operands<T> &in, const forward<T> &f, int64_t row,
                                           int p, float mean, float rstd, bool vectors)
{
    int64_t c = column<N>(p);
    float w[N], b[N] = {0}, y[N];

    in.w.widen(w);
    if (f.b)
        in.b.widen(b);
    for (int k = 0; k < N; k++)
        y[k] = (v[k] - mean) * rstd * (f.plus_one ? 1 + w[k] : w[k]) + b[k];
    sh_store_some(f.y + row * f.C + c, y, f.C - c, vectors);
}

/* Each block takes rows blockIdx, + gridDim, ...: one row at a time in registers. FAST: a thread has one vector of a
 * row, whose weights it keeps, and the next row is on its way while the threads wait for each other's sums. */
template <class T, int E, bool FAST> __global__ void __launch_bounds__(MOST_THREADS) norm_kernel(forward<T> f)
{
    constexpr int N = SH_WIDTH<T>, P = E / N;
    bool vectors = FAST || f.vectors;
    operands<T> in;

    if (FAST) {
        load_vector(in, f, blockIdx.x, 0, true);
        load_weights(in, f, 0, true);
    }
    for (int64_t row = blockIdx.x; row < f.rows; row += gridDim.x) {
        float v[P][N];
        for (int p = 0; p < P; p++) {
            if (!FAST)
                load_vector(in, f, row, p, vectors);
            take_vector(v[p], in, f, row, p, vectors);
        }
        if (FAST && row + gridDim.x < f.rows)
            load_vector(in, f, row + gridDim.x, 0, true);
        float mean = f.rms ? 0 : row_sum(v, 0, false, f.C) / (float)f.C;
        float rstd = 1.0f / sqrtf(row_sum(v, mean, true, f.C) / (float)f.C + f.eps);
        for (int p = 0; p < P; p++) {
            if (!FAST)
                load_weights(in, f, p, vectors);
            put_vector(v[p], in, f, row, p, mean, rstd, vectors);
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

/* What is read for a vector of a row, and the row's own. */
template <class T> struct input {
    sh_raw<T> dy, x, dres;
    float mean, rstd;
};

template <class T>
__device__ __forceinline__ void load_vector(input<T> &in, const backward<T> &f, int64_t row, int p, bool vectors)
{
    int64_t c = column<SH_WIDTH<T>>(p), at = row * f.C + c, left = f.C - c;

    in.dy.load(f.dy + at, left, vectors);
    in.x.load(f.x + at, left, vectors);
    if (f.dres)
        in.dres.load(f.dres + at, left, vectors);
    in.mean = f.mean ? f.mean[row] : 0;
    in.rstd = f.rstd[row];
}

/* With g = dy w: dx = rstd g + dres, and the thread's sums of g and of g xhat. */
template <class T, int P, int N>
__device__ __forceinline__ void read_vector(sums<P, N> &s, float (&mean_g)[2], const input<T> &in, const backward<T> &f,
                                            int p, bool vectors)
{
    int64_t c = column<N>(p), left = f.C - c;
    float dy[N], w[N], dres[N] = {0}, one = f.plus_one ? 1 : 0;
    sh_raw<T> weight;

    weight.load(f.w + c, left, vectors);
    weight.widen(w);
    in.dy.widen(dy);
    in.x.widen(s.xhat[p]);
    if (f.dres)
        in.dres.widen(dres);
    for (int k = 0; k < N; k++) {
        float g = dy[k] * (w[k] + one);
        s.xhat[p][k] = k < left ? (s.xhat[p][k] - in.mean) * in.rstd : 0;
        s.dx[p][k] = fmaf(in.rstd, g, dres[k]);
        s.dw[p][k] = fmaf(dy[k], s.xhat[p][k], s.dw[p][k]);
        s.db[p][k] += dy[k];
        mean_g[0] += g;
        mean_g[1] = fmaf(g, s.xhat[p][k], mean_g[1]);
    }
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)) + dres, where mean_g holds the block's sums; the bias sums the stored
 * values. */
template <bool BIAS, class T, int P, int N>
__device__ __forceinline__ void write_row(sums<P, N> &s, const float (&mean_g)[2], float rstd, const backward<T> &f,
                                          int64_t row, bool vectors)
{
    float of_g = f.rms ? 0 : rstd * (mean_g[0] / (float)f.C), of_xhat = rstd * (mean_g[1] / (float)f.C);

    for (int p = 0; p < P; p++) {
        int64_t c = column<N>(p);
        for (int k = 0; k < N; k++)
            s.dx[p][k] = fmaf(-s.xhat[p][k], of_xhat, s.dx[p][k] - of_g);
        sh_store_some(f.dx + row * f.C + c, s.dx[p], f.C - c, vectors);
        for (int k = 0; BIAS && k < N; k++)
            s.dbias[p][k] += sh_widen(sh_narrow<T>(s.dx[p][k]));
    }
}

/* A block handles the rows of one part. FAST: a thread has one vector of a row, and while the threads wait for each
 * other's sums, that of the next row is already on its way: no other block stores it, and this one has not yet. */
template <class T, int E, bool BIAS, bool FAST>
__global__ void __launch_bounds__(MOST_THREADS) norm_bwd_kernel(backward<T> f)
{
    constexpr int N = SH_WIDTH<T>, P = E / N;
    bool vectors = FAST || f.vectors;
    int64_t row = f.rows * blockIdx.x / gridDim.x, end = f.rows * (blockIdx.x + 1) / gridDim.x;
    sums<P, N> s = {};
    input<T> in;

    if (FAST && row < end)
        load_vector(in, f, row, 0, true);
    for (; row < end; row++) {
        float mean_g[2] = {0, 0};
        for (int p = 0; p < P; p++) {
            if (!FAST)
                load_vector(in, f, row, p, vectors);
            read_vector(s, mean_g, in, f, p, vectors);
        }
        float rstd = in.rstd;
        if (FAST && row + 1 < end)
            load_vector(in, f, row + 1, 0, true);
        sh_block_sum(mean_g);
        write_row<BIAS>(s, mean_g, rstd, f, row, vectors);
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
    dim3 grid(sh_blocks(f.rows)), resident((unsigned)sh_cuda_parts(f.rows, 1, RESIDENT));

    SH_TRY(check_width(f.C));
    if (f.C > MOST_THREADS * FEW)
        return SH_LAUNCH((norm_kernel<T, MANY, false>), grid, dim3(row_threads(f.C, MANY)), 0, call->queue, f);
    if (f.vectors && N == FEW)
        return SH_LAUNCH((norm_kernel<T, FEW, N == FEW>), resident, dim3(row_threads(f.C, FEW)), 0, call->queue, f);
    return SH_LAUNCH((norm_kernel<T, FEW, false>), grid, dim3(row_threads(f.C, FEW)), 0, call->queue, f);
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

    if (f.C > MOST_THREADS * FEW)
        return SH_LAUNCH((norm_bwd_kernel<T, MANY, BIAS, false>), grid, dim3(row_threads(f.C, MANY)), 0, queue, f);
    if (f.vectors && SH_WIDTH<T> == FEW)
        return SH_LAUNCH((norm_bwd_kernel<T, FEW, BIAS, SH_WIDTH<T> == FEW>), grid, dim3(row_threads(f.C, FEW)), 0,
                         queue, f);
    return SH_LAUNCH((norm_bwd_kernel<T, FEW, BIAS, false>), grid, dim3(row_threads(f.C, FEW)), 0, queue, f);
}

template <class T> sh_rc run_backward(const struct sh_op_call *call)
{
    backward<T> f = backward_of<T>(call);
    sh_fold fold = {0, {NULL}, {false}, static_cast<const float *>(call->work), sh_cuda_row_parts(f.rows), f.C};

    SH_TRY(check_width(f.C));
    SH_TRY(f.dbias ? launch_backward<true>(f, call->queue) : launch_backward<false>(f, call->queue));
    for (int i = 1; i <= 3; i++)
        if (call->out[i].data) {
            fold.dst[fold.count] = sh_data<float>(&call->out[i]);
            fold.add[fold.count++] = sh_op_adds(call, i);
        }
    return fold.count ? sh_fold_all(fold, call->queue) : SH_OK;
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
