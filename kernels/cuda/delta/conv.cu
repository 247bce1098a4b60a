/* Short convolution over time with SiLU. Forward: a thread has an element. Backward: a thread has a column of some rows and
 * takes them from the last on, with the derivatives by the newest sums in registers; each part of the rows makes those of
 * W - 1 rows behind it again. Bound by memory, for a row is read W times but from the cache. Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/delta/rows.cuh"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/work.h"

namespace
{
constexpr int TAPS = 8, THREADS = 256; /* the longest convolution that the configuration allows */

template <class T> struct conv {
    const T *x, *w, *bias;
    T *tail; /* [B,W-1,C]: rows before row 0; NULL: there are none */
    const int32_t *docs;
    int64_t rows, C;
    int length, W; /* of a sequence */

    __device__ __forceinline__ float before(int64_t b, int t, int64_t c) const
    {
        return sh_widen(t < 0 ? tail[((b + 1) * (W - 1) + t) * C + c] : x[(b * length + t) * C + c]);
    }

    /* Before SiLU; the text of row t begins at row `first`. */
    __device__ __forceinline__ float sum(int64_t b, int t, int first, int64_t c) const
    {
        float sum = bias ? sh_widen(bias[c]) : 0;

        for (int j = 0; j < W; j++)
            if (t - (W - 1) + j >= first)
                sum += sh_widen(w[c * W + j]) * before(b, t - (W - 1) + j, c);
        return sum;
    }

    __device__ __forceinline__ int first(int64_t b, int t) const
    {
        return (int)sh_cuda_document_of(docs, length, b, t);
    }
};

template <class T> struct forward {
    conv<T> f;
    T *y;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t row = i / f.C, b = row / f.length;
        int t = (int)(row % f.length);
        float sum = f.sum(b, t, f.first(b, t), i % f.C);

        y[i] = sh_narrow<T>(sum * sh_sigmoid<T>(sum));
    }
};

/* dw [parts,C,W] and db [parts,C]: sums over the rows of a part. */
template <class T> struct backward {
    conv<T> f;
    T *dx;
    const T *dy;
    float *dw, *db;
    int64_t parts;

    __device__ __forceinline__ float slope(int64_t row, int64_t b, int t, int first, int64_t c) const
    {
        float x = f.sum(b, t, first, c), s = sh_sigmoid<T>(x);

        return sh_widen(dy[row * f.C + c]) * s * (1 + x * (1 - s));
    }

    /* d: the derivatives by the sums of rows t, t + 1, ...; w: the weights from the last one on. */
    __device__ __forceinline__ float gradient(const float (&d)[TAPS], const float (&w)[TAPS], int64_t b, int t) const
    {
        float sum = 0;

        SH_UNROLL
        for (int back = 0; back < TAPS; back++)
            if (back < f.W && t + back < f.length && f.first(b, t + back) <= t)
                sum += w[back] * d[back];
        return sum;
    }

    __device__ __forceinline__ void column(int64_t c, int64_t part) const
    {
        float d[TAPS] = {0}, by[TAPS] = {0}, w[TAPS] = {0}, sum = 0;
        int64_t begin = f.rows * part / parts, end = f.rows * (part + 1) / parts;
        int64_t all = ((end - 1) / f.length + 1) * f.length, row = (end + f.W - 1 < all ? end + f.W - 1 : all) - 1;

        SH_UNROLL
        for (int back = 0; back < TAPS; back++)
            w[back] = back < f.W ? sh_widen(f.w[c * f.W + f.W - 1 - back]) : 0;
        for (; row >= begin; row--) {
            int64_t b = row / f.length;
            int t = (int)(row % f.length), first = f.first(b, t);

            SH_UNROLL
            for (int k = TAPS - 1; k > 0; k--)
                d[k] = d[k - 1];
            d[0] = slope(row, b, t, first, c);
            if (row >= end)
                continue;
            dx[row * f.C + c] = sh_narrow<T>(gradient(d, w, b, t));
            sum += d[0];
            SH_UNROLL
            for (int back = 0; back < TAPS; back++)
                if (back < f.W && t - back >= first)
                    by[back] += d[0] * sh_widen(f.x[(row - back) * f.C + c]);
        }
        SH_UNROLL
        for (int back = 0; back < TAPS; back++)
            if (back < f.W)
                dw[(part * f.C + c) * f.W + f.W - 1 - back] = by[back];
        db[part * f.C + c] = sum;
    }
};

template <class T> __global__ void __launch_bounds__(THREADS) conv_back(backward<T> f)
{
    int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (c < f.f.C)
        f.column(c, blockIdx.y);
}

/* A thread has a column of a sequence. Each row of the tail comes from a later place than the one it goes to. */
template <class T> struct going_on {
    conv<T> f;
    T *y;
    const int32_t *position, *count;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t b = i / f.C, c = i % f.C;
        int n = count[b], first = position[b * f.length] == 0 ? 0 : 1 - f.W, kept = f.W - 1;

        for (int t = 0; t < f.length; t++) {
            float sum = t < n ? f.sum(b, t, first, c) : 0;

            y[(b * f.length + t) * f.C + c] = sh_narrow<T>(sum * sh_sigmoid<T>(sum));
        }
        for (int j = 0; n && j < kept; j++) {
            int from = n - kept + j;

            f.tail[(b * kept + j) * f.C + c] = sh_narrow<T>(from >= first ? f.before(b, from, c) : 0);
        }
    }
};

/* From the input on that is x: x, w, docs or positions, bias. */
template <class T> conv<T> conv_of(const struct sh_op_call *call, int x)
{
    const struct sh_operand *in = &call->in[x];

    return {sh_data<T>(in), sh_data<T>(in + 1),       sh_data<T>(in + 3),
            NULL,           sh_data<int32_t>(in + 2), in->dim[0] * in->dim[1],
            in->dim[2],     (int)in->dim[1],          (int)in[1].dim[2]};
}
} // namespace

extern "C" sh_rc sh_cuda_short_conv(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        forward<T> f = {conv_of<T>(call, 0), sh_data<T>(&call->out[0])};
        return sh_map<1>("short_conv", f, f.f.rows * f.f.C, false, call->queue);
    });
}

extern "C" sh_rc sh_cuda_short_conv_bwd(const struct sh_op_call *call)
{
    int64_t C = call->in[1].dim[2], W = call->in[2].dim[2];
    int64_t parts = sh_cuda_row_parts(call->in[1].dim[0] * call->in[1].dim[1]);
    float *dw = static_cast<float *>(call->work), *db = dw + parts * C * W;

    SH_REQUIRE(W <= TAPS && call->work_bytes >= sh_cuda_short_conv_bwd_work_bytes(call));
    SH_TRY(sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        backward<T> f = {conv_of<T>(call, 1), sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), dw, db, parts};
        return SH_LAUNCH(conv_back<T>, dim3((unsigned)sh_ceil_div(C, THREADS), (unsigned)parts), dim3(THREADS), 0,
                         call->queue, f);
    }));
    if (call->out[1].data)
        SH_TRY(sh_fold_parts(sh_data<float>(&call->out[1]), sh_op_adds(call, 1), dw, parts, C * W, call->queue));
    if (call->out[2].data)
        SH_TRY(sh_fold_parts(sh_data<float>(&call->out[2]), sh_op_adds(call, 2), db, parts, C, call->queue));
    return SH_OK;
}

extern "C" sh_rc sh_cuda_short_conv_cache(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        going_on<T> f = {conv_of<T>(call, 0), sh_data<T>(&call->out[0]), sh_data<int32_t>(&call->in[2]),
                         sh_data<int32_t>(&call->in[4])};
        f.f.tail = sh_data<T>(&call->out[1]);
        return sh_map<1>("short_conv_cache", f, call->in[0].dim[0] * f.f.C, false, call->queue);
    });
}
