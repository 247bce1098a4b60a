/* The matrices of Muon as they lie: lines, along which neighbours are nearer than from line to line, so that threads that are
 * neighbours read neighbours. Lines are the rows of a matrix, or its columns if it is stored [in,out]. */
#ifndef SH_KERNELS_CUDA_OPTIM_LINES_CUH
#define SH_KERNELS_CUDA_OPTIM_LINES_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/optim/newton.h"

enum { SH_LINE_THREADS = 256, SH_LINE_AT_ONCE = 4 };

/* Where line `line` begins, and element i of any line, counted from there. Rows may lie in blocks. */
__device__ __forceinline__ int64_t sh_row_at(const struct sh_cuda_lines &x, int64_t r)
{
    return (r / x.block * x.block_stride + r % x.block) * x.row_step;
}

__device__ __forceinline__ int64_t sh_line_at(const struct sh_cuda_lines &x, int64_t line)
{
    return x.turned ? line * x.col_step : sh_row_at(x, line);
}

__device__ __forceinline__ int64_t sh_along(const struct sh_cuda_lines &x, int64_t i)
{
    return x.turned ? sh_row_at(x, i) : i * x.col_step;
}

/* f.store(line, i, f.load(line, i)) for all elements of all lines. A block has a line at a time, and several loads
 * of a thread are on their way before the first store. */
template <class F>
static __global__ void __launch_bounds__(SH_LINE_THREADS) sh_lines_kernel(F f, int64_t lines, int64_t length)
{
    for (int64_t line = blockIdx.x; line < lines; line += gridDim.x)
        for (int64_t first = threadIdx.x; first < length; first += SH_LINE_AT_ONCE * SH_LINE_THREADS) {
            float v[SH_LINE_AT_ONCE];
            SH_UNROLL
            for (int k = 0; k < SH_LINE_AT_ONCE; k++)
                v[k] = first + k * SH_LINE_THREADS < length ? f.load(line, first + k * SH_LINE_THREADS) : 0;
            SH_UNROLL
            for (int k = 0; k < SH_LINE_AT_ONCE; k++)
                if (first + k * SH_LINE_THREADS < length)
                    f.store(line, first + k * SH_LINE_THREADS, v[k]);
        }
}

/* Errors: SH_E_BUG if the launch is refused. */
template <class F> static sh_rc sh_over_lines(const char *name, const F &f, int64_t lines, int64_t length, void *queue)
{
    return sh_launch(name, sh_lines_kernel<F>, dim3(sh_blocks(lines)), dim3(SH_LINE_THREADS), 0, queue, f, lines,
                     length);
}

/* sums [lines]: of the squares of each line, in double. */
static __global__ void __launch_bounds__(SH_LINE_THREADS) sh_line_squares(struct sh_cuda_lines x, double *sums)
{
    for (int64_t line = blockIdx.x; line < x.lines; line += gridDim.x) {
        const float *u = x.u + sh_line_at(x, line);
        double sum[1] = {0};

        for (int64_t first = threadIdx.x; first < x.length; first += SH_LINE_AT_ONCE * SH_LINE_THREADS) {
            float v[SH_LINE_AT_ONCE];
            SH_UNROLL
            for (int k = 0; k < SH_LINE_AT_ONCE; k++)
                v[k] = first + k * SH_LINE_THREADS < x.length ? u[sh_along(x, first + k * SH_LINE_THREADS)] : 0;
            SH_UNROLL
            for (int k = 0; k < SH_LINE_AT_ONCE; k++)
                sum[0] += (double)v[k] * (double)v[k];
        }
        sh_block_sum(sum);
        if (threadIdx.x == 0)
            sums[line] = sum[0];
    }
}

/* Errors: SH_E_BUG if the launch is refused. */
static inline sh_rc sh_squares_of_lines(const struct sh_cuda_lines &x, double *sums, void *queue)
{
    return SH_LAUNCH(sh_line_squares, dim3(sh_blocks(x.lines)), dim3(SH_LINE_THREADS), 0, queue, x, sums);
}

#endif
