/* The cache of keys and values: copies into it, attention over it, and the last row of a step.
 *
 * Attention: a block handles one query. It walks the keys in tiles of as many keys as it has threads. Each thread
 * first takes one key and its score, then some columns, for which it adds up the values weighted by the results. Keys
 * of heads that share them come from the L2 cache after the first head. Floor: the bytes of keys and values up to the
 * position, once per token. Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"

namespace
{
constexpr int THREADS = 128;

/* Element i counts the keys' and values' elements in the rows of qkv. */
template <class T> struct put {
    T *kv;
    const T *qkv;
    const int32_t *at, *count;
    int64_t seq, row, positions, kv_row;

    template <int N> __device__ __forceinline__ void at_row(int64_t n, int64_t column) const
    {
        T raw[N];
        int64_t b = n / seq;
        if (n % seq >= count[b])
            return;
        sh_load_raw(raw, qkv + (n + 1) * row - kv_row + column);
        sh_store_raw(kv + (b * positions + at[n]) * kv_row + column, raw);
    }
};

template <class T> struct put_map {
    put<T> p;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        p.template at_row<N>(i / p.kv_row, i % p.kv_row);
    }
};

template <class T> struct pick {
    T *y;
    const T *x;
    const int32_t *count;
    int64_t seq, C;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        T raw[N];
        int64_t b = i / C, t = count[b] ? count[b] - 1 : 0;
        sh_load_raw(raw, x + (b * seq + t) * C + i % C);
        sh_store_raw(y + i, raw);
    }
};

template <class T> struct cached {
    T *o;
    const T *qkv, *kv;
    const int32_t *at, *count;
    int64_t seq, row, positions, kv_row;
    int heads, kv_heads, dim;
    int64_t window;
    float scale, cap; /* cap: of scores; 0: none */
};

/* A sink needs the log-sum-exp too. A type of its own: the pointer costs registers, which attention without sinks has
 * no use for. */
template <class T> struct summed : cached<T> {
    float *lse;
};

/* Shared memory of a block, in floats: query, output, weights of a tile. */
__device__ __host__ __forceinline__ int shared_floats(int dim)
{
    return 2 * dim + THREADS;
}

template <class T> __device__ __forceinline__ float score(const cached<T> &c, const float *q, const T *key)
{
    float sum = 0;

    for (int d = 0; d < c.dim; d++)
        sum += q[d] * sh_widen(key[d]);
    sum *= c.scale;
    return c.cap == 0 ? sum : c.cap * tanhf(sum / c.cap);
}

/* o [D] = o * shrink + weights [n] values [n,D], the values in order. */
template <class T>
__device__ __forceinline__ void add_values(const cached<T> &c, float *o, float shrink, const float *weights,
                                           const T *values, int n)
{
    for (int d = threadIdx.x; d < c.dim; d += THREADS) {
        float sum = o[d] * shrink;
        for (int j = 0; j < n; j++)
            sum += weights[j] * sh_widen(values[j * c.kv_row + d]);
        o[d] = sum;
    }
}

/* The largest score, and the sum of the exponentials that weighted the output. */
struct sums {
    float top, all;
};

/* Keys [0, n) of one head, whose first key and value are at k and v; o and weights are shared. */
template <class T>
__device__ __forceinline__ sums attend(const cached<T> &c, const float *q, float *o, float *weights, const T *k,
                                       const T *v, int64_t n)
{
    sums s = {-INFINITY, 0};

    for (int64_t k0 = 0; k0 < n; k0 += THREADS) {
        int tile = n - k0 < THREADS ? (int)(n - k0) : THREADS;
        float mine = (int)threadIdx.x < tile ? score(c, q, k + (k0 + threadIdx.x) * c.kv_row) : -INFINITY;
        float max[1] = {mine};
        sh_block_reduce(max, -INFINITY, sh_larger());
        float now = fmaxf(s.top, max[0]), shrink = expf(s.top - now), sum[1] = {expf(mine - now)};
        weights[threadIdx.x] = sum[0];
        sh_block_sum(sum);
        s = {now, s.all * shrink + sum[0]};
        __syncthreads();
        add_values(c, o, shrink, weights, v + k0 * c.kv_row, tile);
        __syncthreads();
    }
    return s;
}

template <class T> __device__ __forceinline__ void put_sum(const cached<T> &, int64_t, int64_t, int, sums)
{
}

/* -Inf over no keys. */
template <class T> __device__ __forceinline__ void put_sum(const summed<T> &c, int64_t b, int64_t t, int head, sums s)
{
    if (threadIdx.x == 0)
        c.lse[(b * c.heads + head) * c.seq + t] = s.top + logf(s.all);
}

template <class T, class C> __global__ void __launch_bounds__(THREADS) attention(C c)
{
    SH_DYNAMIC_SHARED(float, q);
    float *o = q + c.dim, *weights = o + c.dim;
    int64_t n = blockIdx.x / c.heads, b = n / c.seq;
    int head = (int)(blockIdx.x % c.heads), kv_head = head / (c.heads / c.kv_heads);
    int64_t keys = n % c.seq < c.count[b] ? c.at[n] + 1 : 0;
    const T *k = c.kv + b * c.positions * c.kv_row + kv_head * c.dim, *v = k + c.kv_heads * c.dim;

    for (int d = threadIdx.x; d < c.dim; d += THREADS) {
        q[d] = sh_widen(c.qkv[n * c.row + head * c.dim + d]);
        o[d] = 0;
    }
    __syncthreads();
    int64_t first = c.window && keys > c.window ? keys - c.window : 0;
    sums s = attend(c, q, o, weights, k + first * c.kv_row, v + first * c.kv_row, keys - first);
    float by = keys ? 1 / s.all : 0;
    put_sum(c, b, n % c.seq, head, s);
    for (int d = threadIdx.x; d < c.dim; d += THREADS)
        c.o[(n * c.heads + head) * c.dim + d] = sh_narrow<T>(o[d] * by);
}
} // namespace

extern "C" sh_rc sh_cuda_kv_put(const struct sh_op_call *call)
{
    const struct sh_operand *qkv = &call->in[0], *kv = &call->out[0];

    return sh_by_act(kv->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        put_map<T> f = {{sh_data<T>(kv), sh_data<T>(qkv), sh_data<int32_t>(&call->in[1]),
                         sh_data<int32_t>(&call->in[2]), qkv->dim[1], qkv->dim[2], kv->dim[1], kv->dim[2]}};
        bool vectors = sh_aligned<N>(f.p.kv, f.p.kv_row) && sh_aligned<N>(f.p.qkv, f.p.row);
        return sh_map<N>("kv_put", f, qkv->dim[0] * qkv->dim[1] * kv->dim[2], vectors, call->queue);
    });
}

extern "C" sh_rc sh_cuda_pick(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];

    return sh_by_act(x->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        pick<T> f = {sh_data<T>(y), sh_data<T>(x), sh_data<int32_t>(&call->in[1]), x->dim[1], x->dim[2]};
        bool vectors = sh_aligned<N>(f.x, f.C) && sh_aligned<N>(f.y, f.C);
        return sh_map<N>("pick", f, sh_elems(y), vectors, call->queue);
    });
}

extern "C" sh_rc sh_cuda_attention_cache(const struct sh_op_call *call)
{
    const struct sh_operand *qkv = &call->in[0], *kv = &call->in[1];
    const struct sh_op_attr *attr = call->attr;

    return sh_by_act(qkv->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        cached<T> c = {sh_data<T>(&call->out[0]),
                       sh_data<T>(qkv),
                       sh_data<T>(kv),
                       sh_data<int32_t>(&call->in[2]),
                       sh_data<int32_t>(&call->in[3]),
                       qkv->dim[1],
                       qkv->dim[2],
                       kv->dim[1],
                       kv->dim[2],
                       attr->attn.heads,
                       attr->attn.kv_heads,
                       attr->attn.head_dim,
                       attr->attn.window,
                       attr->attn.scale,
                       attr->attn.cap};
        dim3 blocks((unsigned)(qkv->dim[0] * qkv->dim[1] * c.heads));
        size_t bytes = shared_floats(c.dim) * sizeof(float);
        if (!call->out[1].data)
            return SH_LAUNCH((attention<T, cached<T>>), blocks, dim3(THREADS), bytes, call->queue, c);
        summed<T> with = {c, sh_data<float>(&call->out[1])};
        return SH_LAUNCH((attention<T, summed<T>>), blocks, dim3(THREADS), bytes, call->queue, with);
    });
}
