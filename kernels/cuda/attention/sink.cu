/* A sink of each head: attention's output and log-sum-exp as they are with one more number in the softmax, and the
 * gradient of the number. Bound by memory; bytes per element in bf16 (f32: twice): forward 4, backward 4. Not measured
 * on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/work.h"

namespace
{
constexpr int WARPS = 8, LANES = 32;

/* Rows of all sequences, each of H heads of D; T rows in a sequence. */
struct heads {
    int64_t rows, T;
    int H, D;

    __device__ __forceinline__ int64_t lse_at(int64_t row, int h) const
    {
        return (row / T * H + h) * T + row % T;
    }
};

heads heads_of(const struct sh_op_call *call, const struct sh_operand *lse)
{
    return {sh_elems(lse) / call->attr->attn.heads, lse->dim[2], call->attr->attn.heads, call->attr->attn.head_dim};
}

/* y may be o. */
template <class T> struct sunk {
    T *y;
    float *total;
    const T *o, *sink;
    const float *lse;
    heads z;

    /* N neighbours in a head make what the head's other lanes make too; the first of the head stores it. From the
     * larger of the two on, so no exponential overflows. A query without keys has -Inf, and an output of 0. */
    template <int N> __device__ __forceinline__ void at(int64_t row, int c) const
    {
        int h = c / z.D;
        int64_t number = z.lse_at(row, h), i = row * z.H * z.D + c;
        float with = sh_widen(sink[h]), score = lse[number];
        float all = fmaxf(score, with) + log1pf(expf(-fabsf(score - with))), by = expf(score - all), v[N];

        sh_load(v, o + i);
        for (int n = 0; n < N; n++)
            v[n] *= by;
        sh_store(y + i, v);
        if (c == h * z.D)
            total[number] = all;
    }
};

/* A warp has a row. */
template <int N, class T> __global__ void __launch_bounds__(WARPS *LANES) sink_rows(sunk<T> s)
{
    int64_t step = (int64_t)gridDim.x * WARPS;

    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES; row < s.z.rows; row += step)
        for (int c = threadIdx.x % LANES * N; c < s.z.H * s.z.D; c += LANES * N)
            s.template at<N>(row, c);
}

template <class T> struct slopes {
    const T *dy, *y, *sink;
    const float *total;
    heads z;
    int lanes; /* that share a row */
    bool vectors;

    /* What this lane has of dy.y, whose elements begin at i. */
    __device__ __forceinline__ float dot(int64_t i, int lane) const
    {
        constexpr int N = SH_WIDTH<T>;
        float sum = 0;

        for (int d = lane * N; d < z.D; d += lanes * N) {
            float a[N], b[N];
            sh_load_some(a, dy + i + d, z.D - d, vectors);
            sh_load_some(b, y + i + d, z.D - d, vectors);
            for (int n = 0; n < N; n++)
                sum += a[n] * b[n];
        }
        return sum;
    }
};

/* parts [n_parts,H]: a warp has a head and a part of the rows, some of them at a time if heads are short. */
template <class T>
__global__ void __launch_bounds__(WARPS *LANES) sink_slopes(slopes<T> s, float *parts, int64_t n_parts)
{
    int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES, part = at / s.z.H;
    int h = (int)(at % s.z.H), lane = threadIdx.x % LANES;
    int64_t row = s.z.rows * part / n_parts + lane / s.lanes, end = s.z.rows * (part + 1) / n_parts;
    float sum = 0;

    if (part >= n_parts)
        return;
    for (float sink = sh_widen(s.sink[h]); row < end; row += LANES / s.lanes)
        sum -= expf(sink - s.total[s.z.lse_at(row, h)]) * s.dot((row * s.z.H + h) * s.z.D, lane % s.lanes);
    sum = sh_warp_reduce(sum, sh_add());
    if (lane == 0)
        parts[at] = sum;
}

/* As many lanes as take a head at once, a power of two. */
int lanes_of(int64_t D, int N)
{
    int lanes = 1;

    while (lanes < LANES && lanes * N < D)
        lanes *= 2;
    return lanes;
}
} // namespace

extern "C" sh_rc sh_cuda_sink(const struct sh_op_call *call)
{
    const struct sh_operand *o = &call->in[0], *lse = &call->in[1];

    return sh_by_act(o->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        sunk<T> s = {sh_data<T>(&call->out[0]), sh_data<float>(&call->out[1]), sh_data<T>(o),
                     sh_data<T>(&call->in[2]),  sh_data<float>(lse),           heads_of(call, lse)};
        dim3 blocks(sh_blocks(sh_ceil_div(s.z.rows, WARPS))), threads(WARPS * LANES);
        if (sh_aligned<N>(s.o, s.z.D) && sh_aligned<N>(s.y, s.z.D))
            return SH_LAUNCH((sink_rows<N, T>), blocks, threads, 0, call->queue, s);
        return SH_LAUNCH((sink_rows<1, T>), blocks, threads, 0, call->queue, s);
    });
}

/* First sum parts of the rows, cut by shape alone, then the parts in order. */
extern "C" sh_rc sh_cuda_sink_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *total = &call->in[2];
    heads z = heads_of(call, total);
    int64_t n_parts = sh_cuda_row_parts(z.rows);
    float *parts = static_cast<float *>(call->work);

    SH_REQUIRE(call->work_bytes >= sh_cuda_sink_bwd_work_bytes(call));
    SH_TRY(sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        slopes<T> s = {sh_data<T>(&call->in[0]),
                       sh_data<T>(&call->in[1]),
                       sh_data<T>(&call->in[3]),
                       sh_data<float>(total),
                       z,
                       lanes_of(z.D, N),
                       false};
        s.vectors = sh_aligned<N>(s.dy, z.D) && sh_aligned<N>(s.y, z.D);
        return SH_LAUNCH(sink_slopes<T>, dim3((unsigned)sh_ceil_div(n_parts * z.H, WARPS)), dim3(WARPS * LANES), 0,
                         call->queue, s, parts, n_parts);
    }));
    return sh_fold_parts(sh_data<float>(&call->out[0]), sh_op_adds(call, 0), parts, n_parts, z.H, call->queue);
}
