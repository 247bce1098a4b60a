/* The gated delta rule and Mamba-2's state space (SPACE) forward, row by row: columns of a state do not know of each
 * other, so a block has 32 of one head of a sequence, and four neighbouring lanes have a column in registers. Rows come
 * to shared memory 16 at a time, those of the rule divided by their lengths. Bound by the latency of a row, which is two
 * sums over four lanes, so there are B H V / 32 blocks; the chunks of kernels/cpu/delta would need tensor cores to gain.
 * Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/delta/rows.cuh"
#include "kernels/scan.h"

namespace
{
constexpr int SHARE = 4, COLS = 32, THREADS = SHARE * COLS, WARPS = THREADS / 32, ROWS = 16;
enum mark { ON, STARTS, KEPT }; /* a row of a document; its first; one with which another chunk begins */

/* A state space reads C, writes B, and has a step of each row in place of b. */
template <class T> struct rule {
    struct sh_delta s;
    const T *x, *ba, *alog, *dt, *skip; /* a state space: ba is [B,T,H], the steps before their bias dt */
    const int32_t *docs, *at, *count;   /* at, count: of texts that go on; NULL: of whole ones */
    T *o;
    float *state;
    int64_t tiles; /* of columns */
    float least;   /* step */
};

/* The rows that a block has in shared memory. */
struct piece {
    float *q, *k, *v, *decay, *beta; /* q, k: rows of `wide` elements */
    int *mark;
};

template <bool SPACE> constexpr int CHUNK = SPACE ? (int)SH_SCAN_CHUNK : (int)SH_DELTA_CHUNK;

template <bool SPACE, class T> __device__ __forceinline__ int mark_of(const rule<T> &f, int64_t b, int64_t t)
{
    if (f.at)
        return t == 0 && f.at[b * f.s.T] == 0 ? STARTS : ON;
    int64_t first = sh_cuda_document_of(f.docs, f.s.T, b, t);
    return t == first ? STARTS : (t - first) % CHUNK<SPACE> == 0 ? KEPT : ON;
}

template <bool SPACE, int EACH, class T>
__device__ __forceinline__ void load_key(float (&v)[EACH], const T *from, int n, float times)
{
    if constexpr (SPACE) {
        SH_UNROLL
        for (int i = 0; i < EACH; i++) {
            int d = (int)(threadIdx.x % 32) + 32 * i;
            v[i] = d < n ? sh_widen(from[d]) : 0;
        }
    } else {
        sh_cuda_unit_row(v, from, n, times);
    }
}

template <bool SPACE, class T>
__device__ __forceinline__ void load_numbers(const rule<T> &f, const piece &p, int r, int64_t row, int64_t h)
{
    double a_log = (double)sh_widen(f.alog[h]), bias = (double)sh_widen(f.dt[h]);

    if (SPACE) {
        double step = fmax(sh_cuda_softplus((double)sh_widen(f.ba[row * f.s.H + h]) + bias), (double)f.least);

        p.decay[r] = (float)exp(-exp(a_log) * step);
        p.beta[r] = (float)step;
    } else {
        double raw = (double)sh_widen(f.ba[(2 * row + 1) * f.s.H + h]) + bias;

        p.decay[r] = (float)exp(sh_cuda_delta_decay(a_log, raw));
        p.beta[r] = sh_sigmoid<float>(sh_widen(f.ba[2 * row * f.s.H + h]));
    }
}

/* Each warp brings every fourth row. */
template <int D, bool SPACE, class T>
__device__ __forceinline__ void load(const rule<T> &f, const piece &p, int64_t b, int64_t h, int64_t v0, int64_t t0,
                                     int64_t end)
{
    constexpr int EACH = (D + 31) / 32;
    int lane = threadIdx.x % 32;
    int64_t all = f.s.K * f.s.D, group = h / (f.s.H / f.s.K) * f.s.D, behind = f.s.H * f.s.V;
    int64_t read = SPACE ? behind + all + group : group, written = SPACE ? behind + group : all + group;
    int64_t value = (SPACE ? 0 : 2 * all) + h * f.s.V + v0 + lane;

    for (int r = threadIdx.x / 32; r < ROWS && t0 + r < end; r += WARPS) {
        int64_t row = b * f.s.T + t0 + r;
        const T *x = f.x + row * f.s.row;
        float q[EACH], k[EACH];

        load_key<SPACE>(q, x + read, (int)f.s.D, 1 / sqrtf((float)f.s.D));
        load_key<SPACE>(k, x + written, (int)f.s.D, 1);
        SH_UNROLL
        for (int i = 0; i < EACH; i++)
            if (lane + 32 * i < D) {
                p.q[r * D + lane + 32 * i] = q[i];
                p.k[r * D + lane + 32 * i] = k[i];
            }
        p.v[r * COLS + lane] = v0 + lane < f.s.V ? sh_widen(x[value]) : 0;
        if (lane == 0) {
            load_numbers<SPACE>(f, p, r, row, h);
            p.mark[r] = mark_of<SPACE>(f, b, t0 + r);
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

    /* S = decay S, S += k beta (v - S'k), of a state space S += k beta v; the result is S'q. */
    template <bool SPACE>
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
        float u = beta * (SPACE ? v : v - sum(dot));
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
template <bool SPACE, int R, class T>
__device__ __forceinline__ void run(const rule<T> &f, column<R> &c, const piece &p, T *o, float *kept, float skip,
                                    int64_t t0, int64_t end)
{
    constexpr int D = SHARE * R;

    for (int r = 0; r < ROWS && t0 + r < end; r++) {
        if (p.mark[r] == STARTS)
            c.clear();
        if (p.mark[r] == KEPT)
            c.write(kept + (t0 + r) / CHUNK<SPACE> * f.s.H * f.s.D * f.s.V);
        float v = p.v[r * COLS + threadIdx.x / SHARE];
        float out = c.template step<SPACE>(p.q + r * D, p.k + r * D, v, p.decay[r], p.beta[r]);
        if (c.there && c.share == 0)
            o[(t0 + r) * f.s.H * f.s.V] = sh_narrow<T>(SPACE ? out + skip * v : out);
    }
}

template <int R, bool SPACE, class T> __device__ __forceinline__ void run_block(const rule<T> &f)
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
    float skip = SPACE ? sh_widen(f.skip[h]) : 0;
    column<R> c = {{0}, f.s.D, f.s.V, (int)(threadIdx.x % SHARE), at < f.s.V};

    for (int64_t slot = 0; !f.at && slot < f.s.slots; slot++)
        c.write(kept + slot * f.s.H * f.s.D * f.s.V);
    if (f.at && n)
        c.read(kept);
    for (int64_t t = 0; t < n; t += ROWS) {
        load<D, SPACE>(f, p, b, h, v0, t, n);
        __syncthreads();
        run<SPACE>(f, c, p, o, kept, skip, t, n);
        __syncthreads();
    }
    for (int64_t t = n; t < f.s.T; t++)
        if (c.there && c.share == 0)
            o[t * f.s.H * f.s.V] = sh_narrow<T>(0);
    if (f.at && n)
        c.write(kept);
}

template <int R, class T> __global__ void __launch_bounds__(THREADS) delta_kernel(rule<T> f)
{
    run_block<R, false>(f);
}

template <int R, class T> __global__ void __launch_bounds__(THREADS) scan_kernel(rule<T> f)
{
    run_block<R, true>(f);
}

template <int R, class T> sh_rc launch_of(const rule<T> &f, void *queue)
{
    dim3 grid((unsigned)(f.s.B * f.s.H * f.tiles)), block(THREADS);

    if (f.skip)
        return SH_LAUNCH((scan_kernel<R, T>), grid, block, 0, queue, f);
    return SH_LAUNCH((delta_kernel<R, T>), grid, block, 0, queue, f);
}

template <class T> sh_rc launch(const rule<T> &f, void *queue)
{
    SH_REQUIRE(f.s.D <= SH_DELTA_HEAD);
    return f.s.D <= 32    ? launch_of<8>(f, queue)
           : f.s.D <= 64  ? launch_of<16>(f, queue)
           : f.s.D <= 128 ? launch_of<32>(f, queue)
                          : launch_of<64>(f, queue);
}

/* Without documents and places. */
template <class T> rule<T> rule_of(const struct sh_op_call *call)
{
    bool space = call->kind == SH_OP_SCAN || call->kind == SH_OP_SCAN_CACHE;
    struct sh_delta s = space ? sh_space_of(call, &call->in[0]) : sh_delta_of(call, &call->in[0]);
    const T *heads = sh_data<T>(&call->in[2]);

    return {s,
            sh_data<T>(&call->in[0]),
            sh_data<T>(&call->in[1]),
            heads,
            space ? heads + s.H : sh_data<T>(&call->in[3]),
            space ? heads + 2 * s.H : NULL,
            NULL,
            NULL,
            NULL,
            sh_data<T>(&call->out[0]),
            sh_data<float>(&call->out[1]),
            sh_ceil_div(s.V, COLS),
            space ? call->attr->delta.least : 0};
}

/* Input `docs`. */
sh_rc whole(const struct sh_op_call *call, int docs)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        auto f = rule_of<decltype(zero)>(call);
        f.docs = sh_data<int32_t>(&call->in[docs]);
        return launch(f, call->queue);
    });
}

/* Inputs `at` and the one behind it. */
sh_rc going_on(const struct sh_op_call *call, int at)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        auto f = rule_of<decltype(zero)>(call);
        f.at = sh_data<int32_t>(&call->in[at]);
        f.count = sh_data<int32_t>(&call->in[at + 1]);
        return launch(f, call->queue);
    });
}
} // namespace

extern "C" sh_rc sh_cuda_gated_delta(const struct sh_op_call *call)
{
    return whole(call, 4);
}

extern "C" sh_rc sh_cuda_gated_delta_cache(const struct sh_op_call *call)
{
    return going_on(call, 4);
}

extern "C" sh_rc sh_cuda_scan(const struct sh_op_call *call)
{
    return whole(call, 3);
}

extern "C" sh_rc sh_cuda_scan_cache(const struct sh_op_call *call)
{
    return going_on(call, 3);
}
