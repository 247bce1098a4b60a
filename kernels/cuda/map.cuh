/* Elementwise kernels: one thread takes N neighbouring elements at a time.
 *
 *     template <class T> struct negate {
 *         T *y;
 *         const T *x;
 *         template <int N> __device__ __forceinline__ void at(int64_t i) const;   elements [i, i + N)
 *     };
 *     return sh_map<SH_WIDTH<T>>("negate", negate<T>{y, x}, n, sh_aligned<SH_WIDTH<T>>(y, n) && ..., queue);
 *
 * at() is called with N, at multiples of N, and with 1 for the remainder; if `vectors` is false, only with 1. */
#ifndef SH_KERNELS_CUDA_MAP_CUH
#define SH_KERNELS_CUDA_MAP_CUH

#include "kernels/cuda/launch.cuh"

enum { SH_MAP_THREADS = 256 };

template <int N, class F> static __global__ void __launch_bounds__(SH_MAP_THREADS) sh_map_kernel(F f, int64_t n)
{
    int64_t step = (int64_t)gridDim.x * SH_MAP_THREADS * N;

    for (int64_t i = ((int64_t)blockIdx.x * SH_MAP_THREADS + threadIdx.x) * N; i < n; i += step) {
        if (i + N <= n)
            f.template at<N>(i);
        else
            for (int64_t k = i; k < n; k++)
                f.template at<1>(k);
    }
}

/* Map elements [0, n). Errors: SH_E_BUG if the launch is refused. */
template <int N, class F> static sh_rc sh_map(const char *name, const F &f, int64_t n, bool vectors, void *queue)
{
    unsigned blocks = sh_blocks(sh_ceil_div(n, SH_MAP_THREADS * (vectors ? N : 1)));

    if (n == 0)
        return SH_OK;
    if (vectors)
        return sh_cuda_launch(name, sh_map_kernel<N, F>, dim3(blocks), dim3(SH_MAP_THREADS), 0, queue, f, n);
    return sh_cuda_launch(name, sh_map_kernel<1, F>, dim3(blocks), dim3(SH_MAP_THREADS), 0, queue, f, n);
}

#endif
