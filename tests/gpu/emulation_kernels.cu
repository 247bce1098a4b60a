#include "tests/gpu/emulation_kernels.h"

#include "kernels/cuda/launch.cuh"

namespace
{
constexpr int THREADS = 256;

__global__ void reverse(uint32_t *y, const uint32_t *x, int n, bool barrier)
{
    SH_SHARED(uint32_t, shared, THREADS);
    int first = (int)blockIdx.x * THREADS, i = (int)threadIdx.x;

    shared[i] = first + i < n ? x[first + i] : 0;
    if (barrier)
        __syncthreads();
    if (first + i < n)
        y[first + i] = shared[THREADS - 1 - i];
}

__global__ void reverse_warps(uint32_t *y, const uint32_t *x)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    uint32_t v = __shfl_xor_sync(~0u, x[i], 31);
    uint32_t same = __shfl_sync(~0u, v, (int)threadIdx.x % 32);
    uint32_t up = __shfl_up_sync(~0u, same, 1), down = __shfl_down_sync(~0u, up, 1);

    y[i] = threadIdx.x % 32 == 31 ? same : down;
}

__global__ void sum(uint32_t *y, bool ordered)
{
    if (!ordered)
        atomicAdd(y, threadIdx.x);
    else if (threadIdx.x == 0)
        *y = *y * 2 + blockIdx.x;
}

__global__ void half_warp(int *y)
{
    if (threadIdx.x < 16)
        return;
    *y = __shfl_sync(~0u, 1, 0);
}

__global__ void two_places(int *)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

__global__ void warp_block(int *y)
{
    if (threadIdx.x == 5)
        __syncthreads();
    else
        *y = __shfl_sync(~0u, 1, 0);
}

__global__ void part_mask(int *y)
{
    *y = __shfl_xor_sync(0xffffu, 1, 1);
}

__global__ void shared_use(int *y)
{
    SH_DYNAMIC_SHARED(int, room);
    *y = room[threadIdx.x];
}

__global__ void past_shared(int *y)
{
    SH_SHARED(int, room, 64);
    *y = room[threadIdx.x + 1];
}

__global__ void bad_vector(float *y)
{
    float v[4];
    sh_load(v, y + threadIdx.x);
    y[0] = v[1];
}

__global__ void look_at_shared(int *good)
{
    SH_SHARED(float, room, 100);
    for (int i = 0; i < 100; i++)
        if (room[i] == room[i])
            *good = 0;
    __syncthreads();
    room[threadIdx.x] = 1; /* must not be what the next block finds */
}

void launch_fault(void (*kernel)(int *), unsigned threads, size_t shared_bytes)
{
    int y = 0;
    (void)SH_LAUNCH(kernel, dim3(1), dim3(threads), shared_bytes, NULL, &y);
}
} // namespace

void emulation_reverse(uint32_t *y, const uint32_t *x, int n, bool barrier)
{
    (void)SH_LAUNCH(reverse, dim3((unsigned)sh_ceil_div(n, THREADS)), dim3(THREADS), 0, NULL, y, x, n, barrier);
}

void emulation_reverse_warps(uint32_t *y, const uint32_t *x, int n)
{
    (void)SH_LAUNCH(reverse_warps, dim3((unsigned)(n / THREADS)), dim3(THREADS), 0, NULL, y, x);
}

void emulation_sum(uint32_t *y, int blocks, bool ordered)
{
    *y = 0;
    (void)SH_LAUNCH(sum, dim3((unsigned)blocks), dim3(THREADS), 0, NULL, y, ordered);
}

void emulation_fault(enum emulation_fault fault)
{
    alignas(16) float y[8] = {};

    switch (fault) {
    case EMULATION_HALF_WARP: launch_fault(half_warp, 64, 0); break;
    case EMULATION_TWO_PLACES: launch_fault(two_places, 64, 0); break;
    case EMULATION_WARP_BLOCK: launch_fault(warp_block, 64, 0); break;
    case EMULATION_PART_MASK: launch_fault(part_mask, 64, 0); break;
    case EMULATION_ODD_BLOCK: launch_fault(part_mask, 33, 0); break;
    case EMULATION_BIG_SHARED: launch_fault(shared_use, 64, 1 << 20); break;
    case EMULATION_PAST_SHARED: launch_fault(past_shared, 64, 0); break;
    case EMULATION_BAD_VECTOR: (void)SH_LAUNCH(bad_vector, dim3(1), dim3(32), 0, NULL, y); break;
    default: break;
    }
}

bool emulation_shared_is_poisoned(void)
{
    int good = 1;
    (void)SH_LAUNCH(look_at_shared, dim3(3), dim3(32), 0, NULL, &good);
    return good != 0;
}
