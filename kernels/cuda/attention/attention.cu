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
 *     D = 64    forward 249, 248, 235    dq 230, 232, 208    dk, dv 163, 172, 182
 *     D = 128   forward 172, 171, 171    dq 238, 238, 205    dk, dv 255, 254, 255
 * At these sizes only dk and dv at D = 128 spill: 16 bytes on sm_90, 24 on sm_100. On an H100 at T = 8192, D = 128: 148
 * TFLOP/s forward, 113 backward. */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_tile.cuh"

namespace
{
using sh_tile::rows;
using sh_tile::THREADS;
using sh_tile::WARPS;

static_assert(sizeof(sh_attention) <= 128, "ptxas keeps dk and dv in registers only with few parameters");

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

/* Head `head` of number i in a tensor, each of which has `count` rows. */
__device__ __forceinline__ rows heads_at(const sh_attention &a, const void *x, int64_t i, int head, int64_t stride,
                                         int64_t count)
{
    return {static_cast<const sh_bf16 *>(x) + i * count * stride + head * (int64_t)a.dim, stride, (int)count};
}

/* RUNS: queries are apart from keys, in two runs of each sequence; else a query's row is its position, and kernels are as
 * small as if there were no runs. Elements from one row to the next of queries, and of keys: */
template <bool RUNS> __device__ __forceinline__ int64_t q_row(const sh_attention &a)
{
    return (a.heads + (RUNS ? 0 : 2 * a.kv_heads)) * (int64_t)a.dim;
}

template <bool RUNS> __device__ __forceinline__ int64_t kv_row(const sh_attention &a)
{
    return (2 * a.kv_heads + (RUNS ? 0 : a.heads)) * (int64_t)a.dim;
}

/* s: a run of a sequence */
template <bool RUNS> __device__ __forceinline__ rows heads_of_q(const sh_attention &a, int64_t s, int head)
{
    return heads_at(a, a.q, s, head, q_row<RUNS>(a), a.rows);
}

/* Values have the heads after those of the keys. */
template <bool RUNS> __device__ __forceinline__ rows heads_of_kv(const sh_attention &a, int64_t b, int head)
{
    return heads_at(a, a.kv, b, head, kv_row<RUNS>(a), a.seq);
}

/* In o or dout. */
__device__ __forceinline__ rows heads_of_out(const sh_attention &a, const void *x, int64_t s, int head)
{
    return heads_at(a, x, s, head, a.heads * (int64_t)a.dim, a.rows);
}

/* The sequence of a run, and the position of its first row. */
template <bool RUNS> __device__ __forceinline__ int64_t sequence_of(const sh_attention &a, int64_t s)
{
    return RUNS ? s % a.batch : s;
}

template <bool RUNS> __device__ __forceinline__ int begin_of(const sh_attention &a, int64_t s)
{
    return !RUNS ? 0 : s < a.batch ? a.first[0] : a.first[1];
}

/* Of row t of a run that begins at position `begin`. Positions are 32 bits wide, to save registers. */
__device__ __forceinline__ int first_key(const sh_attention &a, int64_t s, int begin, int t)
{
    int first = a.docs && t < a.rows ? a.docs[s * a.rows + t] : 0, near = a.window ? begin + t - a.window + 1 : 0;
    return near > first ? near : first;
}

/* Whether first_key() may be something other than 0. */
__device__ __forceinline__ bool limited(const sh_attention &a)
{
    return a.docs || a.window;
}

/* The queries that a block owns, of run s, and the tiles of keys that it sees. */
struct queries {
    int64_t s, b;
    int head, kv_head;
    int begin, from, first_tile, end; /* position of row 0; the block's first row; end: one past the last key seen */
};

/* Blocks are numbered so that those with the most keys start first. */
template <int OWN, bool RUNS> __device__ __forceinline__ queries queries_of(const sh_attention &a)
{
    queries q;
    q.head = (int)(blockIdx.x % a.heads);
    q.kv_head = q.head / (a.heads / a.kv_heads);
    q.s = blockIdx.x / a.heads;
    q.b = sequence_of<RUNS>(a, q.s);
    q.begin = begin_of<RUNS>(a, q.s);
    q.from = (int)(gridDim.y - 1 - blockIdx.y) * OWN; /* the last queries see the most keys, so they go first */
    q.first_tile = first_key(a, q.s, q.begin, q.from) / TILE * TILE;
    q.end = q.begin + (q.from + OWN < a.rows ? q.from + OWN : (int)a.rows);
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
        if (t >= a.rows)
            continue;
        sh_bf16 *to = static_cast<sh_bf16 *>(a.o) + ((q.s * a.rows + t) * a.heads + q.head) * D;
        sh_tile::put<D>(to, o[m], half, 1 / sum);
        if (threadIdx.x % 4 == 0)
            a.lse[(q.s * a.heads + q.head) * a.rows + t] = run.top[m][half] * a.scale + logf(sum);
    }
}

/* One block: 16 M rows per warp, all tiles of keys from the first one that the block sees. */
template <int D, int M, bool RUNS> __global__ void __launch_bounds__(THREADS) forward(sh_attention a)
{
    SH_DYNAMIC_SHARED(sh_bf16, shared); /* keys 0, 1, values 0, 1 */
    queries q = queries_of<16 * M * WARPS, RUNS>(a);
    rows keys = heads_of_kv<RUNS>(a, q.b, q.kv_head), values = heads_of_kv<RUNS>(a, q.b, a.kv_heads + q.kv_head);
    int own = q.from + (int)(threadIdx.x / 32) * 16 * M, at = q.begin + own; /* its row, and its position */
    uint32_t query[M][D / 16][4];
    float o[M][D / 8][4], s[TILE / 16][M][2][4];
    int first[M][2];
    running<M> run;

    take_own<D, M>(query, shared, heads_of_q<RUNS>(a, q.s, q.head), q.from);
    sh_tile::clear<D, M>(o);
    SH_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        run.top[i / 2][i % 2] = -INFINITY;
        run.sum[i / 2][i % 2] = 0;
        first[i / 2][i % 2] = first_key(a, q.s, q.begin, own + lane_row(i / 2, i % 2));
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
        if (k0 > at + 16 * M - 1)
            continue;
        SH_UNROLL
        for (int j = 0; j < TILE / 16; j++)
            sh_tile::dot<D, M>(s[j], query, shared + buffer * TILE_ELEMS<D>, 16 * j);
        /* Only tiles on the diagonal, or with documents or a window, need the mask. */
        if (limited(a) || k0 + TILE - 1 > at) {
            SH_UNROLL
            for (int j = 0; j < TILE / 16; j++)
                SH_UNROLL
            for (int i = 0; i < 8 * M; i++) {
                int m = i / 8, n = i / 4 % 2, c = i % 4;
                if (!seen(k0 + 16 * j + lane_column(n, c % 2), at + lane_row(m, c / 2), first[m][c / 2]))
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
template <int D, int M, bool RUNS> __global__ void __launch_bounds__(THREADS) backward_queries(sh_attention a)
{
    SH_DYNAMIC_SHARED(sh_bf16, shared); /* keys 0, 1, values 0, 1 */
    queries q = queries_of<16 * M * WARPS, RUNS>(a);
    rows keys = heads_of_kv<RUNS>(a, q.b, q.kv_head), values = heads_of_kv<RUNS>(a, q.b, a.kv_heads + q.kv_head);
    int own = q.from + (int)(threadIdx.x / 32) * 16 * M, place = q.begin + own; /* its row, and its position */
    uint32_t query[M][D / 16][4], dout[M][D / 16][4];
    float dq[M][D / 8][4], lse2[M][2], delta[M][2];
    int first[M][2];

    take_own<D, M>(query, shared, heads_of_q<RUNS>(a, q.s, q.head), q.from);
    take_own<D, M>(dout, shared, heads_of_out(a, a.dout, q.s, q.head), q.from);
    sh_tile::clear<D, M>(dq);
    SH_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int t = own + lane_row(i / 2, i % 2);
        int64_t at = (q.s * a.heads + q.head) * a.rows + t;
        lse2[i / 2][i % 2] = t < a.rows ? a.lse[at] * LOG2E : 0;
        delta[i / 2][i % 2] = t < a.rows ? a.delta[at] : 0;
        first[i / 2][i % 2] = first_key(a, q.s, q.begin, t);
    }
    fetch_pair<D>(shared, 0, keys, values, q.first_tile);
    int buffer = 0;
    for (int k0 = q.first_tile; k0 < q.end; k0 += TILE, buffer ^= 1) {
        sh_mma::wait_copies();
        __syncthreads();
        if (k0 + TILE < q.end)
            fetch_pair<D>(shared, buffer ^ 1, keys, values, k0 + TILE);
        bool whole = !limited(a) && k0 + TILE - 1 <= place;
        SH_UNROLL
        for (int j = 0; j < TILE / 16; j++) {
            float s[M][2][4], dp[M][2][4];
            if (k0 + 16 * j > place + 16 * M - 1)
                continue;
            sh_tile::dot<D, M>(s, query, shared + buffer * TILE_ELEMS<D>, 16 * j);
            sh_tile::dot<D, M>(dp, dout, shared + (2 + buffer) * TILE_ELEMS<D>, 16 * j);
            SH_UNROLL
            for (int i = 0; i < 8 * M; i++) {
                int m = i / 8, n = i / 4 % 2, c = i % 4, half = c / 2;
                float p = sh_mma::exp2_of(s[m][n][c] * (a.scale * LOG2E) - lse2[m][half]);
                bool on = whole || seen(k0 + 16 * j + lane_column(n, c % 2), place + lane_row(m, half), first[m][half]);
                s[m][n][c] = on ? p * (dp[m][n][c] - delta[m][half]) : 0;
            }
            sh_tile::add<D, M>(dq, s, shared + buffer * TILE_ELEMS<D>, 16 * j);
        }
    }
    SH_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int t = own + lane_row(i / 2, i % 2);
        if (t < a.rows)
            sh_tile::put<D>(static_cast<sh_bf16 *>(a.dq) + (q.s * a.rows + t) * q_row<RUNS>(a) + q.head * D, dq[i / 2],
                            i % 2, a.scale);
    }
}

/* What a tile of queries needs besides q and dout, read by asynchronous copies like theirs. */
struct of_queries {
    float lse[2][TILE], delta[2][TILE];
    int32_t first[2][TILE];
};

__device__ __forceinline__ void fetch_of_queries(const sh_attention &a, of_queries *to, int buffer, int64_t s, int head,
                                                 int from)
{
    int i = threadIdx.x % TILE;
    bool there = from + i < a.rows, upper = threadIdx.x >= TILE;
    int t = there ? from + i : 0;
    int64_t at = (s * a.heads + head) * a.rows + t;
    static_assert(THREADS == 2 * TILE, "half of the threads copy lse, half delta");
    sh_mma::copy<4>(upper ? &to->delta[buffer][i] : &to->lse[buffer][i], upper ? &a.delta[at] : &a.lse[at], there);
    if (a.docs && !upper)
        sh_mma::copy<4>(&to->first[buffer][i], &a.docs[s * a.rows + t], there);
}

/* One past the last tile of a run's queries that see keys up to `last`: first keys never decrease. */
__device__ __forceinline__ int end_of_queries(const sh_attention &a, int64_t s, int begin, int first_tile, int last)
{
    int low = first_tile, high = (int)((a.rows + TILE - 1) / TILE);
    while (limited(a) && low < high) {
        int mid = (low + high) / 2;
        if (first_key(a, s, begin, mid * TILE) <= last)
            low = mid + 1;
        else
            high = mid;
    }
    return high;
}

/* The tiles of queries that see keys [from, from + own): of run 0, then of run 1. */
struct seen_tiles {
    int first[2], count[2];
};

template <bool RUNS> __device__ __forceinline__ seen_tiles tiles_of(const sh_attention &a, int64_t b, int from, int own)
{
    seen_tiles t = {};
    SH_UNROLL
    for (int run = 0; run < (RUNS ? 2 : 1); run++) {
        int64_t s = run * a.batch + b;
        int begin = begin_of<RUNS>(a, s);
        t.first[run] = (RUNS && from < begin ? 0 : from - begin) / TILE;
        t.count[run] = end_of_queries(a, s, begin, t.first[run], from + own - 1) - t.first[run];
        if (RUNS && t.count[run] < 0) /* all of the run lies before these keys */
            t.count[run] = 0;
    }
    return t;
}

/* The run of tile i of them, and its first row there. */
struct tile_of_run {
    bool second;
    int row;
};

template <bool RUNS> __device__ __forceinline__ tile_of_run tile_at(const seen_tiles &t, int i)
{
    bool second = RUNS && i >= t.count[0];
    return {second, (second ? t.first[1] + i - t.count[0] : t.first[0] + i) * TILE};
}

template <int D, int M, bool RUNS>
__device__ __forceinline__ void put_keys(const sh_attention &a, int b, int kv_head, int own,
                                         const float dk[M][D / 8][4], const float dv[M][D / 8][4])
{
    SH_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        int s = own + lane_row(i / 2, i % 2);
        sh_bf16 *to = static_cast<sh_bf16 *>(a.dkv) + (b * a.seq + s) * kv_row<RUNS>(a) + kv_head * D;
        if (s < a.seq) {
            sh_tile::put<D>(to, dk[i / 2], i % 2, a.scale);
            sh_tile::put<D>(to + a.kv_heads * D, dv[i / 2], i % 2, 1);
        }
    }
}

/* dv [s] = sum over t of p dout[t]; dk [s] = scale * sum over t of p (dp - delta) q[t], over all heads that share s.
 * The products are those of backward_queries, transposed: rows are keys. */
template <int D, int M, bool RUNS> __global__ void __launch_bounds__(THREADS) backward_keys(sh_attention a)
{
    SH_DYNAMIC_SHARED(sh_bf16, shared); /* queries 0, 1, dout 0, 1, of_queries */
    of_queries *of = reinterpret_cast<of_queries *>(shared + 4 * TILE_ELEMS<D>);
    constexpr int OWN = 16 * M * WARPS;
    int kv_head = (int)(blockIdx.x % a.kv_heads), group = a.heads / a.kv_heads;
    int b = (int)(blockIdx.x / a.kv_heads), from = (int)blockIdx.y * OWN, own = from + (int)(threadIdx.x / 32) * 16 * M;
    seen_tiles by = tiles_of<RUNS>(a, b, from, OWN);
    int tiles = by.count[0] + (RUNS ? by.count[1] : 0);
    uint32_t key[M][D / 16][4], value[M][D / 16][4];
    float dk[M][D / 8][4], dv[M][D / 8][4];

    take_own<D, M>(key, shared, heads_of_kv<RUNS>(a, b, kv_head), from);
    take_own<D, M>(value, shared, heads_of_kv<RUNS>(a, b, a.kv_heads + kv_head), from);
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
            tile_of_run t = tile_at<RUNS>(by, (i + 1) % tiles);
            int64_t s = t.second ? a.batch + b : b;
            fetch_pair<D>(shared, next, heads_of_q<RUNS>(a, s, head), heads_of_out(a, a.dout, s, head), t.row);
            fetch_of_queries(a, of, next, s, head, t.row);
        }
        if (i < 0)
            continue;
        tile_of_run t = tile_at<RUNS>(by, i % tiles);
        int buffer = i % 2, q0 = begin_of<RUNS>(a, t.second ? a.batch : 0) + t.row; /* position of its first query */
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
    put_keys<D, M, RUNS>(a, b, kv_head, own, dk, dv);
}

/* Blocks of `own` rows each. */
unsigned blocks(int64_t seq, int own)
{
    return (unsigned)((seq + own - 1) / own);
}

/* Two buffers of two tensors. */
template <int D> constexpr size_t SHARED = 4 * TILE_ELEMS<D> * sizeof(sh_bf16);
template <int D> constexpr size_t SHARED_KEYS = SHARED<D> + sizeof(of_queries); /* of dk and dv */

template <int D, int M, bool RUNS> sh_rc run_forward(const sh_attention &a, void *queue)
{
    dim3 grid((unsigned)(a.runs * a.batch * a.heads), blocks(a.rows, 16 * M * WARPS));
    return SH_LAUNCH((forward<D, M, RUNS>), grid, dim3(THREADS), SHARED<D>, queue, a);
}

template <int D, int M, int M_KEYS, bool RUNS> sh_rc run_backward(const sh_attention &a, void *queue)
{
    dim3 queries((unsigned)(a.runs * a.batch * a.heads), blocks(a.rows, 16 * M * WARPS));
    dim3 keys((unsigned)(a.batch * a.kv_heads), blocks(a.seq, 16 * M_KEYS * WARPS));
    SH_TRY(SH_LAUNCH((backward_queries<D, M, RUNS>), queries, dim3(THREADS), SHARED<D>, queue, a));
    return SH_LAUNCH((backward_keys<D, M_KEYS, RUNS>), keys, dim3(THREADS), SHARED_KEYS<D>, queue, a);
}

template <int D, int M> sh_rc forward_of(const sh_attention &a, void *queue)
{
    return a.runs > 1 ? run_forward<D, M, true>(a, queue) : run_forward<D, M, false>(a, queue);
}

template <int D, int M, int M_KEYS> sh_rc backward_of(const sh_attention &a, void *queue)
{
    return a.runs > 1 ? run_backward<D, M, M_KEYS, true>(a, queue) : run_backward<D, M, M_KEYS, false>(a, queue);
}

/* Rows per warp, in units of 16: as many as its registers hold. */
const struct {
    int dim;
    size_t shared[2]; /* at most; forward, backward */
    sh_rc (*forward)(const sh_attention &a, void *queue);
    sh_rc (*backward)(const sh_attention &a, void *queue);
} kernels[] = {
    {32, {SHARED<32>, SHARED_KEYS<32>}, forward_of<32, 2>, backward_of<32, 2, 2>},
    {64, {SHARED<64>, SHARED_KEYS<64>}, forward_of<64, 2>, backward_of<64, 2, 1>},
    {96, {SHARED<96>, SHARED_KEYS<96>}, forward_of<96, 1>, backward_of<96, 1, 1>},
    {128, {SHARED<128>, SHARED_KEYS<128>}, forward_of<128, 1>, backward_of<128, 1, 1>},
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
