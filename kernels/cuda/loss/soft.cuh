/* Softmax over a row of logits that a block owns, for the losses of this folder. */
#ifndef SH_KERNELS_CUDA_SOFT_CUH
#define SH_KERNELS_CUDA_SOFT_CUH

#include "kernels/cuda/gemm/head.h"
#include "kernels/cuda/launch.cuh"

namespace
{
constexpr int THREADS = 512, N = 4;

/* Maximum of some logits, and the sum of e^(logit - max). */
struct soft {
    float max, sum;
};

template <int M> __device__ __forceinline__ void include(soft &s, const float (&x)[M])
{
    float max = s.max, sum = 0;

    for (int k = 0; k < M; k++)
        max = fmaxf(max, x[k]);
    for (int k = 0; k < M; k++)
        sum += max == -INFINITY ? 0 : expf(x[k] - max);
    s.sum = (max == s.max ? s.sum : s.sum * expf(s.max - max)) + sum;
    s.max = max;
}

/* Elements from `at` on, M / N vectors with the block's width between them; -Inf past the end, which adds nothing. */
template <int M> __device__ __forceinline__ void load_logits(float (&x)[M], const float *row, int64_t at, int64_t vocab)
{
    for (int v = 0; v < M; v += N, at += blockDim.x * N) {
        float y[N];
        if (at + N <= vocab)
            sh_load(y, row + at);
        else
            for (int k = 0; k < N; k++)
                y[k] = at + k < vocab ? row[at + k] : -INFINITY;
        for (int k = 0; k < N; k++)
            x[v + k] = y[k];
    }
}

/* The soft of the whole row, for all threads of the block. Two vectors at a time are one rescaling for both. */
__device__ __forceinline__ soft soft_of(const float *row, int64_t vocab)
{
    soft s = {-INFINITY, 0};
    for (int64_t at = (int64_t)threadIdx.x * N; at < vocab; at += 2 * blockDim.x * N) {
        float x[2 * N];
        load_logits(x, row, at, vocab);
        include(s, x);
    }
    float max[1] = {s.max};
    sh_block_reduce(max, -INFINITY, sh_larger());
    float sum[1] = {s.max == -INFINITY ? s.sum : s.sum * expf(s.max - max[0])};
    sh_block_sum(sum);
    return {max[0], sum[0]};
}

/* cap: 0: none */
template <class T> __device__ __forceinline__ float logit_of(T z, float cap)
{
    return cap == 0 ? sh_widen(z) : cap * tanhf(sh_widen(z) / cap);
}

struct sh_smaller {
    __device__ __forceinline__ int operator()(int a, int b) const
    {
        return a < b ? a : b;
    }
};

/* The first word with the row's maximum; 0 if no word has it. For all threads of the block. */
template <class T> __device__ __forceinline__ int word_of(const T *row, int64_t vocab, float max, float cap)
{
    int first[1] = {INT32_MAX};

    for (int64_t v = threadIdx.x; v < vocab && first[0] == INT32_MAX; v += blockDim.x)
        if (logit_of(row[v], cap) == max)
            first[0] = (int)v;
    sh_block_reduce(first, INT32_MAX, sh_smaller());
    return first[0] == INT32_MAX ? 0 : first[0];
}

__device__ __forceinline__ double weight_of(const sh_cuda_softmax &s, int64_t r)
{
    return s.weight ? s.weight[r] : 1;
}

/* Threads for a row: four vectors each in a short one. */
inline dim3 block_of(int64_t vocab)
{
    int64_t threads = sh_ceil_div(sh_ceil_div(vocab, 4 * N), 32) * 32;
    return dim3((unsigned)(threads < THREADS ? threads : THREADS));
}
} // namespace

#endif
