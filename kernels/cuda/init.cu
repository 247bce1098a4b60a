/* Initial values, made on the GPU where they stay. Bytes: 4 per element, written; but some 90 integer operations per
 * element make this kernel bound by arithmetic. It runs once. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/map.cuh"
#include "src/base/philox.h"
#include "src/base/rng.h"

namespace
{
struct normal {
    struct sh_floats out;
    uint64_t key;
    int64_t first;
    float scale;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float v[N];
        for (int k = 0; k < N; k++)
            v[k] = (float)sh_philox_centred_sum(key, (uint64_t)(first + i + k)) * scale;
        sh_cuda_store_floats(out, i, v);
    }
};
} // namespace

/* Element i depends on key and first + i only, so any cut of a parameter gives the same values. */
sh_rc sh_cuda_fill_normal(uint64_t key, int64_t first, int64_t n, float std, struct sh_floats out, void *queue)
{
    constexpr int N = SH_WIDTH<float>;
    return sh_map<N>("fill_normal", normal{out, key, first, sh_rng_normal_scale(std)}, n, sh_floats_aligned<N>(out),
                     queue);
}
