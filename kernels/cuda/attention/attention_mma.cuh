/* The tensor-core instructions and asynchronous copies that attention.cu is made of, each as one small function of a
 * warp. All lanes of the warp call together.
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

namespace sh_mma
{
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
} // namespace sh_mma
#endif
