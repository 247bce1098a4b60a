/* Look for damage in the state where it is stored: the number of elements that are not finite, and a sum of all words
 * that changes if any of them does. One number per tensor goes to the host. Floor: the bytes of the tensor, read
 * once. Only integers are added, so the order of the sums does not matter. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/floats.cuh"

namespace
{
enum { THREADS = 256 };
constexpr int64_t MOST_BLOCKS = 1024;
typedef unsigned long long word; /* the type that atomicAdd takes */

/* One number for each request, in device memory until take() brings all of them. */
__device__ word slots[SH_DAMAGE_SLOTS];

/* Integers: atomics in any order give the same sum. */
__device__ __forceinline__ void add_to_slot(int slot, word mine)
{
    word all[1] = {mine};
    sh_block_sum(all);
    if (threadIdx.x == 0)
        atomicAdd(&slots[slot], all[0]);
}

/* An exponent of all ones: Inf and NaN. */
template <int N> __global__ void __launch_bounds__(THREADS) count_bad(struct sh_floats x, int64_t n, int slot)
{
    int64_t step = (int64_t)gridDim.x * THREADS * N;
    word bad = 0;

    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N; i < n; i += step) {
        float v[N];
        if (i + N <= n)
            sh_cuda_load_any(v, x, i);
        for (int k = 0; k < N && i + k < n; k++) {
            float one[1] = {v[k]};
            if (i + N > n)
                sh_cuda_load_any(one, x, i + k);
            bad += (__float_as_uint(one[0]) & 0x7f800000u) == 0x7f800000u;
        }
    }
    add_to_slot(slot, bad);
}

/* sh_mix64() of src/base/hash.c. */
__device__ __forceinline__ word mix(word x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Each word with its place mixed in; the bytes after the last whole word count as one more word. PIECE: what a load may take
 * of a word; blocks of codes start at multiples of 4 bytes. */
template <class PIECE> __global__ void __launch_bounds__(THREADS) sum_words(const PIECE *x, int64_t bytes, int slot)
{
    int64_t n = bytes / 8, step = (int64_t)gridDim.x * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    word sum = 0;

    for (int64_t i = first; i < n; i += step) {
        PIECE piece[8 / sizeof(PIECE)];
        word one;
        for (int k = 0; k < (int)(8 / sizeof(PIECE)); k++)
            piece[k] = x[i * (int)(8 / sizeof(PIECE)) + k];
        memcpy(&one, piece, sizeof one);
        sum += mix(one ^ mix((word)i + 1));
    }
    if (first == 0 && bytes % 8) {
        word rest = 0;
        for (int64_t b = n * 8; b < bytes; b++)
            rest = rest << 8 | reinterpret_cast<const unsigned char *>(x)[b];
        sum += mix(rest ^ mix((word)n + 1));
    }
    add_to_slot(slot, sum);
}

/* Read and clear in one launch, so that the next requests start at 0. */
__global__ void __launch_bounds__(THREADS) take(uint64_t *out, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        out[i] = slots[i];
        slots[i] = 0;
    }
}

/* At least eight elements per thread; more blocks than MOST_BLOCKS would only compete for the slot. */
unsigned blocks_for(int64_t elems)
{
    int64_t wanted = sh_ceil_div(elems, 8 * THREADS);
    return sh_blocks(wanted < 1 ? 1 : wanted < MOST_BLOCKS ? wanted : MOST_BLOCKS);
}
} // namespace

const void *sh_cuda_any_kernel(void)
{
    return reinterpret_cast<const void *>(take);
}

/* Only enqueued; the number is available after sh_cuda_take_slots() and once the queue has drained. */
sh_rc sh_cuda_count_bad(struct sh_floats x, int64_t n, int slot, void *queue)
{
    constexpr int N = SH_WIDTH<float>;
    dim3 grid(blocks_for(n / N));

    SH_REQUIRE(slot < SH_DAMAGE_SLOTS);
    if (sh_floats_aligned<N>(x))
        return SH_LAUNCH((count_bad<N>), grid, dim3(THREADS), 0, queue, x, n, slot);
    return SH_LAUNCH((count_bad<1>), grid, dim3(THREADS), 0, queue, x, n, slot);
}

sh_rc sh_cuda_sum_words(const void *x, int64_t bytes, int slot, void *queue)
{
    dim3 grid(blocks_for(bytes / 8));

    SH_REQUIRE(slot < SH_DAMAGE_SLOTS && (uintptr_t)x % 4 == 0);
    if ((uintptr_t)x % 8)
        return SH_LAUNCH((sum_words<uint32_t>), grid, dim3(THREADS), 0, queue, static_cast<const uint32_t *>(x), bytes,
                         slot);
    return SH_LAUNCH((sum_words<uint64_t>), grid, dim3(THREADS), 0, queue, static_cast<const uint64_t *>(x), bytes,
                     slot);
}

sh_rc sh_cuda_take_slots(uint64_t *out, int n, void *queue)
{
    SH_REQUIRE(n <= SH_DAMAGE_SLOTS);
    return SH_LAUNCH(take, dim3(1), dim3(THREADS), 0, queue, out, n);
}
