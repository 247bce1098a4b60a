/* N neighbouring floats starting at element `at`, whole or in halves; moved as vectors if sh_floats_aligned() allows
 * it. */
#ifndef SH_KERNELS_CUDA_FLOATS_CUH
#define SH_KERNELS_CUDA_FLOATS_CUH

#include "kernels/cuda/launch.cuh"

template <int N> __device__ __forceinline__ void sh_floats_load(float (&v)[N], const struct sh_floats &f, int64_t at)
{
    sh_bf16 high[N];
    int16_t low[N] = {0};

    if (f.whole) {
        sh_load(v, f.whole + at);
        return;
    }
    sh_load_raw(high, f.high + at);
    if (f.low)
        sh_load_raw(low, f.low + at);
    for (int k = 0; k < N; k++)
        v[k] = sh_floats_join(high[k], low[k]);
}

template <int N>
__device__ __forceinline__ void sh_cuda_store_floats(const struct sh_floats &f, int64_t at, const float (&v)[N])
{
    sh_bf16 high[N];
    int16_t low[N];

    if (f.whole) {
        sh_store(f.whole + at, v);
        return;
    }
    for (int k = 0; k < N; k++)
        sh_floats_split(v[k], &high[k], &low[k]);
    sh_store_raw(f.high + at, high);
    if (f.low)
        sh_store_raw(f.low + at, low);
}

template <int N> static inline bool sh_floats_aligned(const struct sh_floats &f)
{
    return sh_aligned<N>(f.whole, 0) && sh_aligned<N>(f.high, 0) && sh_aligned<N>(f.low, 0);
}

#endif
