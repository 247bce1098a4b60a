/* The largest logits of rows, for a teacher's file. A block owns a row and reads it once, 4 bytes a logit. It keeps a sorted
 * list of the best; what exceeds the last of them waits behind, and is sorted in when no more has room. In a row without
 * order a few hundred of a vocabulary do. Not measured on a GPU yet. */
#include "kernels/cuda/loss/forms.h"

#include "kernels/cuda/loss/soft.cuh"

namespace
{
enum { ROOM = 2 * THREADS * N }; /* the list, and at least one tile behind it */

/* A word's place in the order of the list, which is total: larger logits first, of equal ones the lower word. NaN counts as
 * -Inf. No word has place 0. */
__device__ __forceinline__ uint64_t place_of(float z, int64_t word)
{
    uint32_t bits = __float_as_uint(z != z ? -INFINITY : z == 0 ? 0.0f : z); /* -0 is 0 */

    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t) ~(uint32_t)word;
}

/* Sort list [n] in descending order, n a power of 2: bitonic, for all threads of the block. */
__device__ void sort_list(uint64_t *list, int n)
{
    for (int run = 2; run <= n; run *= 2)
        for (int by = run / 2; by > 0; by /= 2) {
            for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
                int a = i / by * 2 * by + i % by, b = a + by;
                uint64_t x = list[a], y = list[b];

                if ((x < y) == ((a & run) == 0)) {
                    list[a] = y;
                    list[b] = x;
                }
            }
            __syncthreads();
        }
}

/* Sort in the `waiting` places behind the first k. */
__device__ void merge(uint64_t *list, int k, int waiting)
{
    int n = 2;

    while (n < k + waiting)
        n *= 2;
    for (int i = k + waiting + (int)threadIdx.x; i < n; i += blockDim.x)
        list[i] = 0;
    __syncthreads();
    sort_list(list, n);
}

/* list [k] of a row, for all threads of the block. */
__device__ void fill_list(const float *row, int64_t vocab, int k, uint64_t *list, int *count)
{
    int tile = (int)blockDim.x * N, waiting = 0;

    for (int i = threadIdx.x; i < k; i += blockDim.x)
        list[i] = 0;
    if (threadIdx.x == 0)
        *count = 0;
    __syncthreads();
    for (int64_t at = 0; at < vocab; at += tile) {
        uint64_t least = list[k - 1];
        int64_t own = at + (int64_t)threadIdx.x * N;
        float x[N];

        load_logits(x, row, own, vocab);
        for (int i = 0; i < N; i++)
            if (own + i < vocab && place_of(x[i], own + i) > least)
                list[k + atomicAdd(count, 1)] = place_of(x[i], own + i);
        __syncthreads();
        waiting = *count;
        __syncthreads();
        if (k + waiting + tile <= ROOM && at + tile < vocab)
            continue;
        merge(list, k, waiting);
        if (threadIdx.x == 0)
            *count = 0;
        __syncthreads();
    }
}

__global__ void __launch_bounds__(THREADS) top_kernel(sh_cuda_scores s)
{
    SH_SHARED(uint64_t, list, ROOM);
    SH_SHARED(int, count, 1);

    for (int64_t r = blockIdx.x; r < s.rows; r += gridDim.x) {
        const float *row = s.logits + r * s.ld;

        fill_list(row, s.vocab, s.words, list, count);
        for (int j = threadIdx.x; j < s.words; j += blockDim.x) {
            int32_t word = (int32_t) ~(uint32_t)list[j];

            s.best[r * s.words + j] = word;
            s.best_logprob[r * s.words + j] = row[word];
        }
        __syncthreads(); /* before the next row's list */
    }
}
} // namespace

extern "C" sh_rc sh_cuda_top_words(const struct sh_cuda_scores *s, void *queue)
{
    SH_REQUIRE(s->words <= s->vocab && s->words <= SH_KD_WORDS);
    return s->words == 0 ? SH_OK : SH_LAUNCH(top_kernel, dim3(sh_blocks(s->rows)), block_of(s->vocab), 0, queue, *s);
}
