/* Rows of experts, a warp each, and the weights that the router gave them: for rows.cu and expert_bias.cu. */
#ifndef SH_KERNELS_CUDA_MOE_ROWS_CUH
#define SH_KERNELS_CUDA_MOE_ROWS_CUH

#include "kernels/cuda/launch.cuh"

namespace sh_rows
{
constexpr int WARPS = 8, LANES = 32;

/* f.row(r, lane) for all rows. */
template <class F> static __global__ void __launch_bounds__(WARPS *LANES) each_row(F f, int64_t rows)
{
    for (int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES; r < rows; r += (int64_t)gridDim.x * WARPS)
        f.row(r, threadIdx.x % LANES);
}

template <class F> static sh_rc run_rows(const char *name, const F &f, int64_t rows, void *queue)
{
    if (rows == 0)
        return SH_OK;
    return sh_launch(name, each_row<F>, dim3(sh_blocks(sh_ceil_div(rows, WARPS))), dim3(WARPS * LANES), 0, queue, f,
                     rows);
}

/* The weight of a row is that of its entry, or its own, or 1; rows from the last number of first on are left alone. */
struct weighted {
    const float *weight;         /* (opt) */
    const int32_t *order, *last; /* (opt) */

    __device__ __forceinline__ int32_t entry(int64_t r) const
    {
        return order ? order[r] : (int32_t)r;
    }

    __device__ __forceinline__ float of(int64_t r) const
    {
        return weight ? weight[entry(r)] : 1;
    }

    __device__ __forceinline__ bool is_live(int64_t r) const
    {
        return !last || r < *last;
    }
};
} // namespace sh_rows
#endif
