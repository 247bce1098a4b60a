/* Sums of the data that a checkpoint copies (src/base/number/mixsum.h), in parts of SH_MIXSUM_PART elements, one block each.
 * Bytes: 4 per element, read once, or 2 or 1 of states; some 25 integer operations each, most of them in two 64-bit
 * products. A GPU of 3 TB/s is therefore bound by this arithmetic, but the copy to the host, which follows, takes ten times
 * as long. */
#include "src/base/number/mixsum.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/floats.cuh"

namespace
{
constexpr int THREADS = 256;

/* One block per part, so that the sums of parts do not depend on the grid. */
template <int N>
__global__ void sum_parts(struct sh_floats data, int64_t first, int64_t n, uint64_t place, uint64_t *sums)
{
    int64_t begin = (int64_t)blockIdx.x * SH_MIXSUM_PART, end = begin + SH_MIXSUM_PART < n ? begin + SH_MIXSUM_PART : n;
    uint64_t sum[1] = {0};

    for (int64_t i = begin + (int64_t)threadIdx.x * N; i < end; i += THREADS * N) {
        float v[N];
        sh_cuda_load_any(v, data, first + i);
        for (int k = 0; k < N; k++)
            sum[0] += sh_mixsum_elem(__float_as_uint(v[k]), place + (uint64_t)(i + k) * SH_MIXSUM_STEP);
    }
    sh_block_sum(sum);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum[0];
}
} // namespace

/* The grid has a dimension of 2^31 - 1 blocks, so any n is one launch. Vectors are used if all lengths allow them. */
sh_rc sh_cuda_mixsum(struct sh_floats data, int64_t first, int64_t n, uint64_t place, uint64_t *sums, void *queue)
{
    constexpr int N = SH_WIDTH<float>;
    dim3 grid((unsigned)sh_ceil_div(n, SH_MIXSUM_PART));

    if (n == 0)
        return SH_OK;
    if (!data.coded) {
        data = sh_floats_at(data, first);
        first = 0;
    }
    if (n % N == 0 && first % N == 0 && sh_floats_aligned<N>(data))
        return SH_LAUNCH((sum_parts<N>), grid, dim3(THREADS), 0, queue, data, first, n, place, sums);
    return SH_LAUNCH((sum_parts<1>), grid, dim3(THREADS), 0, queue, data, first, n, place, sums);
}
