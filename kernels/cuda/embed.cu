/* Token and position embedding. Forward: N rows of C read from wte (anywhere in it) and written, and as many read
 * from wpe: 8 bytes per element in f32, 12 with wpe (bf16: half). Backward: dx read once for dwte and once for dwpe,
 * and all of dwte (4 V C bytes) written if it is overwritten, which is by far the largest part.
 *
 * dwte has a sum for each token over the places where it occurs; if documents restart positions, so has dwpe for each
 * position. Rows are sorted by token with a counting sort, and rows of one token stay in their own order, so that
 * each sum has one order. Atomics touch integers only, and what their order leaves undetermined is settled
 * afterwards.
 *
 * Tokens are inside the vocabulary: whoever reads data checks them. One that is not makes its row NaN and gets no
 * gradient. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/work.h"

namespace
{
/* A token outside the vocabulary makes a row of NaN, which the guard finds; reading past wte could crash. */
template <class T> struct embed {
    T *x;
    const T *wte, *wpe;            /* wpe NULL: none */
    const int32_t *tokens, *docs;  /* docs NULL: positions of the sequence */
    int64_t seq, V, C, first, all; /* words of wte, the first of them, and those of all ranks */

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t row = i / C, c = i - row * C, token = tokens[row], word = token - first;
        float v[N], p[N] = {0};
        if (word >= 0 && word < V)
            sh_load(v, wte + word * C + c);
        else
            for (int k = 0; k < N; k++)
                v[k] = token < 0 || token >= all ? nanf("") : 0;
        if (wpe)
            sh_load(p, wpe + (row % seq - (docs ? docs[row] : 0)) * C + c);
        for (int k = 0; k < N; k++)
            v[k] += p[k];
        sh_store(x + i, v);
    }
};

/* dwpe[t] = sum of dx over the batch; positions past T had no part in x. */
template <class T> struct positions {
    float *dwpe;
    const T *dx;
    int64_t batch, seq, C;
    bool add;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float sum[N] = {0};
        for (int64_t b = 0; b < batch && i < seq * C; b++) {
            float v[N];
            sh_load(v, dx + b * seq * C + i);
            for (int k = 0; k < N; k++)
                sum[k] += v[k];
        }
        sh_put(dwpe + i, sum, add);
    }
};

/* The rows in which each token, or each position of a document, occurs: order[start[v]] up to order[start[v + 1]]. */
struct buckets {
    const int32_t *tokens, *docs; /* docs: the key of a row is its position */
    int64_t rows, V, seq, first;  /* first: the word of row 0 */
    int32_t *start;               /* [V+1] */
    int32_t *next;                /* [V]: counts, then where the next row goes */
    int32_t *loose;               /* [rows]: by token, each token's rows in arrival order */
    int32_t *order;               /* [rows]: by token and row */
    int32_t *total;               /* [scan blocks]: rows of each block of tokens */

    __device__ __forceinline__ int32_t key(int64_t row) const
    {
        return docs ? (int32_t)(row % seq) - docs[row] : tokens[row] - (int32_t)first;
    }
};

/* The counts of the last call are still there. */
struct clear {
    buckets b;
    template <int N> __device__ __forceinline__ void at(int64_t v) const
    {
        b.next[v] = 0;
    }
};

/* The order of atomic additions does not matter for a count. */
struct count {
    buckets b;
    template <int N> __device__ __forceinline__ void at(int64_t row) const
    {
        int32_t token = b.key(row);
        if (token >= 0 && token < b.V)
            atomicAdd(&b.next[token], 1);
    }
};

/* A row takes the next place of its token; which place depends on the order of the threads, and settle() corrects
 * that. */
struct scatter {
    buckets b;
    template <int N> __device__ __forceinline__ void at(int64_t row) const
    {
        int32_t token = b.key(row);
        if (token >= 0 && token < b.V)
            b.loose[atomicAdd(&b.next[token], 1)] = (int32_t)row;
    }
};

/* Each row finds its place among the rows of its token. The cost is the square of their number, which is little even
 * for the most common words, and spread over all threads if all tokens are the same. */
struct settle {
    buckets b;
    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        if (i >= b.start[b.V])
            return;
        int32_t row = b.loose[i], key = b.key(row), begin = b.start[key], end = b.start[key + 1], place = begin;
        for (int32_t j = begin; j < end; j++)
            place += b.loose[j] < row;
        b.order[place] = row;
    }
};

constexpr int SCAN_THREADS = SH_CUDA_SCAN_THREADS, SUM_WARPS = 8, SUM_THREADS = SUM_WARPS * 32;

/* The sum of v over the threads before this one. */
__device__ __forceinline__ int32_t sum_before(int32_t v)
{
    SH_SHARED(int32_t, warp_sums, 32);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t upto = v;

    for (unsigned by = 1; by < 32; by *= 2) {
        int32_t before = __shfl_up_sync(~0u, upto, by);
        upto += lane >= by ? before : 0;
    }
    if (lane == 31)
        warp_sums[warp] = upto;
    __syncthreads();
    for (unsigned w = 0; w < warp; w++)
        upto += warp_sums[w];
    return upto - v;
}

/* From counts to places, in two steps; a thread handles one token. */
__global__ void __launch_bounds__(SCAN_THREADS) add_counts(buckets b)
{
    int64_t v = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    int32_t sum[1] = {v < b.V ? b.next[v] : 0};

    sh_block_sum(sum);
    if (threadIdx.x == 0)
        b.total[blockIdx.x] = sum[0];
}

/* Offsets from earlier blocks come from `total`, those within the block from sum_before(). */
__global__ void __launch_bounds__(SCAN_THREADS) scan(buckets b)
{
    int64_t v = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    int32_t n = v < b.V ? b.next[v] : 0, before[1] = {0};

    for (unsigned i = threadIdx.x; i < blockIdx.x; i += SCAN_THREADS)
        before[0] += b.total[i];
    sh_block_sum(before);
    int32_t at = before[0] + sum_before(n);
    if (v < b.V)
        b.start[v] = b.next[v] = at;
    if (v == b.V - 1)
        b.start[b.V] = at + n;
}

/* A counting sort in six launches. Afterwards order[start[v]] to order[start[v + 1]] are the rows of token v,
 * ascending. */
sh_rc sort_rows(const buckets &b, void *queue)
{
    SH_TRY(sh_map<1>("clear counts", clear{b}, b.V, false, queue));
    SH_TRY(sh_map<1>("count tokens", count{b}, b.rows, false, queue));
    dim3 grid((unsigned)sh_cuda_scan_blocks(b.V));
    SH_TRY(SH_LAUNCH(add_counts, grid, dim3(SCAN_THREADS), 0, queue, b));
    SH_TRY(SH_LAUNCH(scan, grid, dim3(SCAN_THREADS), 0, queue, b));
    SH_TRY(sh_map<1>("scatter rows", scatter{b}, b.rows, false, queue));
    return sh_map<1>("settle rows", settle{b}, b.rows, false, queue);
}

/* dwte [V,C] from dx [rows,C]. */
template <class T> struct gather {
    float *dwte;
    const T *dx;
    int64_t C;
    bool add, vectors;
};

/* Columns [c, c + N) of the rows order[i], order[i + step], ... before end. */
template <class T, int N>
__device__ __forceinline__ void add_rows(float (&sum)[N], const gather<T> &g, const buckets &b, int32_t i, int32_t end,
                                         int32_t step, int64_t c)
{
    for (; i < end; i += step) {
        float v[N];
        sh_load_some(v, g.dx + b.order[i] * g.C + c, g.C - c, g.vectors);
        for (int k = 0; k < N; k++)
            sum[k] += v[k];
    }
}

template <class T, int N>
/* One token's columns: added to the earlier values, or overwriting them. */
__device__ __forceinline__ void put_sum(const gather<T> &g, int64_t v, int64_t c, float (&sum)[N], bool vectors)
{
    float *to = g.dwte + v * g.C + c, old[N];

    if (g.add) {
        sh_load_some(old, to, g.C - c, vectors);
        for (int k = 0; k < N; k++)
            sum[k] += old[k];
    }
    sh_store_some(to, sum, g.C - c, vectors);
}

/* A block handles 32 N columns of eight tokens at a time: one warp per token, and all warps together for each token
 * that occurs in many places, one token after another. */
template <class T> __global__ void __launch_bounds__(SUM_THREADS) sum_rows(gather<T> g, buckets b, bool out_vectors)
{
    constexpr int N = SH_WIDTH<T>, MANY = 64;
    SH_SHARED(float, sums, SUM_WARPS *N * 32);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t c = ((int64_t)blockIdx.y * 32 + lane) * N;

    for (int64_t first = (int64_t)blockIdx.x * SUM_WARPS; first < b.V; first += (int64_t)gridDim.x * SUM_WARPS) {
        /* A token with few rows is summed by one warp, in row order. With `add`, tokens without rows are left alone;
         * without it they become 0. */
        int64_t own = first + warp;
        int32_t n = own < b.V ? b.start[own + 1] - b.start[own] : 0;
        if (own < b.V && n <= MANY && (n || !g.add)) {
            float sum[N] = {0};
            add_rows(sum, g, b, b.start[own], b.start[own + 1], 1, c);
            put_sum(g, own, c, sum, out_vectors);
        }
        for (int64_t v = first; v < first + SUM_WARPS && v < b.V; v++) {
            if (b.start[v + 1] - b.start[v] <= MANY)
                continue;
            float sum[N] = {0};
            /* Many rows: warp w takes rows w, w + 8, ..., and the eight sums are added in the order of the warps. */
            add_rows(sum, g, b, b.start[v] + (int32_t)warp, b.start[v + 1], SUM_WARPS, c);
            for (int k = 0; k < N; k++)
                sums[(warp * N + k) * 32 + lane] = sum[k];
            __syncthreads();
            for (int k = 0; k < N; k++)
                sum[k] = 0;
            for (int k = 0; k < N && warp == 0; k++)
                for (int w = 0; w < SUM_WARPS; w++)
                    sum[k] += sums[(w * N + k) * 32 + lane];
            if (warp == 0)
                put_sum(g, v, c, sum, out_vectors);
            __syncthreads();
        }
    }
}

/* The call's scratch, cut into pieces; see sh_cuda_embed_bwd_ints(). */
buckets buckets_of(const struct sh_op_call *call, int out)
{
    buckets b = {};
    b.tokens = sh_data<int32_t>(&call->in[1]);
    b.docs = out == 1 ? sh_data<int32_t>(&call->in[2]) : NULL;
    b.seq = call->in[1].dim[1];
    b.rows = sh_elems(&call->in[1]);
    b.V = call->out[out].dim[0];
    b.first = call->attr->part.first;
    b.next = static_cast<int32_t *>(call->work);
    b.start = b.next + b.V;
    b.loose = b.start + b.V + 1;
    b.order = b.loose + b.rows;
    b.total = b.order + b.rows;
    return b;
}

/* dwte (out 0) by tokens, or dwpe (out 1) by positions of documents. */
template <class T> sh_rc sorted_gradients(const struct sh_op_call *call, int out)
{
    constexpr int N = SH_WIDTH<T>;
    buckets b = buckets_of(call, out);
    gather<T> g = {sh_data<float>(&call->out[out]), sh_data<T>(&call->in[0]), call->out[out].dim[1],
                   sh_op_adds(call, out), false};
    g.vectors = sh_aligned<N>(g.dx, g.C);
    dim3 grid(sh_blocks(sh_ceil_div(b.V, SUM_WARPS)), (unsigned)sh_ceil_div(g.C, 32 * N));

    SH_TRY(sort_rows(b, call->queue));
    return SH_LAUNCH(sum_rows<T>, grid, dim3(SUM_THREADS), 0, call->queue, g, b, sh_aligned<N>(g.dwte, g.C));
}

/* One thread sums each position over the batch, in order. */
template <class T> sh_rc position_gradients(const struct sh_op_call *call)
{
    constexpr int N = 4; /* 16 bytes of dwpe */
    const struct sh_operand *dx = &call->in[0], *dwpe = &call->out[1];

    if (call->in[2].data)
        return sorted_gradients<T>(call, 1);
    positions<T> f = {sh_data<float>(dwpe), sh_data<T>(dx), dx->dim[0], dx->dim[1], dx->dim[2], sh_op_adds(call, 1)};

    return sh_map<N>("position gradients", f, sh_elems(dwpe), sh_aligned<N>(f.dwpe, f.C) && sh_aligned<N>(f.dx, f.C),
                     call->queue);
}
} // namespace

extern "C" sh_rc sh_cuda_embed(const struct sh_op_call *call)
{
    const struct sh_operand *tokens = &call->in[0], *wte = &call->in[1], *x = &call->out[0];

    return sh_by_act(x->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        embed<T> f = {sh_data<T>(x),
                      sh_data<T>(wte),
                      sh_data<T>(&call->in[2]),
                      sh_data<int32_t>(tokens),
                      sh_data<int32_t>(&call->in[3]),
                      tokens->dim[1],
                      wte->dim[0],
                      wte->dim[1],
                      call->attr->part.first,
                      call->attr->part.all ? call->attr->part.all : wte->dim[0]};
        bool vectors = sh_aligned<N>(f.x, f.C) && sh_aligned<N>(f.wte, f.C) && sh_aligned<N>(f.wpe, f.C);
        return sh_map<N>("embed", f, sh_elems(x), vectors, call->queue);
    });
}

extern "C" sh_rc sh_cuda_embed_bwd(const struct sh_op_call *call)
{
    SH_REQUIRE(call->work_bytes >= sh_cuda_embed_bwd_work_bytes(call));
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        if (call->out[0].data)
            SH_TRY(sorted_gradients<T>(call, 0));
        return call->out[1].data ? position_gradients<T>(call) : SH_OK;
    });
}
