/* Initial values, made on the GPU where they stay. Bytes: 4 per element, written; but some 90 integer operations per
 * element make this kernel bound by arithmetic. It runs once. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/map.cuh"
#include "src/base/number/philox.h"
#include "src/base/number/rng.h"

namespace
{
struct normal {
    struct sh_floats out;
    uint64_t key;
    sh_rng_runs runs;
    float scale;

    __device__ __forceinline__ int64_t element(int64_t i) const
    {
        return runs.first + (runs.count == 1 ? i : i / runs.n * runs.stride + i % runs.n);
    }

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float v[N];
        for (int k = 0; k < N; k++)
            v[k] = (float)sh_philox_centred_sum(key, (uint64_t)element(i + k)) * scale;
        sh_cuda_store_floats(out, i, v);
    }
};
} // namespace

/* An element depends on the key and its number only, so any cut of a tensor gives the same values. A single run, the
 * usual case, does without the division. */
sh_rc sh_cuda_fill_normal(uint64_t key, const struct sh_rng_runs *runs, float std, struct sh_floats out, void *queue)
{
    constexpr int N = SH_WIDTH<float>;
    return sh_map<N>("fill_normal", normal{out, key, *runs, sh_rng_normal_scale(std)}, runs->n * runs->count,
                     sh_floats_aligned<N>(out), queue);
}
