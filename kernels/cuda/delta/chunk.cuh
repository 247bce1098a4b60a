/* What the backwards of this folder share: a block has a head of a sequence and goes through its chunks, with matrices in
 * scratch and products in shared tiles, in f32 without tensor cores. */
#ifndef SH_KERNELS_CUDA_DELTA_CHUNK_CUH
#define SH_KERNELS_CUDA_DELTA_CHUNK_CUH

#include "kernels/cuda/delta/rows.cuh"

constexpr int SH_CHUNK_THREADS = 256;
constexpr int SH_CHUNK_TILE = 64, SH_CHUNK_STEP = 16; /* of a product: 64 by 64 elements, 16 of a sum at a time */

/* Element (i, j) is at[i row + j col]. */
struct sh_cuda_chunk_matrix {
    const float *at;
    int64_t row, col;
};

__device__ __forceinline__ sh_cuda_chunk_matrix sh_plain(const float *a, int64_t row)
{
    return {a, row, 1};
}

__device__ __forceinline__ sh_cuda_chunk_matrix sh_turned(const float *a, int64_t row)
{
    return {a, 1, row};
}

/* c [m,n] = (add: +) a b, by the whole block. Waits for what its threads have written before; whoever reads c has to
 * wait. */
static __device__ void sh_cuda_chunk_product(float *c, int64_t ldc, bool add, sh_cuda_chunk_matrix a,
                                             sh_cuda_chunk_matrix b, int m, int n, int k)
{
    SH_SHARED(float, rows, SH_CHUNK_STEP *SH_CHUNK_TILE);
    SH_SHARED(float, cols, SH_CHUNK_STEP *SH_CHUNK_TILE);
    int x = threadIdx.x % 16, y = threadIdx.x / 16;

    for (int i0 = 0; i0 < m; i0 += SH_CHUNK_TILE)
        for (int j0 = 0; j0 < n; j0 += SH_CHUNK_TILE) {
            float sum[4][4] = {{0}};

            for (int k0 = 0; k0 < k; k0 += SH_CHUNK_STEP) {
                __syncthreads();
                for (int e = threadIdx.x; e < SH_CHUNK_STEP * SH_CHUNK_TILE; e += SH_CHUNK_THREADS) {
                    int ak = a.col == 1 ? e % SH_CHUNK_STEP : e / SH_CHUNK_TILE,
                        i = a.col == 1 ? e / SH_CHUNK_STEP : e % SH_CHUNK_TILE;
                    int bk = b.col == 1 ? e / SH_CHUNK_TILE : e % SH_CHUNK_STEP,
                        j = b.col == 1 ? e % SH_CHUNK_TILE : e / SH_CHUNK_STEP;

                    rows[ak * SH_CHUNK_TILE + i] =
                        i0 + i < m && k0 + ak < k ? a.at[(i0 + i) * a.row + (k0 + ak) * a.col] : 0;
                    cols[bk * SH_CHUNK_TILE + j] =
                        j0 + j < n && k0 + bk < k ? b.at[(k0 + bk) * b.row + (j0 + j) * b.col] : 0;
                }
                __syncthreads();
                for (int at = 0; at < SH_CHUNK_STEP; at++) {
                    float left[4], right[4];

                    SH_UNROLL
                    for (int r = 0; r < 4; r++) {
                        left[r] = rows[at * SH_CHUNK_TILE + y + 16 * r];
                        right[r] = cols[at * SH_CHUNK_TILE + x + 16 * r];
                    }
                    SH_UNROLL
                    for (int r = 0; r < 16; r++)
                        sum[r / 4][r % 4] += left[r / 4] * right[r % 4];
                }
            }
            SH_UNROLL
            for (int r = 0; r < 16; r++) {
                int i = i0 + y + 16 * (r / 4), j = j0 + x + 16 * (r % 4);

                if (i < m && j < n)
                    c[i * ldc + j] = add ? c[i * ldc + j] + sum[r / 4][r % 4] : sum[r / 4][r % 4];
            }
        }
}

/* The sum of a b over n elements, by a warp. */
__device__ __forceinline__ double sh_cuda_chunk_dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;

    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        sum += (double)(a[i] * b[i]);
    return sh_warp_reduce(sum, sh_add());
}

/* Rows [begin, begin + n) of head h of sequence b. */
struct sh_cuda_chunk {
    int64_t b, h, begin;
    int n;

    /* f(i) for the rows, a warp to each. */
    template <class F> __device__ __forceinline__ void by_warps(F f) const
    {
        for (int i = threadIdx.x / 32; i < n; i += SH_CHUNK_THREADS / 32)
            f(i);
    }

    /* f(i) for elements [0, count), a thread to each. */
    template <class F> __device__ __forceinline__ void by_threads(int count, F f) const
    {
        for (int i = threadIdx.x; i < count; i += SH_CHUNK_THREADS)
            f(i);
    }
};

/* Of each head the sum over sequences. */
template <int K> struct sh_head_sums {
    float *to[K];
    bool adds[K];
    const double *sums; /* [B,H,K] */
    int64_t B, H;

    template <int N> __device__ __forceinline__ void at(int64_t h) const
    {
        SH_UNROLL
        for (int k = 0; k < K; k++) {
            if (!to[k])
                continue;
            double sum = adds[k] ? (double)to[k][h] : 0.0;
            for (int64_t b = 0; b < B; b++)
                sum += sums[(b * H + h) * K + k];
            to[k][h] = (float)sum;
        }
    }
};

#endif
