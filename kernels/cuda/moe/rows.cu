/* Rows of experts: brought to them and back, and SwiGLU times the weight of a row. A warp has a row, so that its place
 * and its weight are read once. All are bound by memory; bytes per element in bf16 (f32: twice): gather 4, sum 2 for
 * each slot and 2 written, swiglu_rows 6, backward 10. Not measured on a GPU. */
#include "kernels/cuda/moe/rows.cuh"

#include "kernels/cuda/cuda.h"

namespace
{
using namespace sh_rows;

/* Sorted rows, some of which may be near (kernels/op.h). One address and a distance, in elements: of either of two
 * addresses a compiler does not know that both are in global memory. */
template <class T> struct sorted {
    T *rows;
    int64_t near;                    /* from `rows` to where the near ones are */
    const int32_t *at, *first, *end; /* NULL: none is near */
    int64_t C;

    /* Those numbers read once: rows [begin, begin + n) lie `away` elements behind their places among the others. */
    struct places {
        int64_t away;
        int32_t begin, n;
    };

    __device__ __forceinline__ places read() const
    {
        if (!at)
            return {0, 0, 0};
        return {near + (*first - *at) * C, *at, *end - *first};
    }

    __device__ __forceinline__ T *row(const places &p, int32_t r) const
    {
        return rows + (r * C + ((uint32_t)(r - p.begin) < (uint32_t)p.n ? p.away : 0));
    }

    bool aligned(int64_t n) const
    {
        return sh_aligned<SH_WIDTH<T>>(rows, n) && sh_aligned<SH_WIDTH<T>>(rows + near, n);
    }
};

template <class T>
sorted<T> sorted_of(const sh_operand *rows, const sh_operand *near, const sh_operand *at, const sh_operand *first)
{
    const int32_t *group = sh_data<int32_t>(first), *end = group ? group + sh_elems(first) - 1 : NULL;
    T *others = sh_data<T>(rows), *own = sh_data<T>(near);

    return {others, own ? own - others : 0, sh_data<int32_t>(at), group, end, rows->dim[1]};
}

/* T: any type of that size. */
template <class T> struct gather {
    static constexpr int N = SH_WIDTH<T>;
    sorted<T> xs;
    const T *x;
    const int32_t *order;
    int64_t C, k;
    bool vectors;

    __device__ __forceinline__ void row(int64_t r, unsigned lane) const
    {
        const T *from = x + order[r] / k * C;
        T *to = xs.row(xs.read(), (int32_t)r);

        for (int64_t c = lane * N; vectors && c < C; c += LANES * N) {
            T raw[N];
            sh_load_raw(raw, from + c);
            sh_store_raw(to + c, raw);
        }
        for (int64_t c = lane; !vectors && c < C; c += LANES)
            to[c] = from[c];
    }
};

/* y may be addend. */
template <class T> struct sum {
    static constexpr int N = SH_WIDTH<T>, AT_ONCE = 4;
    T *y;
    sorted<T> ys;
    const T *addend; /* (opt) */
    const int32_t *place;
    int64_t C, k;
    bool vectors;

    /* Four rows are asked for before the first is used. */
    __device__ __forceinline__ void add_slots(float (&total)[N], const typename sorted<T>::places &from,
                                              const int32_t *at, int64_t slots, int64_t c) const
    {
        sh_raw<T> raw[AT_ONCE];

        SH_UNROLL
        for (int i = 0; i < AT_ONCE; i++)
            if (i < slots)
                raw[i].load(ys.row(from, at[i]) + c, C - c, vectors);
        SH_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            float v[N];
            if (i >= slots)
                break;
            raw[i].widen(v);
            for (int n = 0; n < N; n++)
                total[n] += v[n];
        }
    }

    __device__ __forceinline__ void row(int64_t token, unsigned lane) const
    {
        const auto from = ys.read();

        for (int64_t c = lane * N; c < C; c += LANES * N) {
            float total[N] = {0}, v[N];
            for (int64_t j = 0; j < k; j += AT_ONCE)
                add_slots(total, from, place + token * k + j, k - j, c);
            if (addend) {
                sh_load_some(v, addend + token * C + c, C - c, vectors);
                for (int n = 0; n < N; n++)
                    total[n] += v[n];
            }
            sh_store_some(y + token * C + c, total, C - c, vectors);
        }
    }
};

/* Inputs i to i + 2 of the call. */
weighted weighted_of(const struct sh_op_call *call, int i)
{
    const int32_t *first = sh_data<int32_t>(&call->in[i + 2]);
    return {sh_data<float>(&call->in[i]), sh_data<int32_t>(&call->in[i + 1]),
            first ? first + sh_elems(&call->in[i + 2]) - 1 : NULL};
}

/* Squares of what is above 0, without a gate: a row has F elements. `up` is not used. */
struct squares {
    static constexpr int PARTS = 1;

    template <class T, int N>
    __device__ __forceinline__ void load(float (&x)[N], float (&)[N], const T *row, int64_t f, int64_t F,
                                         bool vectors) const
    {
        sh_load_some(x, row + f, F - f, vectors);
    }

    template <class T, int N>
    __device__ __forceinline__ void store(T *row, const float (&x)[N], const float (&)[N], int64_t f, int64_t F,
                                          bool vectors) const
    {
        sh_store_some(row + f, x, F - f, vectors);
    }

    template <class T> __device__ __forceinline__ float product(float x, float, float weight) const
    {
        return x < 0 ? 0 : x * x * weight;
    }

    template <class T> __device__ __forceinline__ float turn_back(float &x, float &, float d, float weight) const
    {
        float above = x < 0 ? 0 : x;

        x = d * weight * 2 * above;
        return d * above * above;
    }
};

/* SiLU of the gate times up. A row [2F] has gates first, then ups. f: of the first gate. */
struct silu {
    static constexpr int PARTS = 2; /* rows of F */

    template <class T, int N>
    __device__ __forceinline__ void load(float (&gate)[N], float (&up)[N], const T *row, int64_t f, int64_t F,
                                         bool vectors) const
    {
        sh_load_some(gate, row + f, F - f, vectors);
        sh_load_some(up, row + F + f, F - f, vectors);
    }

    template <class T, int N>
    __device__ __forceinline__ void store(T *row, const float (&gate)[N], const float (&up)[N], int64_t f, int64_t F,
                                          bool vectors) const
    {
        sh_store_some(row + f, gate, F - f, vectors);
        sh_store_some(row + F + f, up, F - f, vectors);
    }

    template <class T> __device__ __forceinline__ float product(float gate, float up, float weight) const
    {
        return gate * (sh_sigmoid<T>(gate) * up * weight);
    }

    /* Both become their gradients, from that of their product, d weight; returns d times the product without weight. */
    template <class T> __device__ __forceinline__ float turn_back(float &gate, float &up, float d, float weight) const
    {
        float s = sh_sigmoid<T>(gate), silu = gate * s, u = up, dr = d * weight;

        up = dr * silu;
        gate = dr * u * s * (1.0f + gate * (1.0f - s));
        return d * silu * u;
    }
};

/* What gpt-oss has in place of it (kernels/op.h): gate and up are neighbours. */
struct limited_silu {
    static constexpr int PARTS = 2;
    float limit, alpha;

    template <class T, int N>
    __device__ __forceinline__ void load(float (&gate)[N], float (&up)[N], const T *row, int64_t f, int64_t F,
                                         bool vectors) const
    {
        float v[2 * N];

        sh_load_some(v, row + 2 * f, 2 * (F - f), vectors);
        for (int n = 0; n < N; n++)
            gate[n] = v[2 * n], up[n] = v[2 * n + 1];
    }

    template <class T, int N>
    __device__ __forceinline__ void store(T *row, const float (&gate)[N], const float (&up)[N], int64_t f, int64_t F,
                                          bool vectors) const
    {
        float v[2 * N];

        for (int n = 0; n < N; n++)
            v[2 * n] = gate[n], v[2 * n + 1] = up[n];
        sh_store_some(row + 2 * f, v, 2 * (F - f), vectors);
    }

    /* NaN stays NaN. */
    __device__ __forceinline__ float limit_gate(float gate) const
    {
        return gate > limit ? limit : gate;
    }

    __device__ __forceinline__ float limit_up(float up) const
    {
        return up > limit ? limit : up < -limit ? -limit : up;
    }

    template <class T> __device__ __forceinline__ float product(float gate, float up, float weight) const
    {
        gate = limit_gate(gate);
        return gate * sh_sigmoid<T>(alpha * gate) * (limit_up(up) + 1.0f) * weight;
    }

    /* A number at its limit passes its gradient on, one beyond it does not. */
    template <class T> __device__ __forceinline__ float turn_back(float &gate, float &up, float d, float weight) const
    {
        float g = limit_gate(gate), u = limit_up(up) + 1.0f, s = sh_sigmoid<T>(alpha * g), dr = d * weight;

        up = up > limit || up < -limit ? 0 : dr * g * s;
        gate = gate > limit ? 0 : dr * u * s * (1.0f + alpha * g * (1.0f - s));
        return d * g * s * u;
    }
};

template <class T, class G> struct swiglu_rows {
    static constexpr int N = SH_WIDTH<T>;
    T *h;
    const T *gu;
    weighted by;
    int64_t F;
    bool vectors;
    G gates;

    __device__ __forceinline__ void row(int64_t r, unsigned lane) const
    {
        if (!by.is_live(r))
            return;
        float weight = by.of(r);

        for (int64_t f = lane * N; f < F; f += LANES * N) {
            float gate[N], up[N] = {0};
            gates.load(gate, up, gu + r * G::PARTS * F, f, F, vectors);
            for (int n = 0; n < N; n++)
                gate[n] = gates.template product<T>(gate[n], up[n], weight);
            sh_store_some(h + r * F + f, gate, F - f, vectors);
        }
    }
};

template <class T, class G> struct swiglu_rows_bwd {
    static constexpr int N = SH_WIDTH<T>;
    T *dgu;
    float *dweight;
    const T *dh, *gu;
    const float *more; /* (opt) added to dweight */
    weighted by;
    int64_t F;
    bool vectors;
    G gates;

    __device__ __forceinline__ void row(int64_t r, unsigned lane) const
    {
        if (!by.is_live(r))
            return;
        int32_t entry = by.entry(r);
        float weight = by.of(r), total = 0;

        /* As often for each lane, so that all meet in the sum. */
        for (int64_t first = 0; first < F; first += LANES * N) {
            int64_t f = first + lane * N;
            float d[N], gate[N], up[N] = {0};
            if (f >= F)
                continue;
            sh_load_some(d, dh + r * F + f, F - f, vectors);
            gates.load(gate, up, gu + r * G::PARTS * F, f, F, vectors);
            for (int n = 0; n < N; n++)
                total += gates.template turn_back<T>(gate[n], up[n], d[n], weight);
            gates.store(dgu + r * G::PARTS * F, gate, up, f, F, vectors);
        }
        total = sh_warp_reduce(total, sh_add());
        if (lane == 0)
            dweight[entry] = total + (more ? more[entry] : 0);
    }
};
} // namespace

template <class T> static sh_rc run_gather(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *xs = &call->out[0];
    constexpr int N = SH_WIDTH<T>;
    gather<T> f = {sorted_of<T>(xs, &call->out[1], &call->in[2], &call->in[3]),
                   sh_data<T>(x),
                   sh_data<int32_t>(&call->in[1]),
                   xs->dim[1],
                   xs->dim[0] / x->dim[0],
                   false};

    f.vectors = sh_aligned<N>(f.x, f.C) && f.xs.aligned(f.C);
    return run_rows("row_gather", f, xs->dim[0], call->queue);
}

extern "C" sh_rc sh_cuda_row_gather(const struct sh_op_call *call)
{
    int64_t bytes = sh_dtype_bytes(call->in[0].dtype);

    SH_REQUIRE(bytes == 2 || bytes == 4);
    return bytes == 2 ? run_gather<uint16_t>(call) : run_gather<uint32_t>(call);
}

extern "C" sh_rc sh_cuda_row_sum(const struct sh_op_call *call)
{
    const struct sh_operand *place = &call->in[1], *y = &call->out[0];

    return sh_by_act(y->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        sum<T> f = {sh_data<T>(y),
                    sorted_of<T>(&call->in[0], &call->in[3], &call->in[4], &call->in[5]),
                    sh_data<T>(&call->in[2]),
                    sh_data<int32_t>(place),
                    y->dim[1],
                    place->dim[1],
                    false};
        f.vectors = sh_aligned<N>(f.y, f.C) && sh_aligned<N>(f.addend, f.C) && f.ys.aligned(f.C);
        return run_rows("row_sum", f, y->dim[0], call->queue);
    });
}

/* f(gates) with what the call's rows have. */
template <class F> static sh_rc by_gates(const struct sh_op_call *call, F f)
{
    float limit = call->attr->rows.limit;
    return limit > 0 ? f(limited_silu{limit, call->attr->rows.alpha}) : f(silu());
}

template <class T, class G> static sh_rc run_swiglu(const struct sh_op_call *call, G gates)
{
    const struct sh_operand *h = &call->out[0];
    constexpr int N = SH_WIDTH<T>;
    swiglu_rows<T, G> f = {sh_data<T>(h), sh_data<T>(&call->in[0]), weighted_of(call, 1), h->dim[1], false, gates};

    f.vectors = sh_aligned<N>(f.h, f.F) && sh_aligned<N>(f.gu, f.F);
    return run_rows("swiglu_rows", f, h->dim[0], call->queue);
}

template <class T, class G> static sh_rc run_swiglu_bwd(const struct sh_op_call *call, G gates)
{
    const struct sh_operand *dh = &call->in[0];
    constexpr int N = SH_WIDTH<T>;
    swiglu_rows_bwd<T, G> f = {sh_data<T>(&call->out[0]),
                               sh_data<float>(&call->out[1]),
                               sh_data<T>(dh),
                               sh_data<T>(&call->in[1]),
                               sh_data<float>(&call->in[5]),
                               weighted_of(call, 2),
                               dh->dim[1],
                               false,
                               gates};

    f.vectors = sh_aligned<N>(f.dgu, f.F) && sh_aligned<N>(f.dh, f.F) && sh_aligned<N>(f.gu, f.F);
    return run_rows("swiglu_rows_bwd", f, dh->dim[0], call->queue);
}

extern "C" sh_rc sh_cuda_swiglu_rows(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        return by_gates(call, [&](auto gates) { return run_swiglu<decltype(zero)>(call, gates); });
    });
}

extern "C" sh_rc sh_cuda_swiglu_rows_bwd(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        return by_gates(call, [&](auto gates) { return run_swiglu_bwd<decltype(zero)>(call, gates); });
    });
}

extern "C" sh_rc sh_cuda_squared_relu_rows(const struct sh_op_call *call)
{
    return sh_by_act(call->out[0].dtype, [&](auto zero) { return run_swiglu<decltype(zero)>(call, squares()); });
}

extern "C" sh_rc sh_cuda_squared_relu_rows_bwd(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) { return run_swiglu_bwd<decltype(zero)>(call, squares()); });
}
