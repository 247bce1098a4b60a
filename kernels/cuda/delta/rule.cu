/* The gated delta rule forward, row by row: columns of a state do not know of each other, so a block has 32 of one head of a
 * sequence, and four neighbouring lanes have a column in registers. Rows come to shared memory 16 at a time, keys and
 * queries divided by their lengths. Bound by the latency of a row, which is two sums over four lanes, so there are
 * B H V / 32 blocks; the chunks of kernels/cpu/delta would need tensor cores to gain. Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/delta/rows.cuh"

namespace
{
constexpr int SHARE = 4, COLS = 32, THREADS = SHARE * COLS, WARPS = THREADS / 32, ROWS = 16;
enum mark { ON, STARTS, KEPT }; /* a row of a document; its first; one with which another chunk begins */

template <class T> struct rule {
    struct sh_delta s;
    const T *x, *ba, *alog, *dt;
    const int32_t *docs, *at, *count; /* at, count: of texts that go on; NULL: of whole ones */
    T *o;
    float *state;
    int64_t tiles; /* of columns */
};

/* The rows that a block has in shared memory. */
struct piece {
    float *q, *k, *v, *decay, *beta; /* q, k: rows of `wide` elements */
    int *mark;
};

template <class T> __device__ __forceinline__ int mark_of(const rule<T> &f, int64_t b, int64_t t)
{
    if (f.at)
        return t == 0 && f.at[b * f.s.T] == 0 ? STARTS : ON;
    int64_t first = sh_cuda_document_of(f.docs, f.s.T, b, t);
    return t == first ? STARTS : (t - first) % SH_DELTA_CHUNK == 0 ? KEPT : ON;
}

/* Each warp brings every fourth row. */
template <int D, class T>
__device__ __forceinline__ void load(const rule<T> &f, const piece &p, int64_t b, int64_t h, int64_t v0, int64_t t0,
                                     int64_t end)
{
    constexpr int EACH = (D + 31) / 32;
    int lane = threadIdx.x % 32;
    int64_t key = h / (f.s.H / f.s.K) * f.s.D, value = 2 * f.s.K * f.s.D + h * f.s.V + v0 + lane;

    for (int r = threadIdx.x / 32; r < ROWS && t0 + r < end; r += WARPS) {
        int64_t row = b * f.s.T + t0 + r;
        const T *x = f.x + row * f.s.row;
        float q[EACH], k[EACH];

        sh_cuda_unit_row(q, x + key, (int)f.s.D, 1 / sqrtf((float)f.s.D));
        sh_cuda_unit_row(k, x + f.s.K * f.s.D + key, (int)f.s.D, 1);
        SH_UNROLL
        for (int i = 0; i < EACH; i++)
            if (lane + 32 * i < D) {
                p.q[r * D + lane + 32 * i] = q[i];
                p.k[r * D + lane + 32 * i] = k[i];
            }
        p.v[r * COLS + lane] = v0 + lane < f.s.V ? sh_widen(x[value]) : 0;
        if (lane == 0) {
            double raw = (double)sh_widen(f.ba[(2 * row + 1) * f.s.H + h]) + (double)sh_widen(f.dt[h]);

            p.decay[r] = (float)exp(sh_cuda_delta_decay((double)sh_widen(f.alog[h]), raw));
            p.beta[r] = sh_sigmoid<float>(sh_widen(f.ba[2 * row * f.s.H + h]));
            p.mark[r] = mark_of(f, b, t0 + r);
        }
    }
}

/* What a thread has of a column: element i is that of row row(i) of the state. */
template <int R> struct column {
    float S[R];
    int64_t D, V;
    int share;
    bool there;

    __device__ __forceinline__ int row(int i) const
    {
        return i / 4 * 4 * SHARE + share * 4 + i % 4;
    }

    __device__ __forceinline__ void clear()
    {
        SH_UNROLL
        for (int i = 0; i < R; i++)
            S[i] = 0;
    }

    __device__ __forceinline__ void read(const float *from)
    {
        SH_UNROLL
        for (int i = 0; i < R; i++)
            S[i] = there && row(i) < D ? from[row(i) * V] : 0;
    }

    __device__ __forceinline__ void write(float *to) const
    {
        SH_UNROLL
        for (int i = 0; i < R; i++)
            if (there && row(i) < D)
                to[row(i) * V] = S[i];
    }

    /* S' a over the four lanes of the column. */
    __device__ __forceinline__ float sum(float mine) const
    {
        mine += __shfl_xor_sync(~0u, mine, 1);
        return mine + __shfl_xor_sync(~0u, mine, 2);
    }

    /* S = decay S, S += k beta (v - S'k); the result is S'q. */
    __device__ __forceinline__ float step(const float *q, const float *k, float v, float decay, float beta)
    {
        float dot = 0, out = 0, a[4];

        SH_UNROLL
        for (int i = 0; i < R; i++) {
            if (i % 4 == 0)
                sh_load(a, k + row(i));
            S[i] *= decay;
            dot += S[i] * a[i % 4];
        }
        float u = beta * (v - sum(dot));
        SH_UNROLL
        for (int i = 0; i < R; i++) {
            if (i % 4 == 0)
                sh_load(a, k + row(i));
            S[i] += a[i % 4] * u;
        }
        SH_UNROLL
        for (int i = 0; i < R; i++) {
            if (i % 4 == 0)
                sh_load(a, q + row(i));
            out += S[i] * a[i % 4];
        }
        return sum(out);
    }
};

/* Rows [t0, end) of the piece, at most ROWS. `kept`: column v of slot 0 of the states of this head. */
template <int R, class T>
__device__ __forceinline__ void run(const rule<T> &f, column<R> &c, const piece &p, T *o, float *kept, int64_t t0,
                                    int64_t end)
{
    constexpr int D = SHARE * R;

    for (int r = 0; r < ROWS && t0 + r < end; r++) {
        if (p.mark[r] == STARTS)
            c.clear();
        if (p.mark[r] == KEPT)
            c.write(kept + (t0 + r) / SH_DELTA_CHUNK * f.s.H * f.s.D * f.s.V);
        float out = c.step(p.q + r * D, p.k + r * D, p.v[r * COLS + threadIdx.x / SHARE], p.decay[r], p.beta[r]);
        if (c.there && c.share == 0)
            o[(t0 + r) * f.s.H * f.s.V] = sh_narrow<T>(out);
    }
}

template <int R, class T> __global__ void __launch_bounds__(THREADS) delta_kernel(rule<T> f)
{
    constexpr int D = SHARE * R;
    SH_SHARED(uint4, q, ROWS * D / 4);
    SH_SHARED(uint4, k, ROWS * D / 4);
    SH_SHARED(float, v, ROWS *COLS);
    SH_SHARED(float, gates, 2 * ROWS);
    SH_SHARED(int, mark, ROWS);
    piece p = {reinterpret_cast<float *>(q), reinterpret_cast<float *>(k), v, gates, gates + ROWS, mark};
    int64_t i = blockIdx.x / f.tiles, v0 = blockIdx.x % f.tiles * COLS, b = i / f.s.H, h = i % f.s.H;
    int64_t at = v0 + threadIdx.x / SHARE, n = f.at ? f.count[b] : f.s.T;
    float *kept = f.state + (b * (f.at ? 1 : f.s.slots) * f.s.H + h) * f.s.D * f.s.V + at;
    T *o = f.o + (b * f.s.T * f.s.H + h) * f.s.V + at;
    column<R> c = {{0}, f.s.D, f.s.V, (int)(threadIdx.x % SHARE), at < f.s.V};

    for (int64_t slot = 0; !f.at && slot < f.s.slots; slot++)
        c.write(kept + slot * f.s.H * f.s.D * f.s.V);
    if (f.at && n)
        c.read(kept);
    for (int64_t t = 0; t < n; t += ROWS) {
        load<D>(f, p, b, h, v0, t, n);
        __syncthreads();
        run(f, c, p, o, kept, t, n);
        __syncthreads();
    }
    for (int64_t t = n; t < f.s.T; t++)
        if (c.there && c.share == 0)
            o[t * f.s.H * f.s.V] = sh_narrow<T>(0);
    if (f.at && n)
        c.write(kept);
}

template <class T> sh_rc launch(const rule<T> &f, void *queue)
{
    dim3 grid((unsigned)(f.s.B * f.s.H * f.tiles)), block(THREADS);

    SH_REQUIRE(f.s.D <= SH_DELTA_HEAD);
    if (f.s.D <= 32)
        return SH_LAUNCH((delta_kernel<8, T>), grid, block, 0, queue, f);
    if (f.s.D <= 64)
        return SH_LAUNCH((delta_kernel<16, T>), grid, block, 0, queue, f);
    if (f.s.D <= 128)
        return SH_LAUNCH((delta_kernel<32, T>), grid, block, 0, queue, f);
    return SH_LAUNCH((delta_kernel<64, T>), grid, block, 0, queue, f);
}

template <class T> rule<T> rule_of(const struct sh_op_call *call)
{
    struct sh_delta s = sh_delta_of(call, &call->in[0]);

    return {s,
            sh_data<T>(&call->in[0]),
            sh_data<T>(&call->in[1]),
            sh_data<T>(&call->in[2]),
            sh_data<T>(&call->in[3]),
            NULL,
            NULL,
            NULL,
            sh_data<T>(&call->out[0]),
            sh_data<float>(&call->out[1]),
            sh_ceil_div(s.V, COLS)};
}
} // namespace

extern "C" sh_rc sh_cuda_gated_delta(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        auto f = rule_of<decltype(zero)>(call);
        f.docs = sh_data<int32_t>(&call->in[4]);
        return launch(f, call->queue);
    });
}

extern "C" sh_rc sh_cuda_gated_delta_cache(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        auto f = rule_of<decltype(zero)>(call);
        f.at = sh_data<int32_t>(&call->in[4]);
        f.count = sh_data<int32_t>(&call->in[5]);
        return launch(f, call->queue);
    });
}
