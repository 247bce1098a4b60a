/* Sums in two steps of fixed order: blocks produce partial sums, a second kernel adds them. For gradients of
 * parameters, which are sums over rows, and for scalars. */
#ifndef SH_KERNELS_CUDA_FOLD_CUH
#define SH_KERNELS_CUDA_FOLD_CUH

#include "kernels/cuda/launch.cuh"

enum { SH_FOLD_WARPS = 8, SH_FOLD_THREADS = SH_FOLD_WARPS * 32 };

/* Add columns [c, c + N) of ROWS rows from r on, one after another; all their loads may be in flight at once. */
template <int ROWS, int N, class F>
__device__ __forceinline__ void sh_add_rows(float (&sum)[N], const F &f, int64_t r, int64_t c, int64_t C)
{
    float v[ROWS][N];

    SH_UNROLL
    for (int i = 0; i < ROWS; i++)
        f.template row<N>(v[i], (r + i) * C + c, C - c);
    SH_UNROLL
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < N; k++)
            sum[k] += v[i][k];
}

/* out [parts,C] = sums of f's values over the rows of each part: a warp has 32 N columns of one part and takes its
 * rows one after another. f.row<N>(v, i, left): elements [i, i + N) of a matrix [rows,C]; the first `left` of them
 * are in the row, the others are zeros. */
template <int N, class F>
static __global__ void __launch_bounds__(SH_FOLD_THREADS)
    sh_row_sums_kernel(F f, float *out, int64_t rows, int64_t C, int64_t parts, bool vectors)
{
    constexpr int AT_ONCE = 4;
    int64_t part = (int64_t)blockIdx.y * SH_FOLD_WARPS + threadIdx.x / 32, r = rows * part / parts;
    int64_t c = ((int64_t)blockIdx.x * 32 + threadIdx.x % 32) * N, end = rows * (part + 1) / parts;
    float sum[N] = {0};

    if (part >= parts || c >= C)
        return;
    for (; r + AT_ONCE <= end; r += AT_ONCE)
        sh_add_rows<AT_ONCE>(sum, f, r, c, C);
    for (; r < end; r++)
        sh_add_rows<1>(sum, f, r, c, C);
    sh_store_some(out + part * C + c, sum, C - c, vectors);
}

/* Errors: SH_E_BUG if the launch is refused. */
template <int N, class F>
static sh_rc sh_row_sums(const F &f, float *out, int64_t rows, int64_t C, int64_t parts, void *queue)
{
    dim3 grid((unsigned)sh_ceil_div(C, 32 * N), (unsigned)sh_ceil_div(parts, SH_FOLD_WARPS));
    return SH_LAUNCH((sh_row_sums_kernel<N, F>), grid, dim3(SH_FOLD_THREADS), 0, queue, f, out, rows, C, parts,
                     sh_aligned<N>(out, C));
}

/* dst [C] = or += the sum over the partial sums [n,C]. A block takes 32 columns, to have enough blocks, and each of
 * its warps takes every eighth part. */
static __global__ void __launch_bounds__(SH_FOLD_THREADS)
    sh_fold_kernel(float *dst, bool add, const float *parts, int64_t n, int64_t C)
{
    SH_SHARED(float, sums, SH_FOLD_THREADS);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t c = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0;

    for (int64_t p = warp; p < n && c < C; p += SH_FOLD_WARPS)
        sum += parts[p * C + c];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp > 0 || c >= C)
        return;
    sum = 0;
    for (int w = 0; w < SH_FOLD_WARPS; w++)
        sum += sums[w * 32 + lane];
    dst[c] = add ? dst[c] + sum : sum;
}

/* Errors: SH_E_BUG if the launch is refused. */
static inline sh_rc sh_fold_parts(float *dst, bool add, const float *parts, int64_t n, int64_t C, void *queue)
{
    return SH_LAUNCH(sh_fold_kernel, dim3((unsigned)sh_ceil_div(C, 32)), dim3(SH_FOLD_THREADS), 0, queue, dst, add,
                     parts, n, C);
}

static __global__ void __launch_bounds__(SH_FOLD_THREADS)
    sh_sum_kernel(double *out, bool add, const double *parts, int64_t n)
{
    double sum[1] = {0};

    for (int64_t i = threadIdx.x; i < n; i += SH_FOLD_THREADS)
        sum[0] += parts[i];
    sh_block_sum(sum);
    if (threadIdx.x == 0)
        *out = add ? *out + sum[0] : sum[0];
}

/* out [1] = or += the sum of parts [n]. */
static inline sh_rc sh_sum_parts(double *out, bool add, const double *parts, int64_t n, void *queue)
{
    return SH_LAUNCH(sh_sum_kernel, dim3(1), dim3(SH_FOLD_THREADS), 0, queue, out, add, parts, n);
}

#endif
