/* N neighbouring floats starting at element `at`, whole or in halves; moved as vectors if sh_floats_aligned() allows
 * it. */
#ifndef SH_KERNELS_CUDA_FLOATS_CUH
#define SH_KERNELS_CUDA_FLOATS_CUH

#include "kernels/cuda/launch.cuh"
#include "src/base/number/code8_law.h"

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

/* ---- codes of eight bits (src/base/number/code8.h), whose blocks start at multiples of 4 bytes ---- */

__device__ __forceinline__ float sh_cuda_code_widen(unsigned char code, enum sh_code8_law law, float scale)
{
    return law == SH_CODE8_LINEAR ? sh_code8_linear(code, scale) : sh_code8_fourth(code, scale);
}

__device__ __forceinline__ float *sh_cuda_code_scale(unsigned char *block)
{
    return reinterpret_cast<float *>(block + SH_CODE8_ELEMS);
}

/* N neighbours of one block, starting at a multiple of N. */
template <int N>
__device__ __forceinline__ void sh_cuda_load_codes(float (&v)[N], unsigned char *coded, enum sh_code8_law law,
                                                   int64_t at)
{
    unsigned char *block = coded + at / SH_CODE8_ELEMS * SH_CODE8_BLOCK_BYTES, code[N];
    float scale[1];

    sh_load_raw(code, block + at % SH_CODE8_ELEMS);
    sh_load_raw(scale, sh_cuda_code_scale(block));
    for (int k = 0; k < N; k++)
        v[k] = sh_cuda_code_widen(code[k], law, scale[0]);
}

/* Half a warp has a block, each lane EACH neighbours. */
constexpr int SH_CODE_EACH = 4, SH_CODE_LANES = SH_CODE8_ELEMS / SH_CODE_EACH;

/* The magnitude of the largest number of a block; a NaN is larger than all numbers. All lanes of the warp call it. */
__device__ __forceinline__ float sh_cuda_largest(const float (&x)[SH_CODE_EACH])
{
    uint32_t most = 0;

    for (int k = 0; k < SH_CODE_EACH; k++) {
        uint32_t size = __float_as_uint(x[k]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    for (int with = SH_CODE_LANES / 2; with; with /= 2) {
        uint32_t other = __shfl_xor_sync(~0u, most, with);
        most = other > most ? other : most;
    }
    return __uint_as_float(most);
}

/* A lane's part of a block whose largest number is `scale`, rounded by 16 bits of each word from `first` on. Numbers beside one
 * that is not finite become what the law makes of them. */
__device__ __forceinline__ void sh_cuda_store_codes(unsigned char *block, enum sh_code8_law law, unsigned lane,
                                                    const float (&x)[SH_CODE_EACH],
                                                    const uint32_t (&word)[SH_CODE_EACH], int first, float scale)
{
    unsigned char code[SH_CODE_EACH] = {0};
    float kept[1] = {scale < SH_CODE8_LEAST ? 0 : scale};

    for (int k = 0; k < SH_CODE_EACH && !(scale < SH_CODE8_LEAST); k++) {
        uint32_t bits = word[k] >> first & 0xffffu;
        code[k] = law == SH_CODE8_LINEAR ? sh_code8_to_linear(x[k], sh_code8_per_linear(scale), bits)
                                         : sh_code8_to_fourth(x[k], sh_code8_per_fourth(scale), bits);
    }
    sh_store_raw(block + lane * SH_CODE_EACH, code);
    if (lane == 0)
        sh_store_raw(sh_cuda_code_scale(block), kept);
}

/* As sh_floats_load(), also of floats in codes. */
template <int N> __device__ __forceinline__ void sh_cuda_load_any(float (&v)[N], const struct sh_floats &f, int64_t at)
{
    if (f.coded)
        sh_cuda_load_codes(v, f.coded, f.law, at);
    else
        sh_floats_load(v, f, at);
}

#endif
