/* Attention by ordinary arithmetic in f32: for f32, where tensor cores would round, for head sizes that
 * attention.cu has no kernel for, and for scores with a soft cap. A warp owns four rows and walks over tiles of 32 rows
 * of the other side, which its block shares. First each lane takes one of the 32 rows and computes its dot products with
 * the four; then each lane takes some columns and adds up the 32 rows, weighted by the results. Forward and dq own
 * queries, dk and dv own keys: the same two steps. Of heads above 256 a tile has 128 columns at a time.
 *
 * Floor: 4 D operations per pair (query, key seen) of a head forward, 10 D backward (14 D done here, as in
 * attention.cu). This runs on ordinary cores from shared memory, at roughly a tenth of their peak: enough to test,
 * not to train large models in f32. Not measured on a GPU. */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/launch.cuh"

namespace
{
constexpr int LANES = 32, WARPS = 4, ROWS = 4, OWN = WARPS * ROWS, THREADS = LANES * WARPS;
constexpr int WHOLE = 256, PART = 128; /* columns of a head that a tile has whole; else of a part */

/* Of a head with C columns per lane: the parts, and a lane's columns of each. */
template <int C> constexpr int PARTS = C *LANES > WHOLE ? C *LANES / PART : 1;
template <int C> constexpr int LANE_COLUMNS = C / PARTS<C>;

/* With a soft cap of scores; others take the 128 bytes alone. */
struct capped : sh_attention {
    float cap;
};

/* What becomes of a scaled score: cap tanh(x / cap). */
__device__ __forceinline__ float capped_score(const sh_attention &, float x)
{
    return x;
}

__device__ __forceinline__ float capped_score(const capped &a, float x)
{
    return a.cap * tanhf(x / a.cap);
}

/* The derivative d by a score s, times that of the score by what was capped. */
__device__ __forceinline__ float before_cap(const sh_attention &, float, float d)
{
    return d;
}

__device__ __forceinline__ float before_cap(const capped &a, float s, float d)
{
    return d * (1 - s / a.cap * (s / a.cap));
}

/* Rows of one head in global memory, bf16 or f32. */
struct rows {
    char *first;
    int64_t stride, count; /* elements; rows */
    bool bf16;
};

/* Head `head` of number i, each of which has `count` rows. */
__device__ __forceinline__ rows rows_at(const sh_attention &a, const void *x, int64_t i, int head, int64_t stride,
                                        int64_t count)
{
    int64_t at = i * count * stride + head * (int64_t)a.dim;
    bool bf16 = a.dtype == SH_BF16;
    return {static_cast<char *>(const_cast<void *>(x)) + at * (bf16 ? 2 : 4), stride, count, bf16};
}

/* x: q or dq; s: a run of a sequence */
__device__ __forceinline__ rows of_queries(const sh_attention &a, const void *x, int64_t s, int head)
{
    return rows_at(a, x, s, head, (a.heads + (a.runs > 1 ? 0 : 2 * a.kv_heads)) * (int64_t)a.dim, a.rows);
}

/* x: kv or dkv; values have the heads after those of the keys */
__device__ __forceinline__ rows of_keys(const sh_attention &a, const void *x, int64_t b, int head)
{
    return rows_at(a, x, b, head, (2 * a.kv_heads + (a.runs > 1 ? 0 : a.heads)) * (int64_t)a.dim, a.seq);
}

__device__ __forceinline__ rows of_out(const sh_attention &a, const void *x, int64_t s, int head)
{
    return rows_at(a, x, s, head, a.heads * (int64_t)a.dim, a.rows);
}

/* Position of the first row of a run of a sequence. */
__device__ __forceinline__ int64_t begin_of(const sh_attention &a, int64_t s)
{
    return s < a.batch ? a.first[0] : a.first[1];
}

__device__ __forceinline__ float get(const rows &r, int64_t i)
{
    return r.bf16 ? sh_widen(reinterpret_cast<const sh_bf16 *>(r.first)[i])
                  : reinterpret_cast<const float *>(r.first)[i];
}

__device__ __forceinline__ void set(const rows &r, int64_t i, float x)
{
    if (r.bf16)
        reinterpret_cast<sh_bf16 *>(r.first)[i] = sh_narrow<sh_bf16>(x);
    else
        reinterpret_cast<float *>(r.first)[i] = x;
}

/* Shared memory of a block, in floats: two tiles, weights, and the block's own rows of one tensor (forward) or two.
 * Rows of tiles are an element longer, since lanes read a column. At D = 256 and 512 that is 82, 66 KB or 98; GPUs have
 * 99 or more. */
struct layout {
    int pitch, tile, own, weights;
    __device__ __host__ explicit layout(int dim)
        : pitch((dim > WHOLE ? PART : dim) + 1), tile(LANES * pitch), own(OWN * dim), weights(OWN * LANES)
    {
    }
    __device__ __host__ int floats(int owned) const
    {
        return 2 * tile + weights + owned * own;
    }
};

struct space {
    float *tile[2], *weights, *own[2]; /* own and weights: for this warp */
};

__device__ __forceinline__ space cut(float *shared, int dim)
{
    layout l(dim);
    space s;
    int warp = threadIdx.x / LANES;
    s.weights = shared + 2 * l.tile + warp * ROWS * LANES;
    for (int i = 0; i < 2; i++) {
        s.tile[i] = shared + i * l.tile;
        s.own[i] = shared + l.floats(i) + warp * ROWS * dim;
    }
    return s;
}

/* n columns from `first` on */
struct columns {
    int first, n;
};

/* Those of a part of a head, in `pitch` - 1 columns of a tile. */
template <int C> __device__ __forceinline__ columns columns_of(int dim, int part)
{
    int first = part * LANE_COLUMNS<C> * LANES;
    return {first, PARTS<C> == 1 || dim - first < PART ? dim - first : PART};
}

/* Rows [from, from + n) in f32, `pitch` apart; zeros after the last. The whole block calls. */
__device__ __forceinline__ void read(float *to, int pitch, rows src, int64_t from, int n, columns part)
{
    for (int i = threadIdx.x; i < n * part.n; i += THREADS) {
        int row = i / part.n, column = i % part.n;
        to[row * pitch + column] = from + row < src.count ? get(src, (from + row) * src.stride + part.first + column)
                                                          : 0;
    }
}

/* out [ROWS] += own [ROWS,D] row, of a part of D, added in sequence: the sum has one order. */
__device__ __forceinline__ void dot(float out[ROWS], const float *own, const float *row, int dim, columns part)
{
    for (int d = 0; d < part.n; d++)
        for (int i = 0; i < ROWS; i++)
            out[i] += own[i * dim + part.first + d] * row[d];
}

/* sum [ROWS, C * 32 columns] += weights [ROWS,32] tile [32, columns of the part] */
template <int C>
__device__ __forceinline__ void add(float sum[ROWS][C], const float *weights, const float *tile, int dim, int part)
{
    int lane = threadIdx.x % LANES, pitch = layout(dim).pitch;
    columns of = columns_of<C>(dim, part);
    /* The 32 rows of the tile in order, whichever lane has a column. */
    for (int j = 0; j < LANES; j++)
        for (int c = 0; c < LANE_COLUMNS<C>; c++) {
            float x = lane + LANES * c < of.n ? tile[j * pitch + lane + LANES * c] : 0;
            for (int i = 0; i < ROWS; i++)
                sum[i][part * LANE_COLUMNS<C> + c] += weights[i * LANES + j] * x;
        }
}

/* add(), of weights that the lanes hold for their rows of the tile. */
template <int C>
__device__ __forceinline__ void add_weighted(float sum[ROWS][C], const space &s, const float weights[ROWS],
                                             const float *tile, int dim, int part)
{
    __syncwarp(); /* all lanes have read the weights of before */
    for (int i = 0; i < ROWS; i++)
        s.weights[i * LANES + threadIdx.x % LANES] = weights[i];
    __syncwarp();
    add<C>(sum, s.weights, tile, dim, part);
}

/* What a block walks over: 32 rows of a tensor at a time, of which a tile has a part. */
struct source {
    float *tile;
    rows src;
};

template <int C> __device__ __forceinline__ void take(source from, int64_t row, int dim, int part)
{
    read(from.tile, layout(dim).pitch, from.src, row, LANES, columns_of<C>(dim, part));
}

/* After all warps have used the tiles, and before any uses them again. The whole block calls. */
template <int C> __device__ __forceinline__ void retake(source from, int64_t row, int dim, int part)
{
    __syncthreads();
    take<C>(from, row, dim, part);
    __syncthreads();
}

template <int C> __device__ __forceinline__ void take_both(source first, source second, int64_t row, int dim, int part)
{
    __syncthreads();
    take<C>(first, row, dim, part);
    take<C>(second, row, dim, part);
    __syncthreads();
}

template <int C>
/* A lane's columns are lane, lane + 32, ...; rows past the sequence are not written. */
__device__ __forceinline__ void write(rows to, int64_t row, const float sum[C], float factor, int dim)
{
    int lane = threadIdx.x % LANES;
    for (int c = 0; c < C; c++)
        if (row < to.count && lane + LANES * c < dim)
            set(to, row * to.stride + lane + LANES * c, sum[c] * factor);
}

/* Of row t of a run. 0 without documents and window: every query then sees all positions from the first on. */
__device__ __forceinline__ int64_t first_key(const sh_attention &a, int64_t s, int64_t t)
{
    int64_t first = a.docs && t < a.rows ? a.docs[s * a.rows + t] : 0;
    int64_t near = a.window ? begin_of(a, s) + t - a.window + 1 : 0;
    return near > first ? near : first;
}

/* The queries that a block owns, of run s of sequence b, which begins at position `begin`; `own` is the first of this
 * warp's rows; first_tile, end: of the keys that they see. */
struct queries {
    int64_t s, b, begin, from, own, first_tile, end;
    int head, kv_head;
};

__device__ __forceinline__ queries queries_of(const sh_attention &a)
{
    queries q;
    q.head = (int)(blockIdx.x % a.heads);
    q.kv_head = q.head / (a.heads / a.kv_heads);
    q.s = blockIdx.x / a.heads;
    q.b = q.s % a.batch;
    q.begin = begin_of(a, q.s);
    /* The last queries see the most keys, so their blocks start first. */
    q.from = (int64_t)(gridDim.y - 1 - blockIdx.y) * OWN;
    q.own = q.from + threadIdx.x / LANES * ROWS;
    q.first_tile = first_key(a, q.s, q.from) / LANES * LANES;
    q.end = q.begin + (q.from + OWN < a.rows ? q.from + OWN : a.rows);
    return q;
}

/* Turn one row's 32 scores into weights, and rescale what it has accumulated so far to its new maximum. */
template <int C> __device__ __forceinline__ float take_scores(float score, float &top, float &sum, float o[C])
{
    float now = fmaxf(top, sh_warp_reduce(score, sh_larger())), base = now == -INFINITY ? 0 : now;
    float shrink = expf(top - base), p = expf(score - base);
    top = now;
    sum = sum * shrink + p;
    for (int c = 0; c < C; c++)
        o[c] *= shrink;
    return p;
}

/* o [ROWS,D] in registers, C columns per lane. */
template <int C, class A> __global__ void __launch_bounds__(THREADS) forward(A a)
{
    SH_DYNAMIC_SHARED(float, shared);
    space s = cut(shared, a.dim);
    queries q = queries_of(a);
    int lane = threadIdx.x % LANES;
    float o[ROWS][C] = {}, top[ROWS], sum[ROWS] = {};
    int64_t first[ROWS];

    for (int i = 0; i < ROWS; i++) {
        top[i] = -INFINITY;
        first[i] = first_key(a, q.s, q.own + i);
    }
    read(shared + layout(a.dim).floats(0), a.dim, of_queries(a, a.q, q.s, q.head), q.from, OWN, {0, a.dim});
    source keys = {s.tile[0], of_keys(a, a.kv, q.b, q.kv_head)};
    source values = {s.tile[1], of_keys(a, a.kv, q.b, a.kv_heads + q.kv_head)};
    /* All warps of the block share the tile of 32 keys and 32 values. */
    for (int64_t k0 = q.first_tile; k0 < q.end; k0 += LANES) {
        float score[ROWS] = {};
        for (int part = 0; part < PARTS<C>; part++) {
            __syncthreads();
            take<C>(keys, k0, a.dim, part);
            if (part == PARTS<C> - 1)
                take<C>(values, k0, a.dim, part);
            __syncthreads();
            dot(score, s.own[0], s.tile[0] + lane * layout(a.dim).pitch, a.dim, columns_of<C>(a.dim, part));
        }
        SH_UNROLL
        for (int i = 0; i < ROWS; i++) {
            bool seen = k0 + lane <= q.begin + q.own + i && k0 + lane >= first[i];
            float x = seen ? capped_score(a, score[i] * a.scale) : -INFINITY;
            score[i] = take_scores<C>(x, top[i], sum[i], o[i]);
        }
        add_weighted<C>(o, s, score, s.tile[1], a.dim, PARTS<C> - 1);
        SH_UNROLL
        for (int part = 0; part < PARTS<C> - 1; part++) {
            retake<C>(values, k0, a.dim, part);
            add<C>(o, s.weights, s.tile[1], a.dim, part);
        }
    }
    SH_UNROLL
    for (int i = 0; i < ROWS; i++) {
        float all = sh_warp_reduce(sum[i], sh_add());
        write<C>(of_out(a, a.o, q.s, q.head), q.own + i, o[i], 1 / all, a.dim);
        if (lane == 0 && q.own + i < a.rows)
            a.lse[(q.s * a.heads + q.head) * a.rows + q.own + i] = top[i] + logf(all);
    }
}

/* delta [UB,H,rows]: one warp per row */
__global__ void __launch_bounds__(THREADS) row_sums(sh_attention a)
{
    int lane = threadIdx.x % LANES;
    int64_t i = blockIdx.x * (int64_t)WARPS + threadIdx.x / LANES; /* (s rows + t) H + h */
    float sum = 0;
    if (i >= a.runs * a.batch * a.rows * a.heads)
        return;
    rows dout = of_out(a, a.dout, 0, 0), o = of_out(a, a.o, 0, 0);
    for (int d = lane; d < a.dim; d += LANES)
        sum += get(dout, i * a.dim + d) * get(o, i * a.dim + d);
    sum = sh_warp_reduce(sum, sh_add());
    int64_t head = i % a.heads, t = i / a.heads % a.rows, s = i / a.heads / a.rows;
    if (lane == 0)
        a.delta[(s * a.heads + head) * a.rows + t] = sum;
}

/* Of a lane's row of both sides: their products with the block's own rows, over a part. */
template <int C>
__device__ __forceinline__ void two_dots(float x[ROWS], float y[ROWS], const space &s, source first, source second,
                                         int64_t row, int dim, int part)
{
    int at = threadIdx.x % LANES * layout(dim).pitch;
    columns of = columns_of<C>(dim, part);
    take_both<C>(first, second, row, dim, part);
    dot(x, s.own[0], s.tile[0] + at, dim, of);
    dot(y, s.own[1], s.tile[1] + at, dim, of);
}

/* dq [t] = scale * sum over s of p (dp - delta) k[s], where dp = dout[t] . v[s] */
template <int C, class A> __global__ void __launch_bounds__(THREADS) backward_queries(A a)
{
    SH_DYNAMIC_SHARED(float, shared);
    space s = cut(shared, a.dim);
    layout l(a.dim);
    queries q = queries_of(a);
    int lane = threadIdx.x % LANES;
    float dq[ROWS][C] = {}, lse[ROWS], delta[ROWS];
    int64_t first[ROWS];

    for (int i = 0; i < ROWS; i++) {
        int64_t t = q.own + i, at = (q.s * a.heads + q.head) * a.rows + t;
        lse[i] = t < a.rows ? a.lse[at] : 0;
        delta[i] = t < a.rows ? a.delta[at] : 0;
        first[i] = first_key(a, q.s, t);
    }
    read(shared + l.floats(0), a.dim, of_queries(a, a.q, q.s, q.head), q.from, OWN, {0, a.dim});
    read(shared + l.floats(1), a.dim, of_out(a, a.dout, q.s, q.head), q.from, OWN, {0, a.dim});
    source keys = {s.tile[0], of_keys(a, a.kv, q.b, q.kv_head)};
    source values = {s.tile[1], of_keys(a, a.kv, q.b, a.kv_heads + q.kv_head)};
    for (int64_t k0 = q.first_tile; k0 < q.end; k0 += LANES) {
        float score[ROWS] = {}, dp[ROWS] = {};
        for (int part = 0; part < PARTS<C>; part++)
            two_dots<C>(score, dp, s, keys, values, k0, a.dim, part);
        for (int i = 0; i < ROWS; i++) {
            bool seen = k0 + lane <= q.begin + q.own + i && k0 + lane >= first[i];
            float x = capped_score(a, score[i] * a.scale);
            dp[i] = seen ? before_cap(a, x, expf(x - lse[i]) * (dp[i] - delta[i])) : 0;
        }
        add_weighted<C>(dq, s, dp, s.tile[0], a.dim, PARTS<C> - 1);
        SH_UNROLL
        for (int part = 0; part < PARTS<C> - 1; part++) {
            retake<C>(keys, k0, a.dim, part);
            add<C>(dq, s.weights, s.tile[0], a.dim, part);
        }
    }
    SH_UNROLL
    for (int i = 0; i < ROWS; i++)
        write<C>(of_queries(a, a.dq, q.s, q.head), q.own + i, dq[i], a.scale, a.dim);
}

/* dv [s] = sum over t of p dout[t]; dk [s] = scale * sum over t of p (dp - delta) q[t], of all heads that share s, in
 * the order of heads and positions */
template <int C, class A> __global__ void __launch_bounds__(THREADS) backward_keys(A a)
{
    SH_DYNAMIC_SHARED(float, shared);
    space s = cut(shared, a.dim);
    layout l(a.dim);
    int lane = threadIdx.x % LANES, kv_head = (int)(blockIdx.x % a.kv_heads), group = a.heads / a.kv_heads;
    int64_t b = blockIdx.x / a.kv_heads, from = (int64_t)blockIdx.y * OWN, own = from + threadIdx.x / LANES * ROWS;
    float dk[ROWS][C] = {}, dv[ROWS][C] = {};

    read(shared + l.floats(0), a.dim, of_keys(a, a.kv, b, kv_head), from, OWN, {0, a.dim});
    read(shared + l.floats(1), a.dim, of_keys(a, a.kv, b, a.kv_heads + kv_head), from, OWN, {0, a.dim});
    for (int i = 0; i < group * a.runs; i++) {
        int head = kv_head * group + i / a.runs;
        int64_t s_run = i % a.runs * a.batch + b, begin = begin_of(a, s_run), start = from > begin ? from - begin : 0;
        for (int64_t q0 = start / LANES * LANES; q0 < a.rows; q0 += LANES) {
            int64_t t = q0 + lane, at = (s_run * a.heads + head) * a.rows + t, first = first_key(a, s_run, t);
            /* First keys never decrease, so no later tile sees any of these keys. */
            if (first_key(a, s_run, q0) >= from + OWN)
                break;
            source queries = {s.tile[0], of_queries(a, a.q, s_run, head)};
            source douts = {s.tile[1], of_out(a, a.dout, s_run, head)};
            float p[ROWS] = {}, dp[ROWS] = {}, lse = t < a.rows ? a.lse[at] : 0, delta = t < a.rows ? a.delta[at] : 0;
            for (int part = 0; part < PARTS<C>; part++)
                two_dots<C>(p, dp, s, queries, douts, q0, a.dim, part);
            for (int j = 0; j < ROWS; j++) {
                bool seen = t < a.rows && own + j <= begin + t && own + j >= first;
                float x = capped_score(a, p[j] * a.scale);
                p[j] = seen ? expf(x - lse) : 0;
                dp[j] = seen ? before_cap(a, x, p[j] * (dp[j] - delta)) : 0;
            }
            add_weighted<C>(dv, s, p, s.tile[1], a.dim, PARTS<C> - 1);
            add_weighted<C>(dk, s, dp, s.tile[0], a.dim, PARTS<C> - 1);
            SH_UNROLL
            for (int part = 0; part < PARTS<C> - 1; part++) {
                take_both<C>(queries, douts, q0, a.dim, part);
                add_weighted<C>(dv, s, p, s.tile[1], a.dim, part);
                add_weighted<C>(dk, s, dp, s.tile[0], a.dim, part);
            }
        }
    }
    SH_UNROLL
    for (int i = 0; i < ROWS; i++) {
        write<C>(of_keys(a, a.dkv, b, kv_head), own + i, dk[i], a.scale, a.dim);
        write<C>(of_keys(a, a.dkv, b, a.kv_heads + kv_head), own + i, dv[i], 1, a.dim);
    }
}

/* Blocks of OWN rows of each head. */
dim3 grid_of(int64_t heads, int64_t rows)
{
    return dim3((unsigned)heads, (unsigned)((rows + OWN - 1) / OWN));
}

size_t shared_bytes(const sh_attention &a, int owned)
{
    return layout(a.dim).floats(owned) * sizeof(float);
}

template <int C, class A> sh_rc run(const A &a, bool backward, void *queue)
{
    dim3 queries = grid_of(a.runs * a.batch * a.heads, a.rows), keys = grid_of(a.batch * a.kv_heads, a.seq);
    if (!backward)
        return SH_LAUNCH((forward<C, A>), queries, dim3(THREADS), shared_bytes(a, 1), queue, a);
    SH_TRY(SH_LAUNCH((backward_queries<C, A>), queries, dim3(THREADS), shared_bytes(a, 2), queue, a));
    return SH_LAUNCH((backward_keys<C, A>), keys, dim3(THREADS), shared_bytes(a, 2), queue, a);
}

/* By columns per lane: head sizes up to 64, 128, 256 and 512. */
template <class A> sh_rc run_any(const A &a, bool backward, void *queue)
{
    SH_REQUIRE(a.dim <= SH_ATTENTION_MAX_DIM);
    if (a.dim <= 128)
        return a.dim <= 64 ? run<2>(a, backward, queue) : run<4>(a, backward, queue);
    return a.dim <= WHOLE ? run<8>(a, backward, queue) : run<16>(a, backward, queue);
}

sh_rc run_with(const sh_attention &a, float cap, bool backward, void *queue)
{
    capped c;
    if (cap == 0)
        return run_any(a, backward, queue);
    static_cast<sh_attention &>(c) = a;
    c.cap = cap;
    return run_any(c, backward, queue);
}
} // namespace

sh_rc sh_attention_fits(int dim, size_t shared)
{
    const char *gpu = "this GPU";
    size_t most = sh_shared_limit(&gpu);
    if (shared <= most)
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "attention on a GPU: head size %d takes %zu bytes of shared memory, of which a block on %s has %zu; "
                   "use another GPU, or training.device=cpu",
                   dim, shared, gpu, most);
}

sh_rc sh_attention_any_check(const struct sh_attention *a, bool backward)
{
    return sh_attention_fits(a->dim, shared_bytes(*a, backward ? 2 : 1));
}

sh_rc sh_attention_any(const struct sh_attention *a, float cap, void *queue)
{
    return run_with(*a, cap, false, queue);
}

sh_rc sh_attention_any_bwd(const struct sh_attention *a, float cap, void *queue)
{
    return run_with(*a, cap, true, queue);
}

sh_rc sh_attention_delta(const struct sh_attention *a, void *queue)
{
    dim3 blocks((unsigned)sh_ceil_div(a->runs * a->batch * a->rows * a->heads, WARPS));
    return SH_LAUNCH(row_sums, blocks, dim3(THREADS), 0, queue, *a);
}
