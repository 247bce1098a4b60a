/* Attention on tensor cores, bf16, causal, grouped queries, within documents: FlashAttention-2 (Dao,
 * arXiv:2307.08691) with mma.m16n8k16 and cp.async, for any GPU since sm_80.
 *
 * Forward: a block of four warps owns 64 or 128 queries of one head. Tiles of 64 keys and values stream through two
 * buffers in shared memory, so that one is filled while the other is used. The scores of a tile are kept in
 * registers, with a running maximum and sum.
 * Backward: the row sums of dout * o, then one kernel whose blocks own queries and produce dq, and one whose blocks
 * own keys and produce dk and dv, summed over the queries and over the heads that share a key in the order of their
 * positions. Each recomputes the scores: 7 products of tiles where one kernel with atomics would do 5, but every sum
 * has one order.
 *
 * Floor, per pair (query, key seen) of a head: 4 D operations forward, 10 D backward (14 D done here); bytes are
 * negligible. Tiles on the diagonal are computed whole. Shared memory of a block: 32 KB at D = 64, 64 KB at D = 128,
 * for dk and dv 1.5 KB more. Registers per thread, by ptxas 13.0 for sm_80, 90, 100:
 *     D = 64    forward 246, 250, 242    dq 230, 234, 216    dk, dv 161, 162, 186
 *     D = 128   forward 177, 175, 173    dq 238, 242, 204    dk, dv 254, 255, 255
 * At these sizes only dk and dv at D = 128 spill: 16 bytes on sm_90, 20 on sm_100. On an H100 at T = 8192, D = 128: 148
 * TFLOP/s forward, 113 backward. */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_tile.cuh"

namespace
{
using sh_tile::rows;
using sh_tile::THREADS;
using sh_tile::WARPS;

constexpr int TILE = 64; /* rows of a streamed tile */
constexpr float LOG2E = 1.4426950408889634f;

/* Tiles in shared memory have a pitch that keeps the lanes of a warp on different banks (attention_tile.cuh). */
template <int D> constexpr int TILE_ELEMS = TILE *sh_tile::PITCH<D>;

/* The lane's place in the fragments of sums: row lane / 4 (+ 8), columns 2 (lane % 4) (+ 1). */
__device__ __forceinline__ int lane_row(int m, int half)
{
    return m * 16 + half * 8 + threadIdx.x % 32 / 4;
}

__device__ __forceinline__ int lane_column(int n, int i)
{
    return n * 8 + threadIdx.x % 4 * 2 + i;
}

/* Head `head` of sequence b in qkv [B,T,(H+2K)D]: query heads first, then key heads, then value heads. */
__device__ __forceinline__ rows heads_of_qkv(const sh_attention &a, int64_t b, int head)
{
    int64_t stride = (a.heads + 2 * a.kv_heads) * (int64_t)a.dim;
    return {static_cast<const sh_bf16 *>(a.qkv) + b * a.seq * stride + head * (int64_t)a.dim, stride, (int)a.seq};
}

/* The same in a tensor [B,T,H D]. */
__device__ __forceinline__ rows heads_of_out(const sh_attention &a, const void *x, int64_t b, int head)
{
    int64_t stride = a.heads * (int64_t)a.dim;
    return {static_cast<const sh_bf16 *>(x) + b * a.seq * stride + head * (int64_t)a.dim, stride, (int)a.seq};
}

/* Positions are 32 bits wide, to save registers. */
__device__ __forceinline__ int first_key(const sh_attention &a, int64_t b, int t)
{
    int first = a.docs && t < a.seq ? a.docs[b * a.seq + t] : 0, near = a.window ? t - a.window + 1 : 0;
    return near > first ? near : first;
}

/* Whether first_key() may be something other than 0. */
__device__ __forceinline__ bool limited(const sh_attention &a)
{
    return a.docs || a.window;
}

/* The queries that a block owns, and the tiles of keys that it sees. */
struct queries {
    int64_t b;
    int head, kv_head;
    int from, first_tile, end; /* end: one past the last key seen */
};

/* Blocks are numbered so that those with the most keys start first. */
template <int OWN> __device__ __forceinline__ queries queries_of(const sh_attention &a)
{
    queries q;
    q.head = (int)(blockIdx.x % a.heads);
    q.kv_head = q.head / (a.heads / a.kv_heads);
    q.b = blockIdx.x / a.heads;
    q.from = (int)(gridDim.y - 1 - blockIdx.y) * OWN; /* the last queries see the most keys, so they go first */
    q.first_tile = first_key(a, q.b, q.from) / TILE * TILE;
    q.end = q.from + OWN < a.seq ? q.from + OWN : (int)a.seq;
    return q;
}

/* Copy tile [from, from + TILE) of x and y into one of the two buffers. */
template <int D> __device__ __forceinline__ void fetch_pair(sh_bf16 *shared, int buffer, rows x, rows y, int from)
{
    sh_tile::fetch<D, TILE>(shared + buffer * TILE_ELEMS<D>, x, from);
    sh_tile::fetch<D, TILE>(shared + (2 + buffer) * TILE_ELEMS<D>, y, from);
}

/* Read the rows that the block owns, by way of buffers that are not in use yet. */
template <int D, int M>
__device__ __forceinline__ void take_own(uint32_t a[M][D / 16][4], sh_bf16 *shared, rows src, int from)
{
    sh_tile::fetch<D, 16 * M * WARPS>(shared, src, from);
    sh_mma::wait_copies();
    __syncthreads();
    sh_tile::take<D, M>(a, shared, threadIdx.x / 32 * 16 * M);
    __syncthreads();
}

/* Base 2, since exp2 is an instruction; a single multiplication then does both scalings. */
/* The state of the rows: scores are kept unscaled, their scaling is part of the exponent, whose base is 2. */
template <int M> struct running {
    float top[M][2], sum[M][2];
};

/* Reduce over the four lanes that hold one row of a fragment. */
__device__ __forceinline__ float over_quad(float x, bool largest)
{
    SH_UNROLL
    for (int with = 1; with <= 2; with *= 2) {
        float other = __shfl_xor_sync(~0u, x, with);
        x = largest ? fmaxf(x, other) : x + other;
    }
    return x;
}

/* Turn scores [16M,TILE] into weights, and rescale what the rows have accumulated so far to their new maximum. */
template <int D, int M>
__device__ __forceinline__ void take_scores(running<M> &run, float s[TILE / 16][M][2][4], float o[M][D / 8][4],
                                            float scale2)
{
    SH_UNROLL
    for (int m = 0; m < M; m++)
        SH_UNROLL
    for (int half = 0; half < 2; half++) {
        float top = run.top[m][half];
        SH_UNROLL
        for (int i = 0; i < TILE / 4; i++)
            top = fmaxf(top, s[i / 4][m][i / 2 % 2][half * 2 + i % 2]);
        top = over_quad(top, true);
        /* A row that has seen no key yet has -Inf as its maximum; base 0 then avoids Inf - Inf. */
        float base = top == -INFINITY ? 0 : top * scale2;
        float shrink = sh_mma::exp2_of(run.top[m][half] * scale2 - base);
        float sum = 0;
        SH_UNROLL
        for (int i = 0; i < TILE / 4; i++) {
            float &x = s[i / 4][m][i / 2 % 2][half * 2 + i % 2];
            x = sh_mma::exp2_of(x * scale2 - base);
            sum += x;
        }
        run.top[m][half] = top;
        run.sum[m][half] = run.sum[m][half] * shrink + sum;
        SH_UNROLL
        for (int n = 0; n < D / 8; n++) {
            o[m][n][half * 2] *= shrink;
            o[m][n][half * 2 + 1] *= shrink;
        }
    }
}

/* Whether a query at t whose document starts at `first` sees key s. */
__device__ __forceinline__ bool seen(int s, int t, int first)
{
    return s <= t && s >= first;
}

/* Divide by the row's sum, round once, and keep lse for the backward. Rows past the sequence are not written. */
template <int D, int M>
__device__ __forceinline__ void put_queries(const sh_attention &a, const queries &q, int own, running<M> &run,
                                            float o[M][D / 8][4])
{
    SH_UNROLL
    for (int m = 0; m < M; m++)
        SH_UNROLL
    for (int half = 0; half < 2; half++) {
        float sum = over_quad(run.sum[m][half], false);
        int t = own + lane_row(m, half);
        if (t >= a.seq)
            continue;
        sh_bf16 *to = static_cast<sh_bf16 *>(a.o) + ((q.b * a.seq + t) * a.heads + q.head) * D;
        sh_tile::put<D>(to, o[m], half, 1 / sum);
        if (threadIdx.x % 4 == 0)
            a.lse[(q.b * a.heads + q.head) * a.seq + t] = run.top[m][half] * a.scale + logf(sum);
    }
}

/* One block: 16 M rows per warp, all tiles of keys from the first one that the block sees. */
template <int D, int M> __global__ void __launch_bounds__(THREADS) forward(sh_attention a)
{
    SH_DYNAMIC_SHARED(sh_bf16, shared); /* keys 0, 1, values 0, 1 */
    queries q = queries_of<16 * M * WARPS>(a);
    rows keys = heads_of_qkv(a, q.b, a.heads + q.kv_head),
         values = heads_of_qkv(a, q.b, a.heads + a.kv_heads + q.kv_head);
    int own = q.from + (int)(threadIdx.x / 32) * 16 * M;
    uint32_t query[M][D / 16][4];
    float o[M][D / 8][4], s[TILE / 16][M][2][4];
    int first[M][2];
    running<M> run;

    take_own<D, M>(query, shared, heads_of_qkv(a, q.b, q.head), q.from);
    sh_tile::clear<D, M>(o);
    SH_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        run.top[i / 2][i % 2] = -INFINITY;
        run.sum[i / 2][i % 2] = 0;
        first[i / 2][i % 2] = first_key(a, q.b, own + lane_row(i / 2, i % 2));
    }
    fetch_pair<D>(shared, 0, keys, values, q.first_tile);
    int buffer = 0;
    for (int k0 = q.first_tile; k0 < q.end; k0 += TILE, buffer ^= 1) {
        sh_mma::wait_copies();
        __syncthreads(); /* the tile is ready, and no warp still uses the other buffer */
        /* The next tile is copied while this one is multiplied. */
        if (k0 + TILE < q.end)
            fetch_pair<D>(shared, buffer ^ 1, keys, values, k0 + TILE);
        /* The whole tile is after this warp's last query. */
        if (k0 > own + 16 * M - 1)
            continue;
        SH_UNROLL
        for (int j = 0; j < TILE / 16; j++)
            sh_tile::dot<D, M>(s[j], query, shared + buffer * TILE_ELEMS<D>, 16 * j);
        /* Only tiles on the diagonal, or with documents or a window, need the mask. */
        if (limited(a) || k0 + TILE - 1 > own) {
            SH_UNROLL
            for (int j = 0; j < TILE / 16; j++)
                SH_UNROLL
            for (int i = 0; i < 8 * M; i++) {
                int m = i / 8, n = i / 4 % 2, c = i % 4;
                if (!seen(k0 + 16 * j + lane_column(n, c % 2), own + lane_row(m, c / 2), first[m][c / 2]))
                    s[j][m][n][c] = -INFINITY;
            }
        }
        take_scores<D, M>(run, s, o, a.scale * LOG2E);
        SH_UNROLL
        for (int j = 0; j < TILE / 16; j++)
            sh_tile::add<D, M>(o, s[j], shared + (2 + buffer) * TILE_ELEMS<D>, 16 * j);
    }
    put_queries<D, M>(a, q, own, run, o);
}

/* dq [t] = scale * sum over s of p (dp - delta) k[s], where dp = dout[t] . v[s] */
template <int D, int M> __global__ void __launch_bounds__(THREADS) backward_queries(sh_attention a)
{
    SH_DYNAMIC_SHARED(sh_bf16, shared); /* keys 0, 1, values 0, 1 */
    queries q = queries_of<16 * M * WARPS>(a);
    rows keys = heads_of_qkv(a, q.b, a.heads + q.kv_head),
         values = heads_of_qkv(a, q.b, a.heads + a.kv_heads + q.kv_head);
    int own = q.from + (int)(threadIdx.x / 32) * 16 * M;
    uint32_t query[M][D / 16][4], dout[M][D / 16][4];
    float dq[M][D / 8][4], lse2[M][2], delta[M][2];
    int first[M][2];

    take_own<D, M>(query, shared, heads_of_qkv(a, q.b, q.head), q.from);
    take_own<D, M>(dout, shared, heads_of_out(a, a.dout, q.b, q.head), q.from);
    sh_tile::clear<D, M>(dq);
    SH_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int t = own + lane_row(i / 2, i % 2);
        int64_t at = (q.b * a.heads + q.head) * a.seq + t;
        lse2[i / 2][i % 2] = t < a.seq ? a.lse[at] * LOG2E : 0;
        delta[i / 2][i % 2] = t < a.seq ? a.delta[at] : 0;
        first[i / 2][i % 2] = first_key(a, q.b, t);
    }
    fetch_pair<D>(shared, 0, keys, values, q.first_tile);
    int buffer = 0;
    for (int k0 = q.first_tile; k0 < q.end; k0 += TILE, buffer ^= 1) {
        sh_mma::wait_copies();
        __syncthreads();
        if (k0 + TILE < q.end)
            fetch_pair<D>(shared, buffer ^ 1, keys, values, k0 + TILE);
        bool whole = !limited(a) && k0 + TILE - 1 <= own;
        SH_UNROLL
        for (int j = 0; j < TILE / 16; j++) {
            float s[M][2][4], dp[M][2][4];
            if (k0 + 16 * j > own + 16 * M - 1)
                continue;
            sh_tile::dot<D, M>(s, query, shared + buffer * TILE_ELEMS<D>, 16 * j);
            sh_tile::dot<D, M>(dp, dout, shared + (2 + buffer) * TILE_ELEMS<D>, 16 * j);
            SH_UNROLL
            for (int i = 0; i < 8 * M; i++) {
                int m = i / 8, n = i / 4 % 2, c = i % 4, half = c / 2;
                float p = sh_mma::exp2_of(s[m][n][c] * (a.scale * LOG2E) - lse2[m][half]);
                bool on = whole || seen(k0 + 16 * j + lane_column(n, c % 2), own + lane_row(m, half), first[m][half]);
                s[m][n][c] = on ? p * (dp[m][n][c] - delta[m][half]) : 0;
            }
            sh_tile::add<D, M>(dq, s, shared + buffer * TILE_ELEMS<D>, 16 * j);
        }
    }
    SH_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int t = own + lane_row(i / 2, i % 2);
        int64_t stride = (a.heads + 2 * a.kv_heads) * (int64_t)D;
        if (t < a.seq)
            sh_tile::put<D>(static_cast<sh_bf16 *>(a.dqkv) + (q.b * a.seq + t) * stride + q.head * D, dq[i / 2], i % 2,
                            a.scale);
    }
}

/* What a tile of queries needs besides q and dout, read by asynchronous copies like theirs. */
struct of_queries {
    float lse[2][TILE], delta[2][TILE];
    int32_t first[2][TILE];
};

__device__ __forceinline__ void fetch_of_queries(const sh_attention &a, of_queries *to, int buffer, int64_t b, int head,
                                                 int from)
{
    int i = threadIdx.x % TILE;
    bool there = from + i < a.seq, upper = threadIdx.x >= TILE;
    int t = there ? from + i : 0;
    int64_t at = (b * a.heads + head) * a.seq + t;
    static_assert(THREADS == 2 * TILE, "half of the threads copy lse, half delta");
    sh_mma::copy<4>(upper ? &to->delta[buffer][i] : &to->lse[buffer][i], upper ? &a.delta[at] : &a.lse[at], there);
    if (a.docs && !upper)
        sh_mma::copy<4>(&to->first[buffer][i], &a.docs[b * a.seq + t], there);
}

/* One past the last tile of queries that see keys up to `last`: first keys never decrease. */
__device__ __forceinline__ int end_of_queries(const sh_attention &a, int64_t b, int first_tile, int last)
{
    int low = first_tile, high = (int)((a.seq + TILE - 1) / TILE);
    while (limited(a) && low < high) {
        int mid = (low + high) / 2;
        if (first_key(a, b, mid * TILE) <= last)
            low = mid + 1;
        else
            high = mid;
    }
    return high;
}

/* dv [s] = sum over t of p dout[t]; dk [s] = scale * sum over t of p (dp - delta) q[t], over all heads that share s.
 * The products are those of backward_queries, transposed: rows are keys. */
template <int D, int M> __global__ void __launch_bounds__(THREADS) backward_keys(sh_attention a)
{
    SH_DYNAMIC_SHARED(sh_bf16, shared); /* queries 0, 1, dout 0, 1, of_queries */
    of_queries *of = reinterpret_cast<of_queries *>(shared + 4 * TILE_ELEMS<D>);
    constexpr int OWN = 16 * M * WARPS;
    int kv_head = (int)(blockIdx.x % a.kv_heads), group = a.heads / a.kv_heads;
    int b = (int)(blockIdx.x / a.kv_heads), from = (int)blockIdx.y * OWN, own = from + (int)(threadIdx.x / 32) * 16 * M;
    int first_tile = from / TILE, tiles = end_of_queries(a, b, first_tile, from + OWN - 1) - first_tile;
    uint32_t key[M][D / 16][4], value[M][D / 16][4];
    float dk[M][D / 8][4], dv[M][D / 8][4];

    take_own<D, M>(key, shared, heads_of_qkv(a, b, a.heads + kv_head), from);
    take_own<D, M>(value, shared, heads_of_qkv(a, b, a.heads + a.kv_heads + kv_head), from);
    sh_tile::clear<D, M>(dk);
    sh_tile::clear<D, M>(dv);
    for (int i = -1; i < tiles * group; i++) {
        if (i >= 0) {
            sh_mma::wait_copies();
            __syncthreads();
        }
        /* Loads of the next tile run while this one is multiplied. */
        if (i + 1 < tiles * group) {
            int head = kv_head * group + (i + 1) / tiles, next = (i + 1) % 2;
            int q0 = (first_tile + (i + 1) % tiles) * TILE;
            fetch_pair<D>(shared, next, heads_of_qkv(a, b, head), heads_of_out(a, a.dout, b, head), q0);
            fetch_of_queries(a, of, next, b, head, q0);
        }
        if (i < 0)
            continue;
        int buffer = i % 2, q0 = (first_tile + i % tiles) * TILE;
        sh_bf16 *query = shared + buffer * TILE_ELEMS<D>, *dout = shared + (2 + buffer) * TILE_ELEMS<D>;
        bool whole = !limited(a) && q0 >= own + 16 * M - 1;
        SH_NO_UNROLL
        for (int j = 0; j < TILE / 16; j++) {
            float p[M][2][4], ds[M][2][4];
            if (q0 + 16 * j + 15 < own)
                continue;
            sh_tile::dot<D, M>(p, key, query, 16 * j);
            sh_tile::dot<D, M>(ds, value, dout, 16 * j);
            SH_UNROLL
            for (int e = 0; e < 8 * M; e++) {
                int m = e / 8, n = e / 4 % 2, c = e % 4, column = 16 * j + lane_column(n, c % 2);
                int first = a.docs ? of->first[buffer][column] : 0, near = a.window ? q0 + column - a.window + 1 : 0;
                first = near > first ? near : first;
                bool on = whole || seen(own + lane_row(m, c / 2), q0 + column, first);
                float w = sh_mma::exp2_of(p[m][n][c] * (a.scale * LOG2E) - of->lse[buffer][column] * LOG2E);
                p[m][n][c] = on ? w : 0;
                ds[m][n][c] = on ? w * (ds[m][n][c] - of->delta[buffer][column]) : 0;
            }
            sh_tile::add<D, M>(dv, p, dout, 16 * j);
            sh_tile::add<D, M>(dk, ds, query, 16 * j);
        }
    }
    SH_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int s = own + lane_row(i / 2, i % 2);
        int64_t stride = (a.heads + 2 * a.kv_heads) * (int64_t)D;
        sh_bf16 *to = static_cast<sh_bf16 *>(a.dqkv) + (b * a.seq + s) * stride + (a.heads + kv_head) * D;
        if (s < a.seq) {
            sh_tile::put<D>(to, dk[i / 2], i % 2, a.scale);
            sh_tile::put<D>(to + a.kv_heads * D, dv[i / 2], i % 2, 1);
        }
    }
}

/* Blocks of `own` rows each. */
unsigned blocks(int64_t seq, int own)
{
    return (unsigned)((seq + own - 1) / own);
}

/* Two buffers of two tensors. */
template <int D> constexpr size_t SHARED = 4 * TILE_ELEMS<D> * sizeof(sh_bf16);
template <int D> constexpr size_t SHARED_KEYS = SHARED<D> + sizeof(of_queries); /* of dk and dv */

template <int D, int M> sh_rc run_forward(const sh_attention &a, void *queue)
{
    dim3 grid((unsigned)(a.batch * a.heads), blocks(a.seq, 16 * M * WARPS));
    return SH_LAUNCH((forward<D, M>), grid, dim3(THREADS), SHARED<D>, queue, a);
}

template <int D, int M, int M_KEYS> sh_rc run_backward(const sh_attention &a, void *queue)
{
    dim3 queries((unsigned)(a.batch * a.heads), blocks(a.seq, 16 * M * WARPS));
    dim3 keys((unsigned)(a.batch * a.kv_heads), blocks(a.seq, 16 * M_KEYS * WARPS));
    SH_TRY(SH_LAUNCH((backward_queries<D, M>), queries, dim3(THREADS), SHARED<D>, queue, a));
    return SH_LAUNCH((backward_keys<D, M_KEYS>), keys, dim3(THREADS), SHARED_KEYS<D>, queue, a);
}

/* Rows per warp, in units of 16: as many as its registers hold. */
const struct {
    int dim;
    size_t shared[2]; /* at most; forward, backward */
    sh_rc (*forward)(const sh_attention &a, void *queue);
    sh_rc (*backward)(const sh_attention &a, void *queue);
} kernels[] = {
    {32, {SHARED<32>, SHARED_KEYS<32>}, run_forward<32, 2>, run_backward<32, 2, 2>},
    {64, {SHARED<64>, SHARED_KEYS<64>}, run_forward<64, 2>, run_backward<64, 2, 1>},
    {96, {SHARED<96>, SHARED_KEYS<96>}, run_forward<96, 1>, run_backward<96, 1, 1>},
    {128, {SHARED<128>, SHARED_KEYS<128>}, run_forward<128, 1>, run_backward<128, 1, 1>},
};

/* -1: no kernel for this type or head size. */
int row_of(const sh_attention *a)
{
    for (int i = 0; i < (int)(sizeof kernels / sizeof kernels[0]); i++)
        if (a->dtype == SH_BF16 && kernels[i].dim == a->dim)
            return i;
    return -1;
}
} // namespace

/* Everything else goes to attention_any.cu. */
bool sh_attention_tensor_takes(const struct sh_attention *a)
{
    return row_of(a) >= 0;
}

sh_rc sh_attention_tensor_check(const struct sh_attention *a, bool backward)
{
    return sh_attention_fits(a->dim, kernels[row_of(a)].shared[backward]);
}

sh_rc sh_attention_tensor(const struct sh_attention *a, void *queue)
{
    return kernels[row_of(a)].forward(*a, queue);
}

sh_rc sh_attention_tensor_bwd(const struct sh_attention *a, void *queue)
{
    return kernels[row_of(a)].backward(*a, queue);
}
