/* A tile of a matrix product on ordinary cores, for product.cu and moe/expert_any.cu: a block computes 64 x 64, each
 * thread 4 x 4 of it, from tiles of both sides in shared memory. Sums are in f32, in the order of k: the same bits on
 * any GPU in every run. */
#ifndef SH_KERNELS_CUDA_PRODUCT_TILE_CUH
#define SH_KERNELS_CUDA_PRODUCT_TILE_CUH

#include "kernels/cuda/launch.cuh"

namespace sh_product
{
constexpr int TILE = 64, DEPTH = 16, LANES = 16, EACH = TILE / LANES, THREADS = LANES * LANES;
constexpr int PITCH = TILE + 1; /* so that threads that write a column use different banks */

/* One side of a product: element (i, k) is at i * step + k * k_step, where i is a row of a or a column of b. */
template <class T> struct side {
    const T *first;
    int64_t count, step, k_step;
};

/* T: type of a and b; O: of the output and the addend. */
template <class T, class O> struct task {
    side<T> a, b;
    int64_t k, across, tiles; /* across: tiles in a row of c */
    O *c;
    const O *addend; /* (opt) */
    int64_t ldc;
};

/* tile [DEPTH,TILE] = elements (from + i, k0 + j), zeros past the ends. Neighbouring threads read neighbours. */
template <class T> __device__ __forceinline__ void fetch(float *tile, side<T> s, int64_t from, int64_t k0, int64_t k)
{
    for (int t = threadIdx.x; t < TILE * DEPTH; t += THREADS) {
        int i = s.step == 1 ? t % TILE : t / DEPTH, j = s.step == 1 ? t / TILE : t % DEPTH;
        bool there = from + i < s.count && k0 + j < k;
        tile[j * PITCH + i] = there ? sh_widen(s.first[(from + i) * s.step + (k0 + j) * s.k_step]) : 0;
    }
}

/* An addend may be c itself: the thread that reads an element is the one that writes it. */
template <class T, class O>
__device__ __forceinline__ void put(const task<T, O> &p, const float sum[EACH][EACH], int64_t row, int64_t column)
{
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int64_t m = row + LANES * i, n = column + LANES * j;
            if (m >= p.a.count || n >= p.b.count)
                continue;
            float addend = p.addend ? sh_widen(p.addend[m * p.ldc + n]) : 0;
            p.c[m * p.ldc + n] = sh_narrow<O>(sum[i][j] + addend);
        }
}

/* The tile at (m0, n0); a and b: DEPTH * PITCH floats of shared memory each. */
template <class T, class O>
__device__ __forceinline__ void make_tile(const task<T, O> &p, int64_t m0, int64_t n0, float *a, float *b)
{
    int row = threadIdx.x / LANES, column = threadIdx.x % LANES;
    float sum[EACH][EACH] = {};

    for (int64_t k0 = 0; k0 < p.k; k0 += DEPTH) {
        fetch(a, p.a, m0, k0, p.k);
        fetch(b, p.b, n0, k0, p.k);
        __syncthreads();
        for (int k = 0; k < DEPTH; k++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sum[i][j] += a[k * PITCH + row + LANES * i] * b[k * PITCH + column + LANES * j];
        __syncthreads();
    }
    put(p, sum, m0 + row, n0 + column);
}
} // namespace sh_product
#endif
