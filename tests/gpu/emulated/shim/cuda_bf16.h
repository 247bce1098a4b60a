/* What a plug-in with CUDA kernels includes, for emulated GPUs (emulated/plugin.py): the runtime's calls are those of the
 * double in the program that opens it. */
#ifndef SH_TESTS_GPU_EMULATED_CUDA_BF16_H
#define SH_TESTS_GPU_EMULATED_CUDA_BF16_H

#include "include/sherd/op.h"
#include "tests/gpu/emulated/cuda_on_cpu.h"

typedef struct CUstream_st *cudaStream_t;
extern "C" int cudaGetLastError(void);

struct __nv_bfloat16 {
    sh_bf16 bits;
    __nv_bfloat16(float x) : bits(sh_f32_to_bf16(x))
    {
    }
    operator float() const
    {
        return sh_bf16_to_f32(bits);
    }
};

struct __half {
    sh_f16 bits;
    __half(float x) : bits(sh_f32_to_f16(x))
    {
    }
    operator float() const
    {
        return sh_f16_to_f32(bits);
    }
};

/* kernel<<<grid, block, shared, stream>>>(args): the arguments are evaluated here, as by the launch. */
template <class F, class... A>
void sh_emulated_call(const char *name, F kernel, dim3 grid, dim3 block, size_t shared, void *stream, A... args)
{
    sh_emulated::put(stream, name, grid, block, shared, [=] { kernel(args...); });
}

#endif
