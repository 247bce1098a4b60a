/* Activations, all bound by memory. Bytes per element, f32 (bf16: half): gelu 8, gelu_bwd 12 (with the bias's
 * gradient: plus its partial sums), swiglu and geglu 12, their backward 20.
 *
 * GELU's tanh form is x sigmoid(2u): one exponential, and no cancellation where tanh is near -1. In bf16 the fast
 * exponential and division are accurate to 2^-17 or better, far below what is rounded away; with the exact ones the
 * arithmetic would take as long as the memory. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/work.h"

namespace
{
constexpr float TWO_ROOT_2_PI = 1.5957691216057308f; /* 2 sqrt(2/pi) */
constexpr float CUBIC = 0.044715f;
constexpr float ROOT_HALF = 0.70710678118654752f, DENSITY = 0.39894228040143268f; /* sqrt(1/2), 1/sqrt(2 pi) */

/* The activations, for elements of type T: value and slope. */
template <class T> struct gelu {
    /* (1 + tanh(u)) / 2, as a sigmoid of 2u = 2 sqrt(2/pi) (x + 0.044715 x^3). */
    static __device__ __forceinline__ float gate(float x)
    {
        return sh_sigmoid<T>(x * fmaf(TWO_ROOT_2_PI * CUBIC, x * x, TWO_ROOT_2_PI));
    }

    static __device__ __forceinline__ float value(float x)
    {
        return x * gate(x);
    }

    /* z is x where the slope of u matters; past 20 the sigmoid is 0 or 1 and z prevents 0 * slope from being 0 * Inf.
     * NaN stays NaN. */
    static __device__ __forceinline__ float slope(float x)
    {
        float s = gate(x), z = fminf(fmaxf(x, -20.0f), 20.0f), xs = x * s;
        /* x s (1 - s) (2u)' + s */
        return fmaf(fmaf(-s, xs, xs), fmaf(TWO_ROOT_2_PI * 3 * CUBIC, z * z, TWO_ROOT_2_PI), s);
    }
};

/* By the normal distribution function; erfcf loses no digits where it is small. */
template <class T> struct gelu_erf {
    static __device__ __forceinline__ float value(float x)
    {
        return 0.5f * x * erfcf(-x * ROOT_HALF);
    }

    static __device__ __forceinline__ float slope(float x)
    {
        return 0.5f * erfcf(-x * ROOT_HALF) + x * DENSITY * expf(-0.5f * x * x);
    }
};

template <class T> struct squared_relu {
    static __device__ __forceinline__ float value(float x)
    {
        return x < 0 ? 0 : x * x;
    }

    static __device__ __forceinline__ float slope(float x)
    {
        return 2 * fmaxf(x, 0);
    }
};

template <class T> struct silu {
    static __device__ __forceinline__ float value(float x)
    {
        return x * sh_sigmoid<T>(x);
    }

    static __device__ __forceinline__ float slope(float x)
    {
        float s = sh_sigmoid<T>(x);
        return s * (1.0f + x * (1.0f - s));
    }
};

/* For sh_map(): elements [i, i + N), read and written as vectors. */
template <template <class> class A, class T> struct plain {
    T *y;
    const T *x;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float v[N];
        sh_load(v, x + i);
        for (int k = 0; k < N; k++)
            v[k] = A<T>::value(v[k]);
        sh_store(y + i, v);
    }
};

/* dx from dy and x; dx may be dy. */
template <template <class> class A, class T> struct plain_bwd {
    T *dx;
    const T *dy, *x;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float d[N], v[N];
        sh_load(d, dy + i);
        sh_load(v, x + i);
        for (int k = 0; k < N; k++)
            d[k] *= A<T>::slope(v[k]);
        sh_store(dx + i, d);
    }
};

/* The same for sums over rows: d is the value that was stored. */
template <class T> struct gelu_bwd_row {
    struct raw {
        sh_raw<T> dy, x;
    };
    static constexpr int AT_ONCE = 2, N = SH_WIDTH<T>;
    T *dx;
    const T *dy, *x;

    __device__ __forceinline__ void load(raw &r, int64_t i, int64_t left, bool vectors) const
    {
        r.dy.load(dy + i, left, vectors);
        r.x.load(x + i, left, vectors);
    }

    __device__ __forceinline__ void value(float (&d)[N], const raw &r, int64_t i, int64_t left, bool vectors) const
    {
        float v[N];
        r.dy.widen(d);
        r.x.widen(v);
        for (int k = 0; k < N; k++)
            d[k] = sh_widen(sh_narrow<T>(d[k] * gelu<T>::slope(v[k])));
        sh_store_some(dx + i, d, left, vectors);
    }
};

/* Element i of h [N,F] belongs to gate i + row * F and to up F elements further on, in gu [N,2F]. */
template <template <class> class A, class T> struct gated {
    T *h;
    const T *gu;
    int64_t F;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t g = i + i / F * F;
        float gate[N], up[N];
        sh_load(gate, gu + g);
        sh_load(up, gu + g + F);
        for (int k = 0; k < N; k++)
            gate[k] = A<T>::value(gate[k]) * up[k];
        sh_store(h + i, gate);
    }
};

/* Both gradients are computed in one pass over gate and up. */
template <template <class> class A, class T> struct gated_bwd {
    T *dgu;
    const T *dh, *gu;
    int64_t F;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t g = i + i / F * F;
        float d[N], gate[N], up[N];
        sh_load(d, dh + i);
        sh_load(gate, gu + g);
        sh_load(up, gu + g + F);
        for (int k = 0; k < N; k++) {
            float dup = d[k] * A<T>::value(gate[k]);
            gate[k] = d[k] * up[k] * A<T>::slope(gate[k]);
            up[k] = dup;
        }
        sh_store(dgu + g, gate);
        sh_store(dgu + g + F, up);
    }
};

template <template <class> class A> sh_rc run_plain(const char *name, const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        plain<A, T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0])};
        return sh_map<N>(name, f, sh_elems(&call->out[0]), sh_aligned<N>(f.y, 0) && sh_aligned<N>(f.x, 0), call->queue);
    });
}

template <template <class> class A> sh_rc run_plain_bwd(const char *name, const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        plain_bwd<A, T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), sh_data<T>(&call->in[1])};
        bool vectors = sh_aligned<N>(f.dx, 0) && sh_aligned<N>(f.dy, 0) && sh_aligned<N>(f.x, 0);
        return sh_map<N>(name, f, sh_elems(&call->out[0]), vectors, call->queue);
    });
}

/* Vectors require F to be a multiple of their length; otherwise gate and up would not be aligned alike. */
template <template <class> class A> sh_rc run_gated(const char *name, const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        int64_t F = sh_last_dim(&call->out[0]);
        gated<A, T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), F};
        return sh_map<N>(name, f, sh_elems(&call->out[0]), sh_aligned<N>(f.h, F) && sh_aligned<N>(f.gu, F),
                         call->queue);
    });
}

template <template <class> class A> sh_rc run_gated_bwd(const char *name, const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        int64_t F = sh_last_dim(&call->in[0]);
        gated_bwd<A, T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), sh_data<T>(&call->in[1]), F};
        bool vectors = sh_aligned<N>(f.dgu, F) && sh_aligned<N>(f.dh, F) && sh_aligned<N>(f.gu, F);
        return sh_map<N>(name, f, sh_elems(&call->in[0]), vectors, call->queue);
    });
}
} // namespace

extern "C" sh_rc sh_cuda_gelu(const struct sh_op_call *call)
{
    return run_plain<gelu>("gelu", call);
}

extern "C" sh_rc sh_cuda_gelu_bwd(const struct sh_op_call *call)
{
    return run_plain_bwd<gelu>("gelu_bwd", call);
}

extern "C" sh_rc sh_cuda_gelu_erf(const struct sh_op_call *call)
{
    return run_plain<gelu_erf>("gelu_erf", call);
}

extern "C" sh_rc sh_cuda_gelu_erf_bwd(const struct sh_op_call *call)
{
    return run_plain_bwd<gelu_erf>("gelu_erf_bwd", call);
}

extern "C" sh_rc sh_cuda_squared_relu(const struct sh_op_call *call)
{
    return run_plain<squared_relu>("squared_relu", call);
}

extern "C" sh_rc sh_cuda_squared_relu_bwd(const struct sh_op_call *call)
{
    return run_plain_bwd<squared_relu>("squared_relu_bwd", call);
}

extern "C" sh_rc sh_cuda_swiglu(const struct sh_op_call *call)
{
    return run_gated<silu>("swiglu", call);
}

extern "C" sh_rc sh_cuda_swiglu_bwd(const struct sh_op_call *call)
{
    return run_gated_bwd<silu>("swiglu_bwd", call);
}

extern "C" sh_rc sh_cuda_geglu(const struct sh_op_call *call)
{
    return run_gated<gelu>("geglu", call);
}

extern "C" sh_rc sh_cuda_geglu_bwd(const struct sh_op_call *call)
{
    return run_gated_bwd<gelu>("geglu_bwd", call);
}

/* dx and its column sums in one pass; the partial sums are added by a second kernel, in a fixed order. */
extern "C" sh_rc sh_cuda_gelu_bwd_bias(const struct sh_op_call *call)
{
    int64_t F = sh_elems(&call->out[1]), rows = sh_elems(&call->in[0]) / F, n_parts = sh_cuda_row_parts(rows);
    float *parts = static_cast<float *>(call->work);

    SH_REQUIRE(call->work_bytes >= sh_cuda_bias_bwd_work_bytes(call));
    SH_TRY(sh_by_act(call->out[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        gelu_bwd_row<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), sh_data<T>(&call->in[1])};
        bool vectors = sh_aligned<N>(f.dx, F) && sh_aligned<N>(f.dy, F) && sh_aligned<N>(f.x, F);
        return sh_row_sums<N>(f, parts, rows, F, n_parts, vectors, call->queue);
    }));
    return sh_fold_parts(sh_data<float>(&call->out[1]), sh_op_adds(call, 1), parts, n_parts, F, call->queue);
}
