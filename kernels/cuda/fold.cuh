/* Sums in two steps of fixed order: blocks produce partial sums, a second kernel adds them. For gradients of
 * parameters, which are sums over rows, and for scalars. */
#ifndef SH_KERNELS_CUDA_FOLD_CUH
#define SH_KERNELS_CUDA_FOLD_CUH

#include "kernels/cuda/launch.cuh"

enum {
    SH_FOLD_WARPS = 32,
    SH_FOLD_THREADS = SH_FOLD_WARPS * 32,
    SH_FOLD_MOST = 3,
    SH_SUM_THREADS = 256,
    SH_ROW_THREADS = 256
};

/* Sums over the rows of a matrix [rows,C]. F has
 *     struct raw: what is loaded of N neighbours in a row;
 *     load(raw, i, left, vectors) loads elements [i, i + N), of which the first `left` are in the row;
 *     value(v, raw, i, left, vectors) computes them, zeros after the first `left`, and may store to the same places.
 * ROWS rows, whose elements start at i, i + C, ..., are added one after another, but all their loads are issued before
 * a store could stop them. */
template <int ROWS, int N, class F>
__device__ __forceinline__ void sh_add_rows(float (&sum)[N], const F &f, int64_t i, int64_t C, int64_t left,
                                            bool vectors)
{
    typename F::raw raw[ROWS];

    SH_UNROLL
    for (int r = 0; r < ROWS; r++)
        f.load(raw[r], i + r * C, left, vectors);
    SH_UNROLL
    for (int r = 0; r < ROWS; r++) {
        float v[N];
        f.value(v, raw[r], i + r * C, left, vectors);
        for (int k = 0; k < N; k++)
            sum[k] += v[k];
    }
}

/* out [parts,C] = sums of f's values over the rows of each part: a thread has N columns of one part and takes its rows
 * one after another. */
template <int N, class F>
static __global__ void __launch_bounds__(SH_ROW_THREADS)
    sh_row_sums_kernel(F f, float *out, int64_t rows, int64_t C, int64_t parts, bool vectors)
{
    int64_t part = (int64_t)blockIdx.y * blockDim.y + threadIdx.y, r = rows * part / parts;
    int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N, end = rows * (part + 1) / parts;
    float sum[N] = {0};

    if (part >= parts || c >= C)
        return;
    for (; vectors && r + F::AT_ONCE <= end; r += F::AT_ONCE)
        sh_add_rows<F::AT_ONCE>(sum, f, r * C + c, C, N, true); /* N: no test between loads */
    for (; r < end; r++)
        sh_add_rows<1>(sum, f, r * C + c, C, C - c, vectors);
    sh_store_some(out + part * C + c, sum, C - c, vectors);
}

/* A block takes neighbouring columns, so that what is read at a time is one piece of memory, and several parts if rows
 * are short. Vectors: whether those of f are aligned. Errors: SH_E_BUG if the launch is refused. */
template <int N, class F>
static sh_rc sh_row_sums(const F &f, float *out, int64_t rows, int64_t C, int64_t parts, bool vectors, void *queue)
{
    int64_t threads = sh_ceil_div(C, N), blocks = sh_ceil_div(threads, SH_ROW_THREADS);
    unsigned x = (unsigned)sh_ceil_div(sh_ceil_div(threads, blocks), 32) * 32, y = SH_ROW_THREADS / x;
    dim3 grid((unsigned)blocks, (unsigned)sh_ceil_div(parts, y));

    return SH_LAUNCH((sh_row_sums_kernel<N, F>), grid, dim3(x, y), 0, queue, f, out, rows, C, parts,
                     vectors && sh_aligned<N>(out, C));
}

/* The f of sums of numbers that are there. */
template <class T> struct sh_plain_rows {
    typedef sh_raw<T> raw;
    static constexpr int AT_ONCE = 4, N = SH_WIDTH<T>;
    const T *x;

    __device__ __forceinline__ void load(raw &r, int64_t i, int64_t left, bool vectors) const
    {
        r.load(x + i, left, vectors);
    }

    __device__ __forceinline__ void value(float (&v)[N], const raw &r, int64_t, int64_t, bool) const
    {
        r.widen(v);
    }
};

/* dst[k] [C] = or += the sum over the partial sums [n,C] number k of parts [count,n,C]. */
struct sh_fold {
    int count;
    float *dst[SH_FOLD_MOST];
    bool add[SH_FOLD_MOST];
    const float *parts;
    int64_t n, C;
};

/* A block takes 32 columns, to have enough blocks, and each of its warps every 32nd part: half of 512 parts in flight
 * at once, since a fold takes as long as its loads wait. */
static __global__ void __launch_bounds__(SH_FOLD_THREADS) sh_fold_kernel(sh_fold f)
{
    constexpr int AT_ONCE = 8;
    SH_SHARED(float, sums, SH_FOLD_THREADS);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t c = (int64_t)blockIdx.x * 32 + lane;
    const float *parts = f.parts + blockIdx.y * f.n * f.C + c;
    float sum = 0, *dst = NULL;
    bool add = false;

    for (int64_t p = warp; p < f.n && c < f.C; p += AT_ONCE * SH_FOLD_WARPS) {
        float v[AT_ONCE];
        SH_UNROLL
        for (int i = 0; i < AT_ONCE; i++)
            v[i] = p + i * SH_FOLD_WARPS < f.n ? parts[(p + i * SH_FOLD_WARPS) * f.C] : 0;
        SH_UNROLL
        for (int i = 0; i < AT_ONCE; i++)
            sum += v[i];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp > 0 || c >= f.C)
        return;
    SH_UNROLL
    for (unsigned k = 0; k < SH_FOLD_MOST; k++) /* not indexed by a variable: that would copy them to local memory */
        if (k == blockIdx.y) {
            dst = f.dst[k] + c;
            add = f.add[k];
        }
    sum = 0;
    SH_UNROLL
    for (int w = 0; w < SH_FOLD_WARPS; w++)
        sum += sums[w * 32 + lane];
    *dst = add ? *dst + sum : sum;
}

/* Errors: SH_E_BUG if the launch is refused. */
static inline sh_rc sh_fold_all(const sh_fold &f, void *queue)
{
    dim3 grid((unsigned)sh_ceil_div(f.C, 32), (unsigned)f.count);
    return SH_LAUNCH(sh_fold_kernel, grid, dim3(SH_FOLD_THREADS), 0, queue, f);
}

static inline sh_rc sh_fold_parts(float *dst, bool add, const float *parts, int64_t n, int64_t C, void *queue)
{
    return sh_fold_all({1, {dst}, {add}, parts, n, C}, queue);
}

static __global__ void __launch_bounds__(SH_SUM_THREADS)
    sh_sum_kernel(double *out, bool add, const double *parts, int64_t n)
{
    double sum[1] = {0};

    for (int64_t i = threadIdx.x; i < n; i += SH_SUM_THREADS)
        sum[0] += parts[i];
    sh_block_sum(sum);
    if (threadIdx.x == 0)
        *out = add ? *out + sum[0] : sum[0];
}

/* out [1] = or += the sum of parts [n]. */
static inline sh_rc sh_sum_parts(double *out, bool add, const double *parts, int64_t n, void *queue)
{
    return SH_LAUNCH(sh_sum_kernel, dim3(1), dim3(SH_SUM_THREADS), 0, queue, out, add, parts, n);
}

#endif
