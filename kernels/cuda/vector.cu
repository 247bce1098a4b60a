/* Operations on whole vectors, all bound by memory. Bytes per element, f32 (bf16: half): add 12, scale 8, cast 6,
 * copy 8, accumulate 12; ema 12, whatever the halves. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/floats.cuh"
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

/* Row i / O of x. */
template <class T> struct bias {
    T *y;
    const T *x, *b;
    int64_t O;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float u[N], v[N];
        sh_load(u, x + i);
        sh_load(v, b + i % O);
        for (int k = 0; k < N; k++)
            u[k] += v[k];
        sh_store(y + i, u);
    }
};

template <class T> sh_rc run_bias(const struct sh_op_call *call)
{
    constexpr int N = SH_WIDTH<T>;
    bias<T> f = {sh_data<T>(&call->out[0]), sh_data<const T>(&call->in[0]), sh_data<const T>(&call->in[1]),
                 call->in[1].dim[0]};
    bool vectors = sh_aligned<N>(f.y, f.O) && sh_aligned<N>(f.x, f.O) && sh_aligned<N>(f.b, f.O);
    return sh_map<N>("bias", f, sh_elems(&call->out[0]), vectors, call->queue);
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

/* By a number of the device. */
template <class T> struct scale_by {
    T *y;
    const T *x;
    const float *by;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float v[N];
        sh_load(v, x + i);
        for (int k = 0; k < N; k++)
            v[k] *= *by;
        sh_store(y + i, v);
    }
};

template <class T> sh_rc run_scale(const struct sh_op_call *call)
{
    constexpr int N = SH_WIDTH<T>;
    scale<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), call->attr->scale.by};
    return sh_map<N>("scale", f, sh_elems(&call->out[0]), sh_aligned<N>(f.y, 0) && sh_aligned<N>(f.x, 0), call->queue);
}

struct ema {
    float *e;
    struct sh_floats p;
    float by;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float mean[N], now[N];
        sh_load(mean, e + i);
        sh_floats_load(now, p, i);
        for (int k = 0; k < N; k++)
            mean[k] += by * (now[k] - mean[k]);
        sh_store(e + i, mean);
    }
};

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

/* Rows of all heads, and parts of them: elements of queries, keys and values of a part; copies of a key-value head. */
struct heads {
    int64_t P, q, kv, all_kv, head, copies, part; /* part: elements of a rank's part of a sequence */
};

heads heads_of(const struct sh_op_attr *a, const struct sh_operand *parts)
{
    int64_t D = a->split.head_dim, P = a->split.ranks, kv = a->split.kv_here * D, all_kv = a->split.kv_heads * D;

    return {P, a->split.heads * D, kv, all_kv, D, all_kv ? P * kv / all_kv : 0, parts->dim[2] * parts->dim[3]};
}

/* Index i is in the parts. */
template <class T> struct split_heads {
    T *y;
    const T *x;
    heads h;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t width = h.q + 2 * h.kv, p = i / h.part % h.P, at = i % width;
        int64_t n = i / h.part / h.P * (h.part / width) + i % h.part / width;
        int64_t from = n * (h.P * h.q + 2 * h.all_kv);
        T v[N];

        if (at < h.q) {
            from += p * h.q + at;
        } else {
            at -= h.q;
            from += h.P * h.q + at / h.kv * h.all_kv + p * (h.all_kv / h.head) / h.P * h.head + at % h.kv;
        }
        sh_load_raw(v, x + from);
        sh_store_raw(y + i, v);
    }
};

/* Index i is in the rows. */
template <class T> struct join_heads {
    T *y;
    const T *x;
    heads h;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t row = h.P * h.q + 2 * h.all_kv, n = i / row * (h.q + 2 * h.kv), at = i % row, copies = 1, from;

        n += n / h.part * (h.P - 1) * h.part; /* the parts of the other ranks lie between those of two sequences */
        if (at < h.P * h.q) {
            from = at / h.q * h.part + n + at % h.q;
        } else {
            int64_t which = (at - h.P * h.q) / h.all_kv, in = (at - h.P * h.q) % h.all_kv;
            int64_t first = in / h.kv * h.copies;

            copies = h.copies;
            from = first * h.part + n + h.q + which * h.kv + in % h.kv;
        }
        if (copies == 1) {
            T v[N];
            sh_load_raw(v, x + from);
            sh_store_raw(y + i, v);
            return;
        }
        float sum[N], v[N];
        sh_load(sum, x + from);
        for (int64_t c = 1; c < copies; c++) {
            sh_load(v, x + from + c * h.part);
            for (int k = 0; k < N; k++)
                sum[k] += v[k];
        }
        sh_store(y + i, sum);
    }
};

template <class T, template <class> class F>
sh_rc run_heads(const char *name, const struct sh_op_call *call, const struct sh_operand *parts)
{
    constexpr int N = SH_WIDTH<T>;
    F<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), heads_of(call->attr, parts)};
    return sh_map<N>(name, f, sh_elems(&call->out[0]), sh_aligned<N>(f.y, f.h.head) && sh_aligned<N>(f.x, f.h.head),
                     call->queue);
}

/* Index i is in the rows of q and kv side by side; back: from these. */
template <class T> struct halves {
    T *x, *q, *kv;
    int64_t left, row; /* elements of q's row, of both */
    bool back;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t n = i / row, at = i % row;
        T *half = at < left ? q + n * left + at : kv + n * (row - left) + at - left, v[N];
        sh_load_raw(v, back ? half : x + i);
        sh_store_raw(back ? x + i : half, v);
    }
};

template <class T>
sh_rc run_halves(const struct sh_op_call *call, const struct sh_operand *x, const struct sh_operand *q, bool back)
{
    constexpr int N = SH_WIDTH<T>;
    halves<T> f = {sh_data<T>(x), sh_data<T>(&q[0]), sh_data<T>(&q[1]), q[0].dim[1], x->dim[1], back};
    bool vectors = sh_aligned<N>(f.x, f.row) && sh_aligned<N>(f.q, f.left) && sh_aligned<N>(f.kv, f.left);
    return sh_map<N>(back ? "join_kv" : "split_kv", f, sh_elems(x), vectors, call->queue);
}

/* Index i is in pieces [P,2B,M,W] as ranks have them, `elems` long; back: from whole sequences. */
template <class T> struct pieces {
    T *in_ranks, *in_sequences;
    int64_t P, B, elems;
    bool back;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t n = i / elems, p = n / (2 * B), piece = n / B % 2 ? 2 * P - 1 - p : p;
        T *there = in_sequences + (n % B * 2 * P + piece) * elems + i % elems, v[N];
        sh_load_raw(v, back ? there : in_ranks + i);
        sh_store_raw(back ? in_ranks + i : there, v);
    }
};

template <class T>
sh_rc run_pieces(const struct sh_op_call *call, const struct sh_operand *in_ranks, const struct sh_operand *whole,
                 bool back)
{
    constexpr int N = SH_WIDTH<T>;
    pieces<T> f = {sh_data<T>(in_ranks),
                   sh_data<T>(whole),
                   in_ranks->dim[0],
                   whole->dim[0],
                   in_ranks->dim[2] * in_ranks->dim[3],
                   back};
    return sh_map<N>(back ? "to_pieces" : "from_pieces", f, sh_elems(whole),
                     sh_aligned<N>(f.in_ranks, f.elems) && sh_aligned<N>(f.in_sequences, f.elems), call->queue);
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

extern "C" sh_rc sh_cuda_bias(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) { return run_bias<decltype(zero)>(call); });
}

extern "C" sh_rc sh_cuda_ema(const struct sh_op_call *call)
{
    struct sh_floats whole = {(float *)call->in[0].data, NULL, NULL, NULL, NULL, SH_CODE8_LINEAR};
    struct sh_floats halves = {NULL,           (sh_bf16 *)call->in[0].data, (int16_t *)call->in[1].data, NULL, NULL,
                               SH_CODE8_LINEAR};
    ema f = {(float *)call->out[0].data, call->in[1].data ? halves : whole, call->attr->scale.by};

    return sh_map<4>("ema", f, sh_elems(&call->out[0]), sh_floats_aligned<4>(f.p) && sh_aligned<4>(f.e, 0),
                     call->queue);
}

extern "C" sh_rc sh_cuda_scale(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) { return run_scale<decltype(zero)>(call); });
}

extern "C" sh_rc sh_cuda_scale_by(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        scale_by<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), sh_data<float>(&call->in[1])};
        return sh_map<N>("scale_by", f, sh_elems(&call->out[0]), sh_aligned<N>(f.y, 0) && sh_aligned<N>(f.x, 0),
                         call->queue);
    });
}

extern "C" sh_rc sh_cuda_regroup(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) { return run_regroup<decltype(zero)>(call); });
}

extern "C" sh_rc sh_cuda_split_heads(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        return run_heads<decltype(zero), split_heads>("split_heads", call, &call->out[0]);
    });
}

extern "C" sh_rc sh_cuda_join_heads(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        return run_heads<decltype(zero), join_heads>("join_heads", call, &call->in[0]);
    });
}

extern "C" sh_rc sh_cuda_split_kv(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype,
                     [&](auto zero) { return run_halves<decltype(zero)>(call, &call->in[0], &call->out[0], false); });
}

extern "C" sh_rc sh_cuda_join_kv(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype,
                     [&](auto zero) { return run_halves<decltype(zero)>(call, &call->out[0], &call->in[0], true); });
}

extern "C" sh_rc sh_cuda_from_pieces(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype,
                     [&](auto zero) { return run_pieces<decltype(zero)>(call, &call->in[0], &call->out[0], false); });
}

extern "C" sh_rc sh_cuda_to_pieces(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype,
                     [&](auto zero) { return run_pieces<decltype(zero)>(call, &call->out[0], &call->in[0], true); });
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
