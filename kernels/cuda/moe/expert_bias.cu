/* The biases of the experts' products, of gpt-oss. A row finds its expert among the offsets that are on the GPU. The
 * gradient of a bias is a sum over its expert's rows, in their order: a thread has neighbouring columns and walks over
 * them, so its bits depend on the rows alone. Bytes per element in bf16 (f32: twice): 4, backward 4; a router that
 * sends all rows to one expert makes few threads walk. Not measured on a GPU. */
#include "kernels/cuda/moe/rows.cuh"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"

namespace
{
using namespace sh_rows;

/* Group g has rows [first[g], first[g+1]) and is one of expert g % E. */
struct owners {
    const int32_t *first; /* [groups + 1] */
    int32_t groups, E;

    /* The expert of a row, or -1; the same for all lanes, each of which looks at one of 32 groups. */
    __device__ __forceinline__ int32_t of(int64_t row) const
    {
        int32_t lane = threadIdx.x % LANES;

        for (int32_t g0 = 0; g0 < groups && row >= first[0]; g0 += LANES) {
            int32_t g = g0 + lane;
            unsigned passed = __ballot_sync(~0u, g < groups && first[g + 1] <= row);
            int32_t found = g0 + __popc(passed);
            if (passed != ~0u)
                return found < groups ? found % E : -1;
        }
        return -1;
    }
};

owners owners_of(const struct sh_op_call *call, int64_t experts)
{
    const struct sh_operand *first = &call->in[1];
    return {sh_data<int32_t>(first), (int32_t)(sh_elems(first) - 1), (int32_t)experts};
}

weighted weighted_of(const struct sh_op_call *call)
{
    return {sh_data<float>(&call->in[3]), sh_data<int32_t>(&call->in[4]), NULL};
}

/* y may be x. */
template <class T> struct biased {
    static constexpr int N = SH_WIDTH<T>;
    T *y;
    const T *x, *b;
    owners expert;
    weighted by;
    int64_t O;
    bool vectors;

    __device__ __forceinline__ void row(int64_t r, unsigned lane) const
    {
        int64_t e = expert.of(r);
        if (e < 0)
            return;
        float weight = by.of(r);

        for (int64_t o = lane * N; o < O; o += LANES * N) {
            float v[N], bias[N];
            sh_load_some(v, x + r * O + o, O - o, vectors);
            sh_load_some(bias, b + e * O + o, O - o, vectors);
            for (int n = 0; n < N; n++)
                v[n] += bias[n] * weight;
            sh_store_some(y + r * O + o, v, O - o, vectors);
        }
    }
};

/* dweight of a row: dy b. */
template <class T> struct slope {
    static constexpr int N = SH_WIDTH<T>;
    float *dweight;
    const T *dy, *b;
    owners expert;
    weighted by;
    int64_t O;
    bool vectors;

    __device__ __forceinline__ void row(int64_t r, unsigned lane) const
    {
        int64_t e = expert.of(r);
        float sum = 0;
        if (e < 0)
            return;

        /* As often for each lane, so that all meet in the sum. */
        for (int64_t at = 0; at < O; at += LANES * N) {
            int64_t o = at + lane * N;
            float d[N], bias[N];
            if (o >= O)
                continue;
            sh_load_some(d, dy + r * O + o, O - o, vectors);
            sh_load_some(bias, b + e * O + o, O - o, vectors);
            for (int n = 0; n < N; n++)
                sum += d[n] * bias[n];
        }
        sum = sh_warp_reduce(sum, sh_add());
        if (lane == 0)
            dweight[by.entry(r)] = sum;
    }
};

/* Thread i has columns [i % across N, + N) of expert i / across. */
template <class T> struct sums {
    static constexpr int N = SH_WIDTH<T>, AT_ONCE = 4;
    float *db;
    const T *dy;
    owners expert;
    weighted by;
    int64_t O, across;
    bool vectors, add;

    /* Four rows are asked for before the first is used. */
    __device__ __forceinline__ void add_rows(float (&sum)[N], int64_t row, int64_t end, int64_t o) const
    {
        sh_raw<T> raw[AT_ONCE];

        SH_UNROLL
        for (int i = 0; i < AT_ONCE; i++)
            if (row + i < end)
                raw[i].load(dy + (row + i) * O + o, O - o, vectors);
        SH_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            float v[N];
            if (row + i >= end)
                break;
            raw[i].widen(v);
            float weight = by.of(row + i);
            for (int n = 0; n < N; n++)
                sum[n] += v[n] * weight;
        }
    }

    template <int> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t e = i / across, o = i % across * N;
        float sum[N] = {0}, *to = db + e * O + o;

        if (add)
            sh_load_some(sum, to, O - o, vectors);
        for (int64_t g = e; g < expert.groups; g += expert.E)
            for (int64_t row = expert.first[g], end = expert.first[g + 1]; row < end; row += AT_ONCE)
                add_rows(sum, row, end, o);
        sh_store_some(to, sum, O - o, vectors);
    }
};

template <class T> sh_rc run_sums(const struct sh_op_call *call)
{
    const struct sh_operand *db = &call->out[0];
    constexpr int N = SH_WIDTH<T>;
    int64_t E = db->dim[0], O = db->dim[1];
    sums<T> f = {sh_data<float>(db),
                 sh_data<T>(&call->in[0]),
                 owners_of(call, E),
                 weighted_of(call),
                 O,
                 sh_ceil_div(O, N),
                 false,
                 sh_op_adds(call, 0)};

    f.vectors = sh_aligned<N>(f.db, O) && sh_aligned<N>(f.dy, O);
    return sh_map<1>("expert_bias_bwd", f, E * f.across, false, call->queue);
}

template <class T> sh_rc run_slope(const struct sh_op_call *call)
{
    const struct sh_operand *b = &call->in[2];
    constexpr int N = SH_WIDTH<T>;
    slope<T> f = {sh_data<float>(&call->out[1]),
                  sh_data<T>(&call->in[0]),
                  sh_data<T>(b),
                  owners_of(call, b->dim[0]),
                  weighted_of(call),
                  b->dim[1],
                  false};

    f.vectors = sh_aligned<N>(f.dy, f.O) && sh_aligned<N>(f.b, f.O);
    return run_rows("expert_bias_dweight", f, call->in[0].dim[0], call->queue);
}
} // namespace

extern "C" sh_rc sh_cuda_expert_bias(const struct sh_op_call *call)
{
    const struct sh_operand *b = &call->in[2], *y = &call->out[0];

    return sh_by_act(y->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        biased<T> f = {sh_data<T>(y),
                       sh_data<T>(&call->in[0]),
                       sh_data<T>(b),
                       owners_of(call, b->dim[0]),
                       weighted_of(call),
                       b->dim[1],
                       false};
        f.vectors = sh_aligned<N>(f.y, f.O) && sh_aligned<N>(f.x, f.O) && sh_aligned<N>(f.b, f.O);
        return run_rows("expert_bias", f, y->dim[0], call->queue);
    });
}

extern "C" sh_rc sh_cuda_expert_bias_bwd(const struct sh_op_call *call)
{
    SH_REQUIRE(!call->out[1].data || call->in[2].data);
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        if (call->out[0].data)
            SH_TRY(run_sums<decltype(zero)>(call));
        return call->out[1].data ? run_slope<decltype(zero)>(call) : SH_OK;
    });
}
