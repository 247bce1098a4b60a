/* kernels/cuda/gpu.cuh for the CPU; found before it, because this folder comes first among those of includes. */
#ifndef SH_KERNELS_CUDA_GPU_CUH
#define SH_KERNELS_CUDA_GPU_CUH

#include "kernels/op.h"
#include "tests/gpu/emulated/cuda_on_cpu.h"

/* Shared memory of the block: `name` is a pointer to `count` elements. Dynamic: as many bytes as the launch gave. */
#define SH_SHARED(type, name, count) \
    static char name##_key_;         \
    type *const name = static_cast<type *>(sh_emulated::shared(&name##_key_, sizeof(type) * (count)))
#define SH_DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(sh_emulated::dynamic_shared())
#define SH_ANY_TYPE __attribute__((may_alias)) /* the memory may hold another type */
#define SH_UNROLL
#define SH_NO_UNROLL

constexpr int64_t SH_MOST_BLOCKS = 3; /* so that tests run the loops over what the grid does not cover */

static inline size_t sh_shared_limit(const char **gpu)
{
    *gpu = "an emulated GPU";
    return sh_emulated::shared_limit();
}

template <class... P, class... A>
sh_rc sh_cuda_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, void *queue,
                     A... args)
{
    int error = sh_emulated::put(queue, name, grid, block, shared_bytes, [=] { kernel(P(args)...); });
    if (error)
        return sh_fail(SH_E_BUG, "CUDA kernel %s: error %d", name, error);
    return SH_OK;
}

static inline sh_bf16 sh_round_to_bf16(float x)
{
    return sh_f32_to_bf16(x);
}

static inline unsigned sh_take_turn(unsigned *turn)
{
    return __atomic_fetch_add(turn, 1u, __ATOMIC_ACQ_REL);
}

#endif
