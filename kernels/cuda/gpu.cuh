/* What launch.cuh takes from CUDA: shared memory, launches, and what kernels have no other word for. */
#ifndef SH_KERNELS_CUDA_GPU_CUH
#define SH_KERNELS_CUDA_GPU_CUH

#include "kernels/op.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define SH_SHARED(type, name, count)      \
    __shared__ type name##_there_[count]; \
    type *const name = name##_there_
#define SH_DYNAMIC_SHARED(type, name)                    \
    extern __shared__ __align__(128) char sh_dynamic_[]; \
    type *const name = reinterpret_cast<type *>(sh_dynamic_)
#define SH_ANY_TYPE
#define SH_UNROLL _Pragma("unroll")
#define SH_NO_UNROLL _Pragma("unroll 1")

constexpr int64_t SH_MOST_BLOCKS = 1 << 16;

/* Bytes of shared memory that one block may have on this process's GPU, and the name of the GPU. A GPU that does not
 * answer has no limit here: the launch will tell. */
static inline size_t sh_shared_limit(const char **gpu)
{
    static cudaDeviceProp prop;
    int device = 0;
    if (!prop.name[0] &&
        (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&prop, device) != cudaSuccess))
        return SIZE_MAX;
    *gpu = prop.name;
    return prop.sharedMemPerBlockOptin;
}

/* More than 48 KB of shared memory must be requested explicitly. */
template <class... P, class... A>
sh_rc sh_cuda_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, void *queue,
                     A... args)
{
    if (shared_bytes > 48 << 10)
        (void)cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)shared_bytes);
    kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(queue)>>>(P(args)...);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        return sh_fail(SH_E_BUG, "CUDA kernel %s, %u x %u blocks of %u threads: %s", name, grid.x, grid.y,
                       block.x * block.y, cudaGetErrorString(error));
    return SH_OK;
}

__device__ __forceinline__ sh_bf16 sh_round_to_bf16(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/* Take the next number of `turn`. Everything that was written before the lower numbers were taken is visible. */
__device__ __forceinline__ unsigned sh_take_turn(unsigned *turn)
{
    __threadfence();
    unsigned mine = atomicAdd(turn, 1u);
    __threadfence();
    return mine;
}

#endif
