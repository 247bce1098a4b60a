/* The experts' products on tensor cores, bf16: y = x w[e]', dx = dy w[e], dw[e] (+)= dy' x, all experts in one launch.
 * A block of four warps computes tiles of 128 x 128, each warp 64 x 64 of it, with mma.m16n8k16. Both sides stream
 * through two buffers in shared memory, 64 numbers deep, by cp.async, so that one is filled while the other is used. A
 * side is stored with its depth along rows, or turned: then the depth goes from row to row, and ldmatrix transposes.
 *
 * Which expert a tile belongs to, the block finds from the offsets in GPU memory (expert.cuh). Bands of 16 tiles of
 * rows are walked column by column, so that the blocks that run at a time share both sides in the L2 cache. Sums are
 * in f32, in the order of k from a group's first row on: a row's bits depend on the row and the weights alone, dw's on
 * the groups of the expert, which are added one after the other.
 *
 * Floor: 2 M I O operations each. mma.sync reaches some 60 % of what wgmma does on Hopper; a tile that its expert does
 * not fill is computed whole, half a tile a group on the average. 64 KB of shared memory and at most 255 registers: two
 * blocks a multiprocessor. By ptxas 13.0 dw spills 44 bytes on sm_100 and 84 on sm_120, nothing else does. Not measured
 * on a GPU. */
#include "kernels/cuda/moe/expert.cuh"

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/cuda.h"

namespace
{
constexpr int TILE = 128, DEPTH = 64, HALF = TILE / 2, WARPS = 4, THREADS = 32 * WARPS, BAND = 16;
constexpr int TILE_ELEMS = TILE * DEPTH, M16 = HALF / 16, N8 = HALF / 8;
constexpr size_t SHARED_BYTES = 4 * TILE_ELEMS * sizeof(sh_bf16);
static_assert(sh_tile::PITCH<DEPTH> == DEPTH && sh_tile::PITCH<TILE> == TILE, "no gaps between the rows of a tile");

/* One side of a product in global memory: number (i, k) is at i * stride + k, turned at k * stride + i. */
struct side {
    const sh_bf16 *first;
    int64_t stride, count, depth;
};

/* Start copying numbers ([from, from + TILE), [k0, k0 + DEPTH)), zeros past the ends. */
template <bool TURNED> __device__ __forceinline__ void fetch(sh_bf16 *tile, const side &s, int64_t from, int64_t k0)
{
    constexpr int WIDE = TURNED ? TILE : DEPTH, ROWS = TILE_ELEMS / WIDE, PIECES = WIDE / 8, STEP = THREADS / PIECES;
    int64_t rows = TURNED ? s.depth - k0 : s.count - from, columns = TURNED ? s.count - from : s.depth - k0;
    int row = threadIdx.x / PIECES, column = threadIdx.x % PIECES * 8;
    const sh_bf16 *p = s.first + ((TURNED ? k0 : from) + row) * s.stride + (TURNED ? from : k0) + column;
    sh_bf16 *to = sh_tile::at<WIDE>(tile, row, column); /* STEP is a multiple of 8: the same place in each row */

    SH_UNROLL
    for (int i = 0; i < ROWS / STEP; i++, p += STEP * s.stride) {
        bool there = row + i * STEP < rows && column < columns;
        sh_mma::copy<16>(to + i * STEP * WIDE, there ? p : s.first, there);
    }
}

/* a = rows [m, m + 16) of the left side, depth [k, k + 16). */
template <bool TURNED> __device__ __forceinline__ void take_left(uint32_t a[4], sh_bf16 *tile, int m, int k)
{
    if (TURNED) {
        uint32_t t[4];
        sh_mma::load_transposed(t, sh_tile::corner<TILE>(tile, k, m));
        a[0] = t[0], a[1] = t[2], a[2] = t[1], a[3] = t[3];
    } else {
        sh_mma::load(a, sh_tile::corner<DEPTH>(tile, m, k));
    }
}

/* b = columns [n, n + 16) of the right side: the pairs of registers of the first 8 columns, then of the other 8. */
template <bool TURNED> __device__ __forceinline__ void take_right(uint32_t b[4], sh_bf16 *tile, int n, int k)
{
    if (TURNED) {
        sh_mma::load_transposed(b, sh_tile::corner<TILE>(tile, k, n));
    } else {
        uint32_t t[4];
        sh_mma::load(t, sh_tile::corner<DEPTH>(tile, n, k));
        b[0] = t[0], b[1] = t[2], b[2] = t[1], b[3] = t[3];
    }
}

/* sum += the warp's quarter of one pair of tiles */
template <bool A_TURNED, bool B_TURNED>
__device__ __forceinline__ void add_tiles(float sum[M16][N8][4], sh_bf16 *left, sh_bf16 *right)
{
    int warp = threadIdx.x / 32, m0 = warp / 2 * HALF, n0 = warp % 2 * HALF;

    SH_UNROLL
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t a[M16][4];
        SH_UNROLL
        for (int m = 0; m < M16; m++)
            take_left<A_TURNED>(a[m], left, m0 + 16 * m, k);
        SH_UNROLL
        for (int n = 0; n < N8; n += 2) {
            uint32_t b[4];
            take_right<B_TURNED>(b, right, n0 + 8 * n, k);
            SH_UNROLL
            for (int m = 0; m < M16; m++) {
                sh_mma::multiply(sum[m][n], a[m], b[0], b[1]);
                sh_mma::multiply(sum[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* sum [TILE,TILE] = the product at (m0, n0). A step's copies are waited for, then all threads have them and none is at
 * the step before any more, whose buffer is filled next. */
template <bool A_TURNED, bool B_TURNED>
__device__ __forceinline__ void make_tile(float sum[M16][N8][4], sh_bf16 *shared, const side &a, int64_t m0,
                                          const side &b, int64_t n0)
{
    int buffer = 0;

    SH_UNROLL
    for (int i = 0; i < M16 * N8 * 4; i++)
        sum[i / (N8 * 4)][i / 4 % N8][i % 4] = 0;
    fetch<A_TURNED>(shared, a, m0, 0);
    fetch<B_TURNED>(shared + 2 * TILE_ELEMS, b, n0, 0);
    for (int64_t k0 = 0; k0 < a.depth; k0 += DEPTH, buffer ^= 1) {
        sh_mma::wait_copies();
        __syncthreads();
        if (k0 + DEPTH < a.depth) {
            fetch<A_TURNED>(shared + (buffer ^ 1) * TILE_ELEMS, a, m0, k0 + DEPTH);
            fetch<B_TURNED>(shared + (2 + (buffer ^ 1)) * TILE_ELEMS, b, n0, k0 + DEPTH);
        }
        add_tiles<A_TURNED, B_TURNED>(sum, shared + buffer * TILE_ELEMS, shared + (2 + buffer) * TILE_ELEMS);
    }
    sh_mma::wait_copies(); /* of a product without depth */
    __syncthreads();       /* the next tile may use all buffers */
}

/* Two neighbours. */
__device__ __forceinline__ void put_two(sh_bf16 *to, float x, float y, bool)
{
    *reinterpret_cast<uint32_t *>(to) = sh_mma::pack(x, y);
}

__device__ __forceinline__ void put_two(float *to, float x, float y, bool add)
{
    to[0] = add ? to[0] + x : x;
    to[1] = add ? to[1] + y : y;
}

/* c [rows,columns] (+)= sum; both start at the tile. The lane's place in a fragment is that of attention_mma.cuh. */
template <class O>
__device__ __forceinline__ void put(O *c, int64_t ldc, int64_t rows, int64_t columns, const float sum[M16][N8][4],
                                    bool add)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = warp / 2 * HALF + lane / 4, column = warp % 2 * HALF + lane % 4 * 2;

    SH_UNROLL
    for (int m = 0; m < 2 * M16; m++) {
        if (row + 8 * m >= rows)
            break;
        SH_UNROLL
        for (int n = 0; n < N8; n++)
            if (column + 8 * n < columns)
                put_two(c + (row + 8 * m) * ldc + column + 8 * n, sum[m / 2][n][m % 2 * 2],
                        sum[m / 2][n][m % 2 * 2 + 1], add);
    }
}

/* y or dx. */
struct of_rows {
    sh_experts x;
    sh_bf16 *to;
    const sh_bf16 *from, *w;
    int64_t wide_to, wide_from, tiles, across; /* tiles: of rows, at most */
};

/* Tile i: of which rows, and of which columns. */
__device__ __forceinline__ bool find_tile(const of_rows &r, int64_t i, sh_expert_tile &at, int64_t &column)
{
    int64_t band = i / (BAND * r.across), left = r.tiles - band * BAND, high = left < BAND ? left : BAND;

    i -= band * BAND * r.across;
    column = i / high * TILE;
    return sh_expert_find<TILE>(r.x, band * BAND + i % high, at);
}

/* FORWARD: w[e] [wide_to,wide_from], else turned. */
template <bool FORWARD> __global__ void __launch_bounds__(THREADS, 2) expert_rows(of_rows r)
{
    SH_DYNAMIC_SHARED(sh_bf16, shared);

    for (int64_t i = blockIdx.x; i < r.tiles * r.across; i += gridDim.x) {
        sh_expert_tile at;
        int64_t column;
        float sum[M16][N8][4];
        if (!find_tile(r, i, at, column))
            continue;
        side a = {r.from + at.row * r.wide_from, r.wide_from, at.end - at.row, r.wide_from};
        side b = {r.w + at.expert * r.x.O * r.x.I, r.x.I, r.wide_to, r.wide_from};
        make_tile<false, !FORWARD>(sum, shared, a, 0, b, column);
        put(r.to + at.row * r.wide_to + column, r.wide_to, a.count, b.count - column, sum, false);
    }
}

struct of_weights {
    sh_experts x;
    float *dw;
    const sh_bf16 *dy, *in;
    int64_t down, across; /* tiles of one expert */
    bool add;
};

/* Group by group, so that a group's sums do not depend on the others. An expert without rows: dw is 0, or what it
 * was. */
__global__ void __launch_bounds__(THREADS, 2) expert_weights(of_weights g)
{
    SH_DYNAMIC_SHARED(sh_bf16, shared);

    for (int64_t i = blockIdx.x; i < g.x.E * g.down * g.across; i += gridDim.x) {
        int64_t e = i / (g.down * g.across), m = i / g.across % g.down * TILE, n = i % g.across * TILE;
        float *dw = g.dw + (e * g.x.O + m) * g.x.I + n, sum[M16][N8][4];
        bool add = g.add;
        for (int64_t group = e; group < g.x.groups; group += g.x.E) {
            int64_t row = g.x.first[group], rows = g.x.first[group + 1] - row;
            side a = {g.dy + row * g.x.O, g.x.O, g.x.O, rows}, b = {g.in + row * g.x.I, g.x.I, g.x.I, rows};
            if (rows == 0 && (add || group + g.x.E < g.x.groups))
                continue;
            make_tile<true, true>(sum, shared, a, m, b, n);
            put(dw, g.x.I, g.x.O - m, g.x.I - n, sum, add);
            add = true;
        }
    }
}

template <bool FORWARD> sh_rc run_rows(const struct sh_op_call *call)
{
    of_rows r = {sh_experts_of(call),
                 sh_data<sh_bf16>(&call->out[0]),
                 sh_data<sh_bf16>(&call->in[0]),
                 sh_data<sh_bf16>(&call->in[2]),
                 call->out[0].dim[1],
                 call->in[0].dim[1],
                 0,
                 0};
    r.tiles = sh_expert_tiles<TILE>(r.x);
    r.across = sh_ceil_div(r.wide_to, TILE);
    if (r.tiles == 0)
        return SH_OK;
    return SH_LAUNCH(expert_rows<FORWARD>, dim3(sh_blocks(r.tiles * r.across)), dim3(THREADS), SHARED_BYTES,
                     call->queue, r);
}

sh_rc run_weights(const struct sh_op_call *call)
{
    of_weights g = {sh_experts_of(call),
                    sh_data<float>(&call->out[0]),
                    sh_data<sh_bf16>(&call->in[0]),
                    sh_data<sh_bf16>(&call->in[1]),
                    0,
                    0,
                    sh_op_adds(call, 0)};
    g.down = sh_ceil_div(g.x.O, TILE);
    g.across = sh_ceil_div(g.x.I, TILE);
    return SH_LAUNCH(expert_weights, dim3(sh_blocks(g.x.E * g.down * g.across)), dim3(THREADS), SHARED_BYTES,
                     call->queue, g);
}
} // namespace

/* dw is written number by number, so its address does not matter. */
extern "C" bool sh_cuda_expert_fits(const struct sh_op_call *call)
{
    bool bwd_w = call->kind == SH_OP_EXPERT_LINEAR_BWD_W;
    sh_experts x = sh_experts_of(call);
    const struct sh_operand *operands[] = {&call->in[0], &call->in[bwd_w ? 1 : 2], &call->out[0]};

    for (int i = 0; i < (bwd_w ? 2 : 3); i++)
        if (operands[i]->dtype != SH_BF16 || !sh_aligned<8>(sh_data<sh_bf16>(operands[i]), x.I) || x.O % 8)
            return false;
    return true;
}

extern "C" sh_rc sh_cuda_expert_own(const struct sh_op_call *call)
{
    if (!sh_cuda_expert_fits(call))
        return sh_cuda_expert_any(call);
    if (call->kind == SH_OP_EXPERT_LINEAR_BWD_W)
        return run_weights(call);
    return call->kind == SH_OP_EXPERT_LINEAR ? run_rows<true>(call) : run_rows<false>(call);
}
