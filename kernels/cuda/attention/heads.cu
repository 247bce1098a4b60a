/* Heads between products and attention: those of latent attention (an element to a thread, or a vector if all parts of a head
 * are whole vectors), and values that are divided by their root mean square (a warp to a head of a row, one more to what is
 * copied). Bound by memory: each byte is read and written once, but values are read twice. Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"

namespace
{
/* ---- latent attention ---- */

struct sizes {
    int64_t H, P, R, V, D;
};

sizes sizes_of(const struct sh_op_call *call)
{
    int64_t P = call->attr->latent.plain, R = call->attr->latent.turned;

    return {call->attr->latent.heads, P, R, call->attr->latent.value, P + R};
}

/* Element d of part 0, 1, 2 (query, key, value) of head h of a row, in qkv. */
__device__ __forceinline__ int64_t in_qkv(const sizes &s, int64_t row, int part, int64_t h, int64_t d)
{
    return ((row * 3 + part) * s.H + h) * s.D + d;
}

/* y[i .. i + N) = from, or zeros if that is NULL. */
template <int N, class T> __device__ __forceinline__ void move(T *y, const T *from)
{
    T v[N] = {0};

    if (from)
        sh_load_raw(v, from);
    sh_store_raw(y, v);
}

template <class T> struct latent_heads {
    T *qkv;
    const T *q, *kv, *turned;
    sizes s;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t d = i % s.D, head = i / s.D, h = head % s.H, part = head / s.H % 3, row = head / (3 * s.H);
        const T *pair = kv + (row * s.H + h) * (s.P + s.V), *query = q + (row * s.H + h) * s.D;

        move<N>(qkv + i, part == 0   ? query + (d < s.R ? d + s.P : d - s.R)
                         : part == 2 ? (d < s.V ? pair + s.P + d : (const T *)NULL)
                         : d < s.R   ? turned + row * s.R + d
                                     : pair + d - s.R);
    }
};

template <class T> struct latent_queries {
    T *dq;
    const T *dqkv;
    sizes s;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t d = i % s.D, head = i / s.D;

        move<N>(dq + i, dqkv + in_qkv(s, head / s.H, 0, head % s.H, d < s.P ? d + s.R : d - s.P));
    }
};

template <class T> struct latent_pairs {
    T *dkv;
    const T *dqkv;
    sizes s;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t d = i % (s.P + s.V), head = i / (s.P + s.V);

        move<N>(dkv + i, dqkv + (d < s.P ? in_qkv(s, head / s.H, 1, head % s.H, d + s.R)
                                         : in_qkv(s, head / s.H, 2, head % s.H, d - s.P)));
    }
};

/* The sum over heads, in their order. */
template <class T> struct latent_turned {
    T *dturned;
    const T *dqkv;
    sizes s;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float sum[N] = {0};

        for (int64_t h = 0; h < s.H; h++) {
            float v[N];
            sh_load(v, dqkv + in_qkv(s, i / s.R, 1, h, i % s.R));
            for (int k = 0; k < N; k++)
                sum[k] += v[k];
        }
        sh_store(dturned + i, sum);
    }
};

/* Heads of `from` elements to heads of `to`, of which those behind the first are left out, or are 0. */
template <class T> struct resized {
    T *y;
    const T *x;
    int64_t from, to;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t head = i / to, d = i % to;

        move<N>(y + i, d < from ? x + head * from + d : (const T *)NULL);
    }
};

template <class T> bool vectors(const struct sh_op_call *call, const sizes &s)
{
    constexpr int N = SH_WIDTH<T>;
    bool whole = s.P % N == 0 && s.R % N == 0 && s.V % N == 0;

    for (int i = 0; i < 3; i++)
        whole = whole && sh_aligned<N>(sh_data<T>(&call->in[i]), 0) && sh_aligned<N>(sh_data<T>(&call->out[i]), 0);
    return whole;
}

template <class T, class F> sh_rc run(const struct sh_op_call *call, const char *name, const F &f, int out)
{
    return sh_map<SH_WIDTH<T>>(name, f, sh_elems(&call->out[out]), vectors<T>(call, sizes_of(call)), call->queue);
}

/* ---- norms of values ---- */

constexpr int WARPS = 8, LANES = 32;

/* x [rows,in], y [rows,out]: elements [0, keys) are queries; values have K heads of D and come from element `from` on. */
template <class T> struct values {
    T *y, *dx;
    const T *x, *dy;
    float *rstd;
    int64_t rows, keys, width, from, in, out, D, K;
    float eps;

    __device__ __forceinline__ void copy(T *to, const T *of, int64_t n, unsigned lane) const
    {
        for (int64_t c = lane; c < n; c += LANES)
            to[c] = of[c];
    }

    /* Of elements d, 0 behind a head. Without a branch, so that all lanes of a warp meet in the sum. */
    __device__ __forceinline__ float product(const T *a, const T *b, int64_t d) const
    {
        int64_t at = d < D ? d : D - 1;
        return (d < D ? sh_widen(a[at]) : 0) * sh_widen(b[at]);
    }

    __device__ __forceinline__ void make(int64_t row, int64_t head, unsigned lane) const
    {
        const T *v = x + row * in + from + head * D;
        float sum = 0;

        if (head == K) {
            copy(y + row * out, x + row * in, keys + width, lane);
            return;
        }
        for (int64_t first = 0; first < D; first += LANES)
            sum += product(v, v, first + lane);
        float by = 1 / sqrtf(sh_warp_reduce(sum, sh_add()) / (float)D + eps);
        for (int64_t d = lane; d < D; d += LANES)
            y[row * out + keys + width + head * D + d] = sh_narrow<T>(sh_widen(v[d]) * by);
        if (lane == 0)
            rstd[row * K + head] = by;
    }

    /* With n = x rstd: dx = rstd (dv - n mean(dv n)), and the gradient of the key if that is the value. */
    __device__ __forceinline__ void back(int64_t row, int64_t head, unsigned lane) const
    {
        int64_t key = row * out + keys + head * D;
        const T *v = x + row * in + from + head * D, *dv = dy + key + width;
        float sum = 0;

        if (head == K) {
            copy(dx + row * in, dy + row * out, from, lane);
            return;
        }
        for (int64_t first = 0; first < D; first += LANES)
            sum += product(dv, v, first + lane);
        float by = rstd[row * K + head], mean = sh_warp_reduce(sum, sh_add()) * by / (float)D;
        for (int64_t d = lane; d < D; d += LANES) {
            float more = from == keys ? sh_widen(dy[key + d]) : 0;
            dx[row * in + from + head * D + d] =
                sh_narrow<T>(by * (sh_widen(dv[d]) - sh_widen(v[d]) * by * mean) + more);
        }
    }
};

template <class T> __global__ void __launch_bounds__(WARPS *LANES) values_kernel(values<T> f)
{
    int64_t each = f.K + 1, step = (int64_t)gridDim.x * WARPS;

    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES; i < f.rows * each; i += step) {
        if (f.dy)
            f.back(i / each, i % each, threadIdx.x % LANES);
        else
            f.make(i / each, i % each, threadIdx.x % LANES);
    }
}

template <class T> values<T> values_of(const struct sh_op_call *call)
{
    values<T> f = {};

    f.D = call->attr->values.head_dim;
    f.K = call->attr->values.kv_heads;
    f.keys = call->attr->values.heads * f.D;
    f.width = f.K * f.D;
    f.in = f.keys + call->attr->values.kv_in * f.D;
    f.from = f.in - f.width;
    f.out = f.keys + 2 * f.width;
    f.eps = call->attr->values.eps;
    f.rows = call->in[0].dim[0];
    return f;
}

template <class T> sh_rc launch(const values<T> &f, void *queue)
{
    return SH_LAUNCH(values_kernel<T>, dim3(sh_blocks(sh_ceil_div(f.rows * (f.K + 1), WARPS))), dim3(WARPS * LANES), 0,
                     queue, f);
}
} // namespace

extern "C" sh_rc sh_cuda_latent_heads(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        latent_heads<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), sh_data<T>(&call->in[1]),
                             sh_data<T>(&call->in[2]), sizes_of(call)};
        return run<T>(call, "latent_heads", f, 0);
    });
}

extern "C" sh_rc sh_cuda_latent_heads_bwd(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        const T *dqkv = sh_data<T>(&call->in[0]);
        sizes s = sizes_of(call);
        latent_queries<T> q = {sh_data<T>(&call->out[0]), dqkv, s};
        latent_pairs<T> kv = {sh_data<T>(&call->out[1]), dqkv, s};
        latent_turned<T> turned = {sh_data<T>(&call->out[2]), dqkv, s};
        if (q.dq)
            SH_TRY(run<T>(call, "latent_heads_bwd q", q, 0));
        if (kv.dkv)
            SH_TRY(run<T>(call, "latent_heads_bwd kv", kv, 1));
        return turned.dturned ? run<T>(call, "latent_heads_bwd turned", turned, 2) : SH_OK;
    });
}

extern "C" sh_rc sh_cuda_latent_values(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        sizes s = sizes_of(call);
        resized<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), s.D, s.V};
        return run<T>(call, "latent_values", f, 0);
    });
}

extern "C" sh_rc sh_cuda_latent_values_bwd(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        sizes s = sizes_of(call);
        resized<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), s.V, s.D};
        return run<T>(call, "latent_values_bwd", f, 0);
    });
}

extern "C" sh_rc sh_cuda_value_norm(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        values<T> f = values_of<T>(call);
        f.y = sh_data<T>(&call->out[0]);
        f.x = sh_data<T>(&call->in[0]);
        f.rstd = sh_data<float>(&call->out[1]);
        return launch(f, call->queue);
    });
}

extern "C" sh_rc sh_cuda_value_norm_bwd(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        values<T> f = values_of<T>(call);
        f.dx = sh_data<T>(&call->out[0]);
        f.dy = sh_data<T>(&call->in[0]);
        f.x = sh_data<T>(&call->in[1]);
        f.rstd = sh_data<float>(&call->in[2]);
        return launch(f, call->queue);
    });
}
