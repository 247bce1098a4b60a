/* What the kernels of this folder share: documents and chunks as kernels/delta.h has them, and queries and keys divided by
 * their lengths. */
#ifndef SH_KERNELS_CUDA_DELTA_ROWS_CUH
#define SH_KERNELS_CUDA_DELTA_ROWS_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/delta.h"

/* The first row of the document of row t of sequence b; without docs a sequence is one document. */
__device__ __forceinline__ int64_t sh_cuda_document_of(const int32_t *docs, int64_t T, int64_t b, int64_t t)
{
    return docs ? docs[b * T + t] : 0;
}

__device__ __forceinline__ double sh_cuda_softplus(double x)
{
    return fmax(x, 0.0) + log1p(exp(-fabs(x)));
}

/* What is left of a state after a row, as a logarithm; raw: a + dt. */
__device__ __forceinline__ double sh_cuda_delta_decay(double a_log, double raw)
{
    return -exp(a_log) * sh_cuda_softplus(raw);
}

/* A warp reads a query or key of n elements and divides it by its length, times `times`. Lane l has elements l + 32 i; those
 * behind the last are 0. Returns times / length. */
template <int EACH, class T>
__device__ __forceinline__ float sh_cuda_unit_row(float (&v)[EACH], const T *from, int n, float times)
{
    int lane = threadIdx.x % 32;
    float sum = 0;

    SH_UNROLL
    for (int i = 0; i < EACH; i++) {
        int d = lane + 32 * i;
        v[i] = d < n ? sh_widen(from[d]) : 0;
        sum += v[i] * v[i];
    }
    float by = times / sqrtf(sh_warp_reduce(sum, sh_add()) + (float)SH_DELTA_LEAST);
    SH_UNROLL
    for (int i = 0; i < EACH; i++)
        v[i] *= by;
    return by;
}

#endif
