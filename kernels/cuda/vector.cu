/* Operations on whole vectors, all bound by memory. Bytes per element, f32 (bf16: half): add 12, scale 8, cast 6,
 * copy 8, accumulate 12. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"

namespace
{
template <class T> struct add {
    T *y;
    const T *a, *b;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float u[N], v[N];
        sh_load(u, a + i);
        sh_load(v, b + i);
        for (int k = 0; k < N; k++)
            u[k] += v[k];
        sh_store(y + i, u);
    }
};

template <class T> sh_rc run_add(T *y, const T *a, const T *b, int64_t n, void *queue)
{
    constexpr int N = SH_WIDTH<T>;
    bool vectors = sh_aligned<N>(y, 0) && sh_aligned<N>(a, 0) && sh_aligned<N>(b, 0);
    return sh_map<N>("add", add<T>{y, a, b}, n, vectors, queue);
}

template <class T> struct scale {
    T *y;
    const T *x;
    float by;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float v[N];
        sh_load(v, x + i);
        for (int k = 0; k < N; k++)
            v[k] *= by;
        sh_store(y + i, v);
    }
};

template <class T> sh_rc run_scale(const struct sh_op_call *call)
{
    constexpr int N = SH_WIDTH<T>;
    scale<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), call->attr->scale.by};
    return sh_map<N>("scale", f, sh_elems(&call->out[0]), sh_aligned<N>(f.y, 0) && sh_aligned<N>(f.x, 0), call->queue);
}

/* Index i is in the order of heads; the other index is in the order of q, k and v. */
template <class T> struct regroup {
    T *y;
    const T *x;
    int64_t H, D;
    bool inverse;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t row = 3 * H * D, n = i / row, h = i % row / (3 * D), p = i / D % 3;
        int64_t by_part = n * row + (p * H + h) * D + i % D;
        T v[N];
        sh_load_raw(v, x + (inverse ? by_part : i));
        sh_store_raw(y + (inverse ? i : by_part), v);
    }
};

template <class T> sh_rc run_regroup(const struct sh_op_call *call)
{
    constexpr int N = SH_WIDTH<T>;
    regroup<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), call->attr->regroup.heads,
                    call->attr->regroup.head_dim, call->attr->regroup.inverse};
    return sh_map<N>("regroup", f, sh_elems(&call->out[0]), sh_aligned<N>(f.y, f.D) && sh_aligned<N>(f.x, f.D),
                     call->queue);
}

template <class Y, class A> struct cast {
    Y *y;
    const A *a;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float v[N];
        sh_load(v, a + i);
        sh_store(y + i, v);
    }
};

template <class Y, class A> sh_rc run_cast(const struct sh_op_call *call)
{
    constexpr int N = 4; /* 16 bytes of the wider type */
    cast<Y, A> f = {sh_data<Y>(&call->out[0]), sh_data<A>(&call->in[0])};
    return sh_map<N>("cast", f, sh_elems(&call->out[0]), sh_aligned<N>(f.y, 0) && sh_aligned<N>(f.a, 0), call->queue);
}

template <class Y> struct scaled {
    Y *y;
    const float *a;
    float by;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float v[N];
        sh_load(v, a + i);
        for (int k = 0; k < N; k++)
            v[k] *= by;
        sh_store(y + i, v);
    }
};

template <class Y> sh_rc run_scale(Y *y, const float *a, float by, int64_t n, void *queue)
{
    constexpr int N = 4; /* 16 bytes of the wider type */
    return sh_map<N>("scale", scaled<Y>{y, a, by}, n, sh_aligned<N>(y, 0) && sh_aligned<N>(a, 0), queue);
}

/* Copy with a type of the same size. */
template <class T> struct copy {
    T *y;
    const T *a;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        T v[N];
        sh_load_raw(v, a + i);
        sh_store_raw(y + i, v);
    }
};

template <class T> sh_rc run_copy(const struct sh_op_call *call)
{
    constexpr int N = SH_WIDTH<T>;
    copy<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0])};
    return sh_map<N>("copy", f, sh_elems(&call->out[0]), sh_aligned<N>(f.y, 0) && sh_aligned<N>(f.a, 0), call->queue);
}
} // namespace

extern "C" sh_rc sh_cuda_add(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return run_add(sh_data<T>(&call->out[0]), sh_data<const T>(&call->in[0]), sh_data<const T>(&call->in[1]),
                       sh_elems(&call->out[0]), call->queue);
    });
}

/* The other rows too: the host does not know where those that live end. */
extern "C" sh_rc sh_cuda_row_add(const struct sh_op_call *call)
{
    return sh_cuda_add(call);
}

extern "C" sh_rc sh_cuda_scale(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) { return run_scale<decltype(zero)>(call); });
}

extern "C" sh_rc sh_cuda_regroup(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) { return run_regroup<decltype(zero)>(call); });
}

extern "C" sh_rc sh_cuda_accumulate(const struct sh_op_call *call)
{
    float *y = sh_data<float>(&call->out[0]);
    return run_add<float>(y, y, sh_data<float>(&call->in[0]), sh_elems(&call->out[0]), call->queue);
}

extern "C" sh_rc sh_cuda_cast(const struct sh_op_call *call)
{
    enum sh_dtype from = call->in[0].dtype, to = call->out[0].dtype;

    if (from == SH_F32 && to == SH_BF16)
        return run_cast<sh_bf16, float>(call);
    if (from == SH_BF16 && to == SH_F32)
        return run_cast<float, sh_bf16>(call);
    return sh_fail(SH_E_BUG, "cast from %s to %s", sh_dtype_name(from), sh_dtype_name(to));
}

extern "C" sh_rc sh_cuda_scale_into(const float *a, float by, int64_t n, enum sh_dtype type, void *y, void *queue)
{
    return sh_by_act(type, [&](auto zero) { return run_scale(static_cast<decltype(zero) *>(y), a, by, n, queue); });
}

extern "C" sh_rc sh_cuda_copy(const struct sh_op_call *call)
{
    switch (sh_dtype_bytes(call->out[0].dtype)) {
    case 1: return run_copy<uint8_t>(call);
    case 2: return run_copy<uint16_t>(call);
    case 4: return run_copy<uint32_t>(call);
    default: return run_copy<uint64_t>(call);
    }
}
