/* kernels/cuda/attention/attention_mma.cuh in C++ for the CPU, lane by lane with the same fragment layout, so that tests without a
 * GPU prove the index arithmetic. */
#ifndef SH_KERNELS_CUDA_ATTENTION_MMA_CUH
#define SH_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/launch.cuh"

#include <cstdlib>

namespace sh_mma
{
/* What the lanes of each warp show one another. Between two barriers of the warp a lane writes only its own place. */
struct board {
    uint32_t word[32][6];
    const void *row[32];
};
static board boards[2][32];

static inline board &my_board()
{
    return boards[sh_emulated::parity()][threadIdx.x / 32];
}

static inline float half_of(uint32_t word, int half)
{
    return __uint_as_float(half ? word & 0xffff0000u : word << 16);
}

static inline float a_at(const board &w, int row, int k)
{
    return half_of(w.word[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
}

static inline float b_at(const board &w, int k, int column)
{
    return half_of(w.word[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
}

static inline void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    board &w = my_board();
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++)
        w.word[lane][i] = a[i];
    w.word[lane][4] = b0;
    w.word[lane][5] = b1;
    __syncwarp();
    double sum[4] = {0};
    for (int k = 0; k < 16; k++)
        for (int half = 0; half < 2; half++) {
            double x = a_at(w, lane / 4 + half * 8, k);
            for (int i = 0; i < 2; i++)
                sum[half * 2 + i] += x * (double)b_at(w, k, lane % 4 * 2 + i);
        }
    for (int i = 0; i < 4; i++)
        c[i] = (float)(c[i] + sum[i]);
    __syncwarp();
}

static inline void load_any(uint32_t r[4], const void *row, bool transposed)
{
    board &w = my_board();
    int lane = threadIdx.x % 32;
    if ((uintptr_t)row % 16)
        abort();
    w.row[lane] = row;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        uint16_t half[2];
        for (int j = 0; j < 2; j++) {
            int y = transposed ? lane % 4 * 2 + j : lane / 4, x = transposed ? lane / 4 : lane % 4 * 2 + j;
            half[j] = static_cast<const uint16_t *>(w.row[i * 8 + y])[x];
        }
        r[i] = half[0] | (uint32_t)half[1] << 16;
    }
    __syncwarp();
}

static inline void load(uint32_t r[4], const void *row)
{
    load_any(r, row, false);
}

static inline void load_transposed(uint32_t r[4], const void *row)
{
    load_any(r, row, true);
}

/* The copy is made when it is waited for, not before, so a read that comes too early finds the old contents. */
template <int BYTES> static inline void copy(void *shared, const void *global, bool there)
{
    sh_emulated::delayed d = {static_cast<char *>(shared), {0}, BYTES};
    if ((uintptr_t)shared % BYTES || (uintptr_t)global % BYTES)
        abort();
    if (there)
        memcpy(d.data, global, BYTES);
    sh_emulated::delay(d);
}

static inline void wait_copies()
{
    sh_emulated::delayed d;

    while (sh_emulated::next_delayed(&d))
        memcpy(d.to, d.data, (size_t)d.bytes);
}

static inline float exp2_of(float x)
{
    return exp2f(x);
}

static inline uint32_t pack(float low, float high)
{
    return (uint32_t)sh_f32_to_bf16(low) | (uint32_t)sh_f32_to_bf16(high) << 16;
}
} // namespace sh_mma
#endif
