/* Rotary embedding of the query and key heads in a packed row. Value heads are copied, or left in place if the output
 * is the input. Bytes: qkv read and written (8 per element in f32, 4 in bf16); in place only the fraction
 * (H+K)/(H+2K) of it that is rotated. The table stays in the L2 cache. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"

namespace
{
/* Element i counts, for each head that is touched, `half` pairs of elements and `rest` single ones after them.
 * `heads` of the `row_heads` in a row are touched, and the first `turned` of these are rotated. y may be x. */
template <class T> struct rope {
    T *y;
    const T *x;
    const float *cs;
    const int32_t *docs;      /* NULL: positions in the sequence; otherwise they start again in each document */
    const int32_t *positions; /* NULL: as above; otherwise explicit positions */
    int64_t heads, row_heads, turned, D, half, rest, seq;
    float sign;

    __device__ __forceinline__ const float *angles_of(int64_t row) const
    {
        return cs + (positions ? positions[row] : row % seq - (docs ? docs[row] : 0)) * 2 * half;
    }

    template <int N> __device__ __forceinline__ void turn(float (&a)[N], float (&b)[N], const float *angles) const
    {
        float c[N], s[N];
        sh_load(c, angles);
        sh_load(s, angles + half);
        for (int k = 0; k < N; k++) {
            float first = a[k] * c[k] - b[k] * sign * s[k];
            b[k] = b[k] * c[k] + a[k] * sign * s[k];
            a[k] = first;
        }
    }

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t each = half + rest, head = i / each, row = head / heads, h = head - row * heads, k = i - head * each;
        int64_t to = (row * row_heads + h) * D + k;
        float a[N], b[N];
        if (k >= half) {
            sh_load(a, x + to + half);
            sh_store(y + to + half, a);
            return;
        }
        sh_load(a, x + to);
        sh_load(b, x + to + half);
        if (h < turned)
            turn(a, b, angles_of(row) + k);
        sh_store(y + to, a);
        sh_store(y + to + half, b);
    }
};

/* The same with neighbours that turn together. A thread has N of the pairs, which are 2 N elements in a row, or one
 * or N of the elements behind them. A single pair may begin at an odd element, where no access of two may begin. */
template <class T> struct rope_neighbours {
    rope<T> by;

    template <int N> static __device__ __forceinline__ void load(float (&a)[N], float (&b)[N], const T *x)
    {
        if constexpr (N == 1) {
            sh_load(a, x);
            sh_load(b, x + 1);
        } else {
            float both[2 * N];
            sh_load(both, x);
            for (int j = 0; j < N; j++) {
                a[j] = both[2 * j];
                b[j] = both[2 * j + 1];
            }
        }
    }

    template <int N> static __device__ __forceinline__ void store(T *y, const float (&a)[N], const float (&b)[N])
    {
        if constexpr (N == 1) {
            sh_store(y, a);
            sh_store(y + 1, b);
        } else {
            float both[2 * N];
            for (int j = 0; j < N; j++) {
                both[2 * j] = a[j];
                both[2 * j + 1] = b[j];
            }
            sh_store(y, both);
        }
    }

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t each = by.half + by.rest, head = i / each, row = head / by.heads, h = head - row * by.heads;
        int64_t k = i - head * each, to = (row * by.row_heads + h) * by.D + k;
        float a[N], b[N];
        if (k >= by.half) {
            sh_load(a, by.x + to + by.half);
            sh_store(by.y + to + by.half, a);
            return;
        }
        load(a, b, by.x + to + k);
        if (h < by.turned)
            by.turn(a, b, by.angles_of(row) + k);
        store(by.y + to + k, a, b);
    }
};

/* As in kernels/ref/rope.c, whose comments explain it; once per run. */
struct rope_table {
    float *cs;
    int64_t R;
    double theta, factor, low_freq, high_freq, original_len, ramp_first, ramp_last, scale;
    int divisors, turned; /* turned: elements from this one on stand still; 0: none do */
    double divisor[SH_ROPE_DIVISORS];

    __device__ double frequency(int64_t i) const
    {
        const double pi = 3.14159265358979323846;
        double freq = pow(theta, -2.0 * (double)i / (double)R);
        double turns = original_len * freq / (2 * pi);

        if (turned && i >= turned)
            return 0;
        if (divisors)
            return freq / divisor[i];
        if (factor != 0 && ramp_last > 0) {
            double ramp = ((double)i - ramp_first) / (ramp_last - ramp_first);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            return (1 - ramp) * freq + ramp * freq / factor;
        }
        if (factor == 0 || turns > high_freq)
            return freq;
        if (turns < low_freq)
            return freq / factor;
        double smooth = (turns - low_freq) / (high_freq - low_freq);
        return (1 - smooth) * freq / factor + smooth * freq;
    }

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t t = i / (R / 2), k = i % (R / 2);
        double angle = (double)t * frequency(k);
        cs[t * R + k] = (float)(scale * cos(angle));
        cs[t * R + R / 2 + k] = (float)(scale * sin(angle));
    }
};
} // namespace

extern "C" sh_rc sh_cuda_rope(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0];
    const struct sh_op_attr *attr = call->attr;
    int64_t D = attr->attn.head_dim, half = call->in[1].dim[1] / 2, turned = attr->attn.heads + attr->attn.kv_heads,
            row_heads = turned + attr->attn.kv_heads;
    bool copies = call->out[0].data != x->data;
    int64_t heads = copies ? row_heads : turned, rest = copies ? D - 2 * half : 0;
    const float *cs = sh_data<float>(&call->in[1]);

    return sh_by_act(x->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        rope<T> f = {sh_data<T>(&call->out[0]),
                     sh_data<T>(x),
                     cs,
                     sh_data<int32_t>(&call->in[2]),
                     sh_data<int32_t>(&call->in[3]),
                     heads,
                     row_heads,
                     turned,
                     D,
                     half,
                     rest,
                     x->dim[1],
                     attr->attn.inverse ? -1.0f : 1.0f};
        bool vectors = D % N == 0 && rest % N == 0 && sh_aligned<N>(f.y, half) && sh_aligned<N>(f.x, half) &&
                       sh_aligned<N>(cs, half);
        int64_t n = x->dim[0] * x->dim[1] * heads * (half + rest);
        if (attr->attn.pairs)
            return sh_map<N>("rope", rope_neighbours<T>{f}, n, vectors, call->queue);
        return sh_map<N>("rope", f, n, vectors, call->queue);
    });
}

extern "C" sh_rc sh_cuda_rope_table(const struct sh_op_call *call)
{
    const struct sh_op_attr *attr = call->attr;
    int64_t T = call->out[0].dim[0], R = call->out[0].dim[1];
    rope_table f = {sh_data<float>(&call->out[0]),
                    R,
                    attr->rope.theta,
                    attr->rope.factor,
                    attr->rope.low_freq,
                    attr->rope.high_freq,
                    attr->rope.original_len,
                    attr->rope.ramp_first,
                    attr->rope.ramp_last,
                    attr->rope.scale == 0 ? 1 : attr->rope.scale,
                    attr->rope.divisors,
                    attr->rope.turned,
                    {}};
    /* clang-format on */

    SH_REQUIRE(attr->rope.divisors <= SH_ROPE_DIVISORS);
    for (int i = 0; i < attr->rope.divisors; i++)
        f.divisor[i] = call->divisors[i];

    return sh_map<1>("rope_table", f, T * (R / 2), false, call->queue);
}
