/* CUDA kernels on the CPU, so that tests find wrong indices and missing barriers without a GPU.
 * The emulated gpu.cuh (shim/kernels/cuda) includes this instead of the CUDA headers; the kernels do not know the
 * difference.
 *
 * A launch runs at once on the calling thread, or in its stream if the double of the runtime is present: the blocks
 * one after another, and the threads of a block as fibers, each of which runs until it ends or waits at a barrier.
 * What it finds:
 *   - a missing barrier: between two barriers, the order of threads and blocks is forward, backward or shuffled, as set
 *     by sh_emulated_set_order(). A test runs a kernel in all orders and requires the same bits.
 *   - a divergent barrier or shuffle: threads that wait at different places, or for threads that have ended; one line
 *     on stderr, then abort().
 *   - wrong addresses, with -fsanitize=address,undefined: every piece of shared memory is a separate allocation of its
 *     exact size, and vectors of 16 bytes have their alignment. Shared memory starts as NaN.
 *   - launches that a GPU refuses: blocks too large or of odd size, too much shared memory.
 *   - races that show in no order, in programs built for it (races.h): tests/gpu/race_*.
 * What it does not find: faults that depend on a memory model weaker than the CPU's.
 *
 * Warps have 32 lanes, all of which take part in every shuffle. Each wait of a thread costs some 50 ns (2 us with the
 * address sanitizer). One host thread launches at a time. */
#ifndef SH_TESTS_GPU_EMULATED_CUDA_ON_CPU_H
#define SH_TESTS_GPU_EMULATED_CUDA_ON_CPU_H

#include "tests/gpu/emulated/order_of_threads.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct uint3 {
    unsigned x, y, z;
};
struct __attribute__((aligned(8), may_alias)) uint2 {
    unsigned x, y;
};
struct __attribute__((aligned(16), may_alias)) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};

/* Those of the running thread. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace sh_emulated
{
struct place {
    const char *file;
    int line;
};

void launch(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread);

/* The same in a stream, if there are streams (emulated.h); returns the error of the launch, 0 for none. */
/* Bytes that a block can have: an H100's, or SHERD_EMULATED_SHARED_KIB. */
size_t shared_limit();
int put(void *stream, const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> thread);
void wait_block(place at);
void wait_warp(place at);
unsigned lane();
/* 32 words of this warp, alternating between two sets, so that one wait is enough between two exchanges. */
uint64_t *mailbox();
/* The block's memory for the variable that `key` names; the first thread that asks creates it. */
void *shared(const void *key, size_t bytes);
void *dynamic_shared();
void want_full_mask(unsigned mask, place at);

/* 0 or 1: storage that a warp shares between its threads exists once per parity, so that neighbouring blocks do not
 * meet there. */
unsigned parity();

/* Copies that the running thread has started and not waited for, oldest first. Kept here, where the race detector
 * does not look: they belong to the thread, wherever its block runs. */
struct delayed {
    char *to;
    char data[16];
    int bytes;
};
void delay(const delayed &copy);
bool next_delayed(delayed *copy); /* false: none left */

/* The `value` of lane `from`. */
template <class T> T exchange(unsigned mask, T value, unsigned from, place at)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves 8 bytes at most");
    want_full_mask(mask, at);
    uint64_t *box = mailbox();
    memcpy(&box[lane()], &value, sizeof value);
    wait_warp(at);
    memcpy(&value, &box[from], sizeof value);
    return value;
}
} // namespace sh_emulated

#define SH_EMULATED_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
/* clang-format off */
#define SH_EMULATED_HERE {file, line}
/* clang-format on */

inline void __syncthreads(SH_EMULATED_PLACE)
{
    sh_emulated::wait_block(SH_EMULATED_HERE);
}

inline void __syncwarp(unsigned mask = ~0u, SH_EMULATED_PLACE)
{
    sh_emulated::want_full_mask(mask, SH_EMULATED_HERE);
    sh_emulated::wait_warp(SH_EMULATED_HERE);
}

template <class T> T __shfl_sync(unsigned mask, T value, int from, SH_EMULATED_PLACE)
{
    return sh_emulated::exchange(mask, value, (unsigned)from & 31u, SH_EMULATED_HERE);
}

template <class T> T __shfl_xor_sync(unsigned mask, T value, int with, SH_EMULATED_PLACE)
{
    return sh_emulated::exchange(mask, value, sh_emulated::lane() ^ ((unsigned)with & 31u), SH_EMULATED_HERE);
}

template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, SH_EMULATED_PLACE)
{
    unsigned from = sh_emulated::lane() + by;
    return sh_emulated::exchange(mask, value, from < 32 ? from : sh_emulated::lane(), SH_EMULATED_HERE);
}

template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, SH_EMULATED_PLACE)
{
    unsigned from = sh_emulated::lane() - by;
    return sh_emulated::exchange(mask, value, from < 32 ? from : sh_emulated::lane(), SH_EMULATED_HERE);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SH_EMULATED_PLACE)
{
    unsigned bits = 0;
    sh_emulated::want_full_mask(mask, SH_EMULATED_HERE);
    uint64_t *box = sh_emulated::mailbox();
    box[sh_emulated::lane()] = predicate != 0;
    sh_emulated::wait_warp(SH_EMULATED_HERE);
    for (unsigned i = 0; i < 32; i++)
        bits |= (unsigned)box[i] << i;
    return bits;
}

inline int __any_sync(unsigned mask, int predicate, SH_EMULATED_PLACE)
{
    return __ballot_sync(mask, predicate, file, line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, SH_EMULATED_PLACE)
{
    return __ballot_sync(mask, predicate, file, line) == ~0u;
}

/* Fibers switch at barriers only, so nothing can come in between. Integers only, as in the kernels. */
template <class T> T atomicAdd(T *p, T value)
{
    static_assert(std::is_integral<T>::value, "floating-point sums must have one order");
    return __atomic_fetch_add(p, value,
                              __ATOMIC_RELAXED); /* one thread runs; the race detector recognises it as an atomic */
}

inline unsigned __float_as_uint(float f)
{
    unsigned u;
    memcpy(&u, &f, sizeof u);
    return u;
}

inline float __uint_as_float(unsigned u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

inline int64_t __double_as_longlong(double d)
{
    int64_t i;
    memcpy(&i, &d, sizeof i);
    return i;
}

inline int __clzll(long long i)
{
    return i ? __builtin_clzll((unsigned long long)i) : 64;
}

inline int __popc(unsigned u)
{
    return __builtin_popcount(u);
}

inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

inline float __expf(float x)
{
    return expf(x);
}

inline float __logf(float x)
{
    return logf(x);
}

/* Like the GPU's: 0 if the divisor is larger than 2^126. */
inline float __fdividef(float x, float y)
{
    return fabsf(y) > 0x1p126f ? x * 0.0f : x / y;
}

template <class T> const T &min(const T &a, const T &b)
{
    return b < a ? b : a;
}

template <class T> const T &max(const T &a, const T &b)
{
    return a < b ? b : a;
}

#endif
