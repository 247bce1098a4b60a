/* RMSNorm of queries and keys. A warp handles one group of a row at a time and reads it twice, the second time from
 * the L1 cache, or once if the mean of all ranks' heads is given. Gradients of the weights are sums over rows and groups
 * (fold.cuh), which read dy and qkv once more, before dqkv is written, because it may have the storage of dy. Bytes per
 * element, f32 (bf16: half): forward 8, backward 20 and the partial sums; for values 8, none in place. A rank's part of
 * such a mean: 4 for squares, 8 for products, of a warp for the queries of a row and of one for its keys.
 * kernels/ref/qk_norm.c has the formulas. */
#include "kernels/qk_norm.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/work.h"

namespace
{
constexpr int WARPS = 8;

/* Groups of a row, queries first; after them the values as one more group, which is copied. */
template <class T> struct norm {
    sh_qk_norm s;
    T *y;
    const T *x, *dy, *wq, *wk; /* dy NULL: the forward */
    float *rstd;
    const float *mean; /* [rows,2]: of the queries and keys of all ranks; NULL: those of this one are all */
    float eps;
    bool plus_one, copies, vectors;

    __device__ __forceinline__ int64_t groups() const
    {
        return s.q + s.k;
    }

    /* What is given for group g. */
    __device__ __forceinline__ float mean_of(int64_t row, int64_t g) const
    {
        return mean[2 * row + (g < s.q ? 0 : 1)];
    }

    __device__ __forceinline__ int64_t column(int64_t g) const
    {
        return g < s.q ? g * s.wq : s.q_cols + (g - s.q) * s.wk;
    }

    template <int N> __device__ __forceinline__ void load_weight(float (&w)[N], int64_t g, int64_t c) const
    {
        sh_load_some(w, (g < s.q ? wq : wk) + c, (g < s.q ? s.wq : s.wk) - c, vectors);
        for (int k = 0; k < N; k++)
            w[k] += plus_one ? 1.0f : 0.0f;
    }
};

constexpr int LANES = 32;

template <class T, int N>
__device__ __forceinline__ void copy_values(const norm<T> &f, const T *from, int64_t row, unsigned lane)
{
    for (int64_t c = f.s.cols + lane * N; c < f.s.row; c += LANES * N) {
        float v[N];
        sh_load_some(v, from + row * f.s.row + c, f.s.row - c, f.vectors);
        sh_store_some(f.y + row * f.s.row + c, v, f.s.row - c, f.vectors);
    }
}

/* The mean of squares of a group of `width` elements from `at` on. */
template <class T, int N>
__device__ __forceinline__ float mean_square(const norm<T> &f, int64_t at, int64_t width, unsigned lane)
{
    float square = 0;

    for (int64_t c = lane * N; c < width; c += LANES * N) {
        float v[N];
        sh_load_some(v, f.x + at + c, width - c, f.vectors);
        for (int k = 0; k < N; k++)
            square += v[k] * v[k];
    }
    return sh_warp_reduce(square, sh_add()) / (float)width;
}

template <class T, int N>
__device__ __forceinline__ void forward_group(const norm<T> &f, int64_t row, int64_t g, unsigned lane)
{
    int64_t at = row * f.s.row + f.column(g), width = g < f.s.q ? f.s.wq : f.s.wk;
    float mean = f.mean ? f.mean_of(row, g) : mean_square<T, N>(f, at, width, lane), rstd = 1.0f / sqrtf(mean + f.eps);

    for (int64_t c = lane * N; c < width; c += LANES * N) {
        float v[N], w[N];
        sh_load_some(v, f.x + at + c, width - c, f.vectors);
        f.load_weight(w, g, c);
        for (int k = 0; k < N; k++)
            v[k] = v[k] * rstd * w[k];
        sh_store_some(f.y + at + c, v, width - c, f.vectors);
    }
    if (lane == 0)
        f.rstd[row * f.groups() + g] = rstd;
}

/* The mean of dy w xhat of group g, of `width` elements from `at` on. */
template <class T, int N>
__device__ __forceinline__ float mean_product(const norm<T> &f, int64_t g, int64_t at, int64_t width, float rstd,
                                              unsigned lane)
{
    float sum = 0;

    for (int64_t c = lane * N; c < width; c += LANES * N) {
        float dy[N], x[N], w[N];
        sh_load_some(dy, f.dy + at + c, width - c, f.vectors);
        sh_load_some(x, f.x + at + c, width - c, f.vectors);
        f.load_weight(w, g, c);
        for (int k = 0; k < N; k++)
            sum += dy[k] * w[k] * x[k] * rstd;
    }
    return sh_warp_reduce(sum, sh_add()) / (float)width;
}

template <class T, int N>
__device__ __forceinline__ void backward_group(const norm<T> &f, int64_t row, int64_t g, unsigned lane)
{
    int64_t at = row * f.s.row + f.column(g), width = g < f.s.q ? f.s.wq : f.s.wk;
    float rstd = f.rstd[row * f.groups() + g];
    float mean = f.mean ? rstd * f.mean_of(row, g) : mean_product<T, N>(f, g, at, width, rstd, lane);

    for (int64_t c = lane * N; c < width; c += LANES * N) {
        float dy[N], x[N], w[N];
        sh_load_some(dy, f.dy + at + c, width - c, f.vectors);
        sh_load_some(x, f.x + at + c, width - c, f.vectors);
        f.load_weight(w, g, c);
        for (int k = 0; k < N; k++)
            dy[k] = rstd * (dy[k] * w[k] - x[k] * rstd * mean);
        sh_store_some(f.y + at + c, dy, width - c, f.vectors);
    }
}

template <class T> __global__ void __launch_bounds__(WARPS *LANES) qk_norm_kernel(norm<T> f)
{
    constexpr int N = SH_WIDTH<T>;
    unsigned lane = threadIdx.x % LANES;
    int64_t each = f.groups() + f.copies, all = f.s.rows * each, step = (int64_t)gridDim.x * WARPS;

    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES; i < all; i += step) {
        int64_t row = i / each, g = i % each;
        if (g == f.groups())
            copy_values<T, N>(f, f.dy ? f.dy : f.x, row, lane);
        else if (f.dy)
            backward_group<T, N>(f, row, g, lane);
        else
            forward_group<T, N>(f, row, g, lane);
    }
}

/* A group's dy xhat as a row of a matrix [rows * groups, width], for queries or for keys. */
template <class T> struct weight_rows {
    struct raw {
        sh_raw<T> dy, x;
        float rstd;
    };
    static constexpr int AT_ONCE = 4, N = SH_WIDTH<T>;
    norm<T> f;
    int64_t groups, width, first;

    __device__ __forceinline__ void load(raw &r, int64_t i, int64_t left, bool vectors) const
    {
        int64_t row = i / width, n = row / groups, g = first + row % groups;
        int64_t at = n * f.s.row + f.column(g) + i % width;
        r.dy.load(f.dy + at, left, vectors);
        r.x.load(f.x + at, left, vectors);
        r.rstd = f.rstd[n * f.groups() + g];
    }

    __device__ __forceinline__ void value(float (&v)[N], const raw &r, int64_t, int64_t, bool) const
    {
        float x[N];
        r.dy.widen(v);
        r.x.widen(x);
        for (int k = 0; k < N; k++)
            v[k] *= x[k] * r.rstd;
    }
};

template <class T> bool aligned(const norm<T> &f)
{
    constexpr int N = SH_WIDTH<T>;
    return f.s.wq % N == 0 && f.s.wk % N == 0 && f.s.cols % N == 0 && sh_aligned<N>(f.y, f.s.row) &&
           sh_aligned<N>(f.x, f.s.row) && sh_aligned<N>(f.dy, f.s.row) && sh_aligned<N>(f.wq, 0) &&
           sh_aligned<N>(f.wk, 0);
}

template <class T> sh_rc launch(const norm<T> &f, void *queue)
{
    dim3 grid(sh_blocks(sh_ceil_div(f.s.rows * (f.s.q + f.s.k + f.copies), WARPS)));
    return SH_LAUNCH(qk_norm_kernel<T>, grid, dim3(WARPS * LANES), 0, queue, f);
}

template <class T> sh_rc run_forward(const struct sh_op_call *call, const sh_qk_norm &s)
{
    norm<T> f = {s,
                 sh_data<T>(&call->out[0]),
                 sh_data<T>(&call->in[0]),
                 NULL,
                 sh_data<T>(&call->in[1]),
                 sh_data<T>(&call->in[2]),
                 sh_data<float>(&call->out[1]),
                 sh_data<float>(&call->in[3]),
                 call->attr->qk.eps,
                 call->attr->qk.plus_one,
                 call->out[0].data != call->in[0].data,
                 false};
    f.vectors = aligned(f);
    return launch(f, call->queue);
}

/* For queries (0) or keys (1). */
template <class T> sh_rc weight_gradient(const struct sh_op_call *call, const norm<T> &f, int key)
{
    constexpr int N = SH_WIDTH<T>;
    weight_rows<T> rows = {f, key ? f.s.k : f.s.q, key ? f.s.wk : f.s.wq, key ? f.s.q : 0};
    int64_t n = f.s.rows * rows.groups, parts = sh_cuda_row_parts(n);
    float *sums = static_cast<float *>(call->work);

    SH_TRY(sh_row_sums<N>(rows, sums, n, rows.width, parts, f.vectors, call->queue));
    return sh_fold_parts(sh_data<float>(&call->out[1 + key]), sh_op_adds(call, 1 + key), sums, parts, rows.width,
                         call->queue);
}

template <class T> sh_rc run_backward(const struct sh_op_call *call, const sh_qk_norm &s)
{
    norm<T> f = {s,
                 sh_data<T>(&call->out[0]),
                 sh_data<T>(&call->in[1]),
                 sh_data<T>(&call->in[0]),
                 sh_data<T>(&call->in[2]),
                 sh_data<T>(&call->in[3]),
                 sh_data<float>(&call->in[4]),
                 sh_data<float>(&call->in[5]),
                 0,
                 call->attr->qk.plus_one,
                 call->out[0].data != call->in[0].data,
                 false};
    f.vectors = aligned(f);
    for (int key = 0; key < 2; key++)
        if (call->out[1 + key].data)
            SH_TRY(weight_gradient(call, f, key));
    return launch(f, call->queue);
}

/* This rank's part of the means of a b w over the queries and over the keys of all ranks. */
template <class T> struct means {
    float *out;               /* [rows,2] */
    const T *a, *b, *wq, *wk; /* wq, wk NULL: 1 */
    int64_t rows, row, q, k;  /* rows, and elements of a row, of its queries and of its keys */
    int ranks;
    bool plus_one, vectors;
};

template <class T> __global__ void __launch_bounds__(WARPS *LANES) qk_means_kernel(means<T> f)
{
    constexpr int N = SH_WIDTH<T>;
    unsigned lane = threadIdx.x % LANES;
    float one = f.plus_one ? 1.0f : 0.0f;

    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES; i < 2 * f.rows;
         i += (int64_t)gridDim.x * WARPS) {
        int64_t at = i / 2 * f.row + (i % 2 ? f.q : 0), width = i % 2 ? f.k : f.q;
        const T *weight = i % 2 ? f.wk : f.wq;
        float sum = 0;

        for (int64_t c = lane * N; c < width; c += LANES * N) {
            float v[N], by[N];
            sh_load_some(v, f.a + at + c, width - c, f.vectors);
            sh_load_some(by, f.b + at + c, width - c, f.vectors);
            for (int k = 0; k < N; k++)
                v[k] *= by[k];
            if (weight)
                sh_load_some(by, weight + c, width - c, f.vectors);
            for (int k = 0; k < N; k++)
                sum += weight ? v[k] * (by[k] + one) : v[k];
        }
        sum = sh_warp_reduce(sum, sh_add());
        if (lane == 0)
            f.out[i] = sum / (float)(width * f.ranks);
    }
}

template <class T> sh_rc run_means(const struct sh_op_call *call)
{
    constexpr int N = SH_WIDTH<T>;
    int64_t q = call->attr->qk.q_width, k = call->attr->qk.k_width;
    means<T> f = {sh_data<float>(&call->out[0]),
                  sh_data<T>(&call->in[0]),
                  sh_data<T>(&call->in[1]),
                  sh_data<T>(&call->in[2]),
                  sh_data<T>(&call->in[3]),
                  call->in[0].dim[0],
                  q + 2 * k,
                  q,
                  k,
                  call->attr->qk.ranks,
                  call->attr->qk.plus_one,
                  false};
    f.vectors = q % N == 0 && k % N == 0 && sh_aligned<N>(f.a, f.row) && sh_aligned<N>(f.b, f.row) &&
                sh_aligned<N>(f.wq, 0) && sh_aligned<N>(f.wk, 0);
    dim3 grid(sh_blocks(sh_ceil_div(2 * f.rows, WARPS)));
    return SH_LAUNCH(qk_means_kernel<T>, grid, dim3(WARPS * LANES), 0, call->queue, f);
}
} // namespace

extern "C" sh_rc sh_cuda_qk_norm(const struct sh_op_call *call)
{
    sh_qk_norm s = sh_qk_norm_of(call, &call->in[1]);

    SH_REQUIRE(sh_qk_norm_fits(&s));
    return sh_by_act(call->in[0].dtype, [&](auto zero) { return run_forward<decltype(zero)>(call, s); });
}

extern "C" sh_rc sh_cuda_qk_norm_bwd(const struct sh_op_call *call)
{
    sh_qk_norm s = sh_qk_norm_of(call, &call->in[2]);

    SH_REQUIRE(sh_qk_norm_fits(&s) && call->work_bytes >= sh_cuda_qk_norm_bwd_work_bytes(call));
    return sh_by_act(call->out[0].dtype, [&](auto zero) { return run_backward<decltype(zero)>(call, s); });
}

extern "C" sh_rc sh_cuda_qk_means(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) { return run_means<decltype(zero)>(call); });
}
