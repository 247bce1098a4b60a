/* Sums in two steps of fixed order: blocks give partial sums, a second kernel adds those. For gradients of parameters,
 * which are sums over rows, and for scalars. */
#ifndef SH_KERNELS_CUDA_FOLD_CUH
#define SH_KERNELS_CUDA_FOLD_CUH

#include "kernels/cuda/launch.cuh"

enum { SH_FOLD_WARPS = 8, SH_FOLD_THREADS = SH_FOLD_WARPS * 32 };

/* out [parts,C] = sums over the rows of x [rows,C], cut in as many parts as the grid is high; added to what is there
 * when `add`. A block takes 32 N columns, and each of its warps every eighth row. */
template <class T, int N>
static __global__ void __launch_bounds__(SH_FOLD_THREADS)
    sh_fold_kernel(float *out, bool add, const T *x, int64_t rows, int64_t C, bool vectors)
{
    SH_SHARED(float, sums, SH_FOLD_WARPS * N * 32);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    int64_t first = (int64_t)blockIdx.x * 32 * N, c = first + lane * N;
    float sum[N] = {0};

    for (int64_t r = begin + warp; r < end && c < C; r += SH_FOLD_WARPS) {
        float v[N];
        sh_load_some(v, x + r * C + c, C - c, vectors);
        for (int k = 0; k < N; k++)
            sum[k] += v[k];
    }
    for (int k = 0; k < N; k++)
        sums[(warp * N + k) * 32 + lane] = sum[k];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 32 * N && first + i < C; i += SH_FOLD_THREADS) {
        float *to = out + blockIdx.y * C + first + i, s = 0;
        for (int w = 0; w < SH_FOLD_WARPS; w++)
            s += sums[(w * N + i % N) * 32 + i / N];
        *to = add ? *to + s : s;
    }
}

/* out [parts,C] from x [rows,C]. Errors: SH_E_BUG when the launch is refused. */
template <class T, int N>
static sh_rc sh_fold(float *out, bool add, const T *x, int64_t rows, int64_t C, int64_t parts, void *queue)
{
    dim3 grid((unsigned)sh_ceil_div(C, 32 * N), (unsigned)parts);
    return SH_LAUNCH((sh_fold_kernel<T, N>), grid, dim3(SH_FOLD_THREADS), 0, queue, out, add, x, rows, C,
                     sh_aligned<N>(x, C));
}

/* dst [C] = or += the sum over the partial sums [parts,C]; narrow tiles, so that there are blocks enough. */
static inline sh_rc sh_fold_parts(float *dst, bool add, const float *parts, int64_t n_parts, int64_t C, void *queue)
{
    return sh_fold<float, 1>(dst, add, parts, n_parts, C, 1, queue);
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
