/* The tensor-core instructions and asynchronous copies that attention.cu is made of, each as one small function of a
 * warp. The same functions exist in C++ for the CPU, lane by lane with the same fragment layout, so that tests
 * without a GPU prove the index arithmetic. All lanes of the warp call together.
 *
 * A product is c [16,8] += a [16,16] b [16,8], c in f32, a and b in bf16, two numbers per register. With g = lane / 4
 * and t = lane % 4, a lane holds (PTX manual, "Matrix Fragments for mma.m16n8k16"):
 *     a[0] row g,   columns 2t, 2t+1       a[2] the same row, columns 2t+8, 2t+9
 *     a[1] row g+8, columns 2t, 2t+1       a[3] the same row, columns 2t+8, 2t+9
 *     b[0] rows 2t, 2t+1, column g         b[1] rows 2t+8, 2t+9, column g
 *     c[0], c[1] row g, columns 2t, 2t+1   c[2], c[3] row g+8 */
#ifndef SH_KERNELS_CUDA_ATTENTION_MMA_CUH
#define SH_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/launch.cuh"

#ifdef SH_CUDA_EMULATED
#include <cstdlib>
#endif

namespace sh_mma
{
#ifndef SH_CUDA_EMULATED

static __device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Load four matrices [8,8] of bf16: lane i passes the address of row i % 8 of matrix i / 8, 16 bytes in shared
 * memory, and receives from each matrix the two numbers at row lane / 4, columns 2 (lane % 4) and the next. */
static __device__ __forceinline__ void load(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* The same, with each matrix transposed. */
static __device__ __forceinline__ void load_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Copy BYTES (4 or 16) from global to shared memory in the background, or write zeros. */
template <int BYTES> static __device__ __forceinline__ void copy(void *shared, const void *global, bool there)
{
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(shared_address(shared)), "l"(global), "r"(there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :
                     : "r"(shared_address(shared)), "l"(global), "r"(there ? 4 : 0)
                     : "memory");
}

/* Wait for all copies of this thread. Copies of other threads are complete after __syncthreads(). */
static __device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_all;" : : : "memory");
}

/* 2^x; 0 for -inf */
static __device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two numbers as bf16, the first in the low half. */
static __device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

#else

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
    for (int i = 0; i < 4; i++) {
        double sum = 0;
        for (int k = 0; k < 16; k++)
            sum += (double)a_at(w, lane / 4 + i / 2 * 8, k) * (double)b_at(w, k, lane % 4 * 2 + i % 2);
        c[i] = (float)(c[i] + sum);
    }
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

#endif
} // namespace sh_mma
#endif
