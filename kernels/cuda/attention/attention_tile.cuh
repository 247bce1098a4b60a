/* Tiles of rows in shared memory, and the two products of a warp that attention.cu consists of. A tile is rows of one
 * head, D numbers of bf16 each, as in qkv or dout. Its rows are 64 or 128 numbers apart. In row r the piece of 8
 * numbers that belongs at place p is stored at place p ^ (r % 8), so that the 8 rows that a warp reads at once are in
 * different banks. */
#ifndef SH_KERNELS_CUDA_ATTENTION_TILE_CUH
#define SH_KERNELS_CUDA_ATTENTION_TILE_CUH

#include "kernels/cuda/attention/attention_mma.cuh"

namespace sh_tile
{
enum { WARPS = 4, THREADS = 32 * WARPS };

template <int D> constexpr int PITCH = D <= 64 ? 64 : 128;

/* Column: a multiple of 8. */
template <int D> static __device__ __forceinline__ sh_bf16 *at(sh_bf16 *tile, int row, int column)
{
    return tile + row * PITCH<D> + ((column / 8) ^ (row % 8)) * 8;
}

/* The rows of one head in global memory. */
struct rows {
    const sh_bf16 *first; /* of row 0 */
    int64_t stride;       /* elements */
    int count;            /* rows past the last are zeros */
};

/* Start copying rows [from, from + ROWS). */
template <int D, int ROWS> static __device__ __forceinline__ void fetch(sh_bf16 *tile, rows src, int from)
{
    constexpr int PIECES = D / 8;
    SH_NO_UNROLL /* the addresses of all copies together would take half of the registers */
        for (int i = threadIdx.x; i < ROWS * PIECES; i += THREADS)
    {
        int row = i / PIECES, piece = i % PIECES;
        bool there = from + row < src.count;
        const sh_bf16 *p = src.first + (there ? (from + row) * src.stride + piece * 8 : 0);
        sh_mma::copy<16>(at<D>(tile, row, piece * 8), p, there);
    }
}

/* The address that a lane passes to load the square [16,16] at (row, column): its four [8,8] in the order of
 * a[0..3]. */
template <int D> static __device__ __forceinline__ const sh_bf16 *corner(sh_bf16 *tile, int row, int column)
{
    int lane = threadIdx.x % 32;
    return at<D>(tile, row + lane % 16, column + lane / 16 * 8);
}

/* a = rows [row, row + 16 M) of the tile, as the left side of products. */
template <int D, int M> static __device__ __forceinline__ void take(uint32_t a[M][D / 16][4], sh_bf16 *tile, int row)
{
    SH_UNROLL
    for (int m = 0; m < M; m++)
        SH_UNROLL
    for (int k = 0; k < D / 16; k++)
        sh_mma::load(a[m][k], corner<D>(tile, row + 16 * m, 16 * k));
}

/* s [16M,16] = a [16M,D] (rows [row, row + 16) of the tile)' */
template <int D, int M>
static __device__ __forceinline__ void dot(float s[M][2][4], const uint32_t a[M][D / 16][4], sh_bf16 *tile, int row)
{
    SH_UNROLL
    for (int m = 0; m < M; m++)
        SH_UNROLL
    for (int i = 0; i < 8; i++)
        s[m][i / 4][i % 4] = 0;
    SH_UNROLL
    for (int k = 0; k < D / 16; k++) {
        uint32_t b[4];
        sh_mma::load(b, corner<D>(tile, row, 16 * k));
        SH_UNROLL
        for (int m = 0; m < M; m++) {
            sh_mma::multiply(s[m][0], a[m][k], b[0], b[2]);
            sh_mma::multiply(s[m][1], a[m][k], b[1], b[3]);
        }
    }
}

/* sum [16M,D] += w [16M,16] (rows [row, row + 16) of the tile); w is rounded to bf16. */
template <int D, int M>
static __device__ __forceinline__ void add(float sum[M][D / 8][4], const float w[M][2][4], sh_bf16 *tile, int row)
{
    uint32_t a[M][4];
    SH_UNROLL
    for (int m = 0; m < M; m++)
        SH_UNROLL
    for (int i = 0; i < 4; i++)
        a[m][i] = sh_mma::pack(w[m][i / 2][i % 2 * 2], w[m][i / 2][i % 2 * 2 + 1]);
    SH_UNROLL
    for (int n = 0; n < D / 16; n++) {
        uint32_t b[4];
        sh_mma::load_transposed(b, corner<D>(tile, row, 16 * n));
        SH_UNROLL
        for (int m = 0; m < M; m++) {
            sh_mma::multiply(sum[m][2 * n], a[m], b[0], b[1]);
            sh_mma::multiply(sum[m][2 * n + 1], a[m], b[2], b[3]);
        }
    }
}

template <int D, int M> static __device__ __forceinline__ void clear(float sum[M][D / 8][4])
{
    SH_UNROLL
    for (int m = 0; m < M; m++)
        SH_UNROLL
    for (int i = 0; i < D / 2; i++)
        sum[m][i / 4][i % 4] = 0;
}

/* Write row `half` (0: g, 1: g + 8) of a lane's sums, times `factor`, to a row of D numbers in global memory. */
template <int D>
static __device__ __forceinline__ void put(sh_bf16 *to, const float sum[D / 8][4], int half, float factor)
{
    SH_UNROLL
    for (int n = 0; n < D / 8; n++) {
        uint32_t two = sh_mma::pack(sum[n][2 * half] * factor, sum[n][2 * half + 1] * factor);
        *reinterpret_cast<uint32_t *>(to + 8 * n + threadIdx.x % 4 * 2) = two;
    }
}
} // namespace sh_tile
#endif
