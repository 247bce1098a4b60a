/* The backward of the state-space dual form, from the last chunk on: a block has a head of a sequence, whose matrices lie in
 * scratch. The formulas are those of kernels/cpu/scan (doc/decisions/0086). What heads say of the B and C that they share
 * is added by a second kernel, in the order of heads; both run for a window of rows at a time, the last one first, so
 * that scratch is that of a window. Products run in f32 without tensor cores. Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/delta/chunk.cuh"
#include "kernels/cuda/delta/scan.h"
#include "kernels/cuda/map.cuh"

namespace
{
constexpr int CHUNK = SH_SCAN_CHUNK, THREADS = SH_CHUNK_THREADS, WARPS = THREADS / 32, SUMS = 3;

/* Numbers of the rows of a chunk, as in kernels/cpu/scan/scan.h, the derivatives by G and steps, and a place for another
 * sum. */
struct numbers {
    double G[CHUNK], raw[CHUNK], dG[CHUNK], dstep[CHUNK], left[CHUNK];
    float step[CHUNK], grown[CHUNK], tail[CHUNK];
};

template <class T> struct call {
    struct sh_delta s;
    const T *dy, *x, *dt, *heads;
    const int32_t *docs;
    const float *kept;
    T *dx, *ddt;
    double *sums; /* [B,H,3] of a_log, bias, skip */
    float *room;
    int64_t each, rows; /* floats of a block's room; rows of a window's chunks, at most */
    int64_t from, to;   /* the window: chunks that begin there */
    double least;

    __device__ __forceinline__ int64_t chunk_of(int64_t b, int64_t t) const
    {
        int64_t first = sh_cuda_document_of(docs, s.T, b, t);
        return first + (t - first) / CHUNK * CHUNK;
    }

    /* What a block leaves of B and C [rows,2,D] of the window. */
    __device__ __forceinline__ float *keys(int64_t block) const
    {
        return room + (block + 1) * each - rows * 2 * s.D;
    }
};

/* Matrices of a chunk, dense but for those of [n,n], whose rows are CHUNK apart. */
template <class T> struct chunk : sh_cuda_chunk {
    const call<T> &f;
    numbers &z;
    int D, V;
    double decay; /* e^a_log */
    float skip;
    float *B, *C, *X, *U, *dO, *dU, *P, *dP, *dS, *dBC;

    __device__ chunk(const call<T> &of, numbers &numbers_, int64_t block) : f(of), z(numbers_)
    {
        float *room = f.room + block * f.each;

        b = block / f.s.H, h = block % f.s.H, D = (int)f.s.D, V = (int)f.s.V;
        decay = exp((double)sh_widen(f.heads[h])), skip = sh_widen(f.heads[2 * f.s.H + h]);
        B = room, C = B + CHUNK * D, X = C + CHUNK * D, U = X + CHUNK * V;
        dO = U + CHUNK * V, dU = dO + CHUNK * V, P = dU + CHUNK * V, dP = P + CHUNK * CHUNK;
        dS = dP + CHUNK * CHUNK, dBC = f.keys(block);
    }

    __device__ __forceinline__ int64_t row(int i) const
    {
        return b * f.s.T + begin + i;
    }

    __device__ void load_row(int i)
    {
        const T *x = f.x + row(i) * f.s.row, *group = x + f.s.H * V + h / (f.s.H / f.s.K) * D;

        for (int d = threadIdx.x % 32; d < D; d += 32) {
            B[i * D + d] = sh_widen(group[d]);
            C[i * D + d] = sh_widen(group[f.s.K * D + d]);
        }
        for (int v = threadIdx.x % 32; v < V; v += 32) {
            X[i * V + v] = sh_widen(x[h * V + v]);
            U[i * V + v] = X[i * V + v] * z.step[i];
            dO[i * V + v] = sh_widen(f.dy[(row(i) * f.s.H + h) * V + v]);
        }
    }

    /* Steps and decays. */
    __device__ void load_numbers()
    {
        by_threads(n, [&](int i) {
            double raw = (double)sh_widen(f.dt[row(i) * f.s.H + h]) + (double)sh_widen(f.heads[f.s.H + h]);
            double step = fmax(sh_cuda_softplus(raw), f.least);

            z.raw[i] = raw;
            z.step[i] = (float)step;
            z.G[i] = -decay * step;
        });
        __syncthreads();
        if (threadIdx.x == 0)
            for (int i = 1; i < n; i++)
                z.G[i] += z.G[i - 1];
        __syncthreads();
        by_threads(n, [&](int i) {
            z.grown[i] = (float)exp(z.G[i]);
            z.tail[i] = (float)exp(z.G[n - 1] - z.G[i]);
        });
    }

    /* Element e of F. */
    __device__ __forceinline__ float between(int e) const
    {
        int i = e / CHUNK, j = e % CHUNK;
        return j <= i ? expf((float)(z.G[i] - z.G[j])) : 0;
    }

    /* Numbers, rows, and P. */
    __device__ void load()
    {
        load_numbers();
        by_warps([&](int i) { load_row(i); });
        sh_cuda_chunk_product(P, CHUNK, false, sh_plain(C, D), sh_turned(B, D), n, n, D);
        __syncthreads();
        by_threads(n * CHUNK, [&](int e) { P[e] = e % CHUNK <= e / CHUNK ? P[e] * between(e) : 0; });
    }

    /* dU = tail B dS + P'dO, and what the state behind the chunk says of decays. */
    __device__ void inputs_back()
    {
        sh_cuda_chunk_product(dU, V, false, sh_plain(B, D), sh_plain(dS, V), n, V, D);
        __syncthreads();
        by_warps([&](int i) {
            for (int v = threadIdx.x % 32; v < V; v += 32)
                dU[i * V + v] *= z.tail[i];
            __syncwarp();
            double left = sh_cuda_chunk_dot(dU + i * V, U + i * V, V);
            if (threadIdx.x % 32 == 0)
                z.left[i] = left;
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            double all = 0;

            for (int i = 0; i < n; i++) {
                z.dG[i] = -z.left[i];
                all += z.left[i];
            }
            z.dG[n - 1] += all;
        }
        sh_cuda_chunk_product(dU, V, true, sh_turned(P, CHUNK), sh_plain(dO, V), n, V, n);
    }

    /* dP = dO U', and what it says of decays; in its place is left what multiplies CB'. */
    __device__ void scores_back()
    {
        auto both = [&](int i, int j) { return (double)dP[i * CHUNK + j] * (double)P[i * CHUNK + j]; };

        sh_cuda_chunk_product(dP, CHUNK, false, sh_plain(dO, V), sh_turned(U, V), n, n, V);
        __syncthreads();
        by_warps([&](int i) {
            double sum = 0;

            for (int j = threadIdx.x % 32; j < i; j += 32)
                sum += both(i, j);
            sum = sh_warp_reduce(sum, sh_add());
            if (threadIdx.x % 32 == 0)
                z.dG[i] += sum;
        });
        __syncthreads();
        by_threads(n, [&](int j) {
            for (int i = j + 1; i < n; i++)
                z.dG[j] -= both(i, j);
        });
        __syncthreads();
        by_threads(n * CHUNK, [&](int e) { dP[e] = e % CHUNK <= e / CHUNK ? dP[e] * between(e) : 0; });
    }

    /* dX, steps, and the factor of what is skipped. */
    __device__ void values_back(double &sum)
    {
        by_warps([&](int i) {
            T *to = f.dx + row(i) * f.s.row + h * V;
            double of_step = sh_cuda_chunk_dot(dU + i * V, X + i * V, V),
                   of_skip = sh_cuda_chunk_dot(dO + i * V, X + i * V, V);

            if (threadIdx.x % 32 == 0) {
                z.dstep[i] = of_step;
                z.left[i] = of_skip;
            }
            for (int v = threadIdx.x % 32; v < V; v += 32)
                to[v] = sh_narrow<T>(z.step[i] * dU[i * V + v] + skip * dO[i * V + v]);
        });
        __syncthreads();
        for (int i = 0; i < n; i++)
            sum += z.left[i];
    }

    /* Through the state S with which the chunk begins, and the one behind it; S: NULL for zeros. dO becomes e^G dO. */
    __device__ void states_back(const float *S)
    {
        float *dB = dBC + (begin - f.from) * 2 * D, *dC = dB + D;
        double of_state[1] = {0};

        by_threads(n * V, [&](int e) {
            U[e] *= z.tail[e / V];
            dO[e] *= z.grown[e / V];
        });
        sh_cuda_chunk_product(dB, 2 * D, false, sh_plain(U, V), sh_turned(dS, V), n, D, V);
        sh_cuda_chunk_product(dB, 2 * D, true, sh_turned(dP, CHUNK), sh_plain(C, D), n, D, n);
        if (S)
            sh_cuda_chunk_product(dC, 2 * D, false, sh_plain(dO, V), sh_turned(S, V), n, D, V);
        for (int e = threadIdx.x; S && e < D * V; e += THREADS)
            of_state[0] += (double)(S[e] * dS[e]);
        sh_block_reduce(of_state, 0.0, sh_add());
        __syncthreads();
        by_threads(D * V, [&](int e) { dS[e] = S ? dS[e] * z.grown[n - 1] : 0; });
        by_warps([&](int i) {
            double sum = 0;

            for (int d = threadIdx.x % 32; d < D; d += 32) {
                dC[i * 2 * D + d] = S ? dC[i * 2 * D + d] : 0;
                sum += (double)(dC[i * 2 * D + d] * C[i * D + d]);
            }
            sum = sh_warp_reduce(sum, sh_add());
            if (threadIdx.x % 32 == 0)
                z.dG[i] += i == n - 1 ? sum + (double)z.grown[i] * of_state[0] : sum;
        });
        sh_cuda_chunk_product(dC, 2 * D, true, sh_plain(dP, CHUNK), sh_plain(B, D), n, D, n);
        if (S)
            sh_cuda_chunk_product(dS, V, true, sh_turned(C, D), sh_plain(dO, V), D, V, n);
        __syncthreads();
    }

    /* dG to the derivatives by decays, each the sum from its row on; then to dt and the sums. A step that the limit holds has
     * no gradient. */
    __device__ void steps_back(double (&sums)[SUMS])
    {
        if (threadIdx.x == 0)
            for (int i = n - 2; i >= 0; i--)
                z.dG[i] += z.dG[i + 1];
        __syncthreads();
        by_threads(n, [&](int i) {
            bool moves = sh_cuda_softplus(z.raw[i]) >= f.least;
            double draw = moves ? (z.dstep[i] - decay * z.dG[i]) / (1 + exp(-z.raw[i])) : 0.0;

            f.ddt[row(i) * f.s.H + h] = sh_narrow<T>((float)draw);
            z.left[i] = draw;
        });
        __syncthreads();
        for (int i = n - 1; i >= 0; i--) {
            sums[0] -= z.dG[i] * decay * (double)z.step[i];
            sums[1] += z.left[i];
        }
        __syncthreads();
    }

    __device__ void back(const float *S, double (&sums)[SUMS])
    {
        load();
        inputs_back();
        scores_back();
        values_back(sums[2]);
        states_back(S);
        steps_back(sums);
    }
};

template <class T> __global__ void __launch_bounds__(THREADS) scan_back(call<T> f)
{
    SH_SHARED(numbers, z, 1);
    chunk<T> c(f, *z, blockIdx.x);
    bool first = f.to >= f.s.T;
    double sums[SUMS];

    for (int k = 0; k < SUMS; k++)
        sums[k] = first ? 0.0 : f.sums[blockIdx.x * SUMS + k];
    if (first)
        c.by_threads(c.D * c.V, [&](int e) { c.dS[e] = 0; });
    __syncthreads();
    for (int64_t end = f.s.T; end > f.from; end = c.begin) {
        c.begin = f.chunk_of(c.b, end - 1);
        c.n = (int)(end - c.begin);
        if (c.begin < f.from)
            break;
        if (c.begin >= f.to)
            continue;
        bool starts = c.begin == sh_cuda_document_of(f.docs, f.s.T, c.b, c.begin);
        c.back(starts ? NULL : f.kept + ((c.b * f.s.slots + c.begin / CHUNK) * f.s.H + c.h) * c.D * c.V, sums);
    }
    if (threadIdx.x == 0)
        for (int k = 0; k < SUMS; k++)
            f.sums[blockIdx.x * SUMS + k] = sums[k];
}

/* Derivatives by B and C of the window's rows. A warp has one of a row. */
template <class T> __global__ void __launch_bounds__(THREADS) groups_back(call<T> f)
{
    int64_t step = (int64_t)gridDim.x * WARPS, all = f.s.B * f.rows * 2 * f.s.K;

    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < all; i += step) {
        int64_t at = i / (2 * f.s.K) % f.rows, b = i / (2 * f.s.K) / f.rows, t = f.from + at, heads = f.s.H / f.s.K;
        int64_t which = i % (2 * f.s.K), group = which % f.s.K, begin = t < f.s.T ? f.chunk_of(b, t) : f.to;

        if (begin < f.from || begin >= f.to)
            continue;
        T *to = f.dx + (b * f.s.T + t) * f.s.row + f.s.H * f.s.V + which * f.s.D;
        for (int64_t d = threadIdx.x % 32; d < f.s.D; d += 32) {
            float sum = 0;

            for (int64_t h = group * heads; h < (group + 1) * heads; h++)
                sum += f.keys(b * f.s.H + h)[(at * 2 + which / f.s.K) * f.s.D + d];
            to[d] = sh_narrow<T>(sum);
        }
    }
}

template <class T> sh_rc run(const struct sh_op_call *call_, const struct sh_delta &s)
{
    call<T> f = {s,
                 sh_data<T>(&call_->in[0]),
                 sh_data<T>(&call_->in[1]),
                 sh_data<T>(&call_->in[2]),
                 sh_data<T>(&call_->in[3]),
                 sh_data<int32_t>(&call_->in[4]),
                 sh_data<float>(&call_->in[5]),
                 sh_data<T>(&call_->out[0]),
                 sh_data<T>(&call_->out[1]),
                 static_cast<double *>(call_->work),
                 reinterpret_cast<float *>(static_cast<double *>(call_->work) + s.B * s.H * SUMS),
                 sh_cuda_scan_floats(&s),
                 sh_cuda_scan_rows(&s),
                 0,
                 0,
                 (double)call_->attr->delta.least};
    int64_t warps = s.B * f.rows * 2 * s.K;

    for (int64_t w = sh_ceil_div(s.T, (int64_t)SH_CUDA_SCAN_WINDOW) - 1; w >= 0; w--) {
        f.from = w * SH_CUDA_SCAN_WINDOW, f.to = f.from + SH_CUDA_SCAN_WINDOW;
        SH_TRY(SH_LAUNCH(scan_back<T>, dim3((unsigned)(s.B * s.H)), dim3(THREADS), 0, call_->queue, f));
        SH_TRY(
            SH_LAUNCH(groups_back<T>, dim3(sh_blocks(sh_ceil_div(warps, WARPS))), dim3(THREADS), 0, call_->queue, f));
    }
    return SH_OK;
}
} // namespace

extern "C" sh_rc sh_cuda_scan_bwd(const struct sh_op_call *call)
{
    struct sh_delta s = sh_space_of(call, &call->in[1]);
    float *to = sh_data<float>(&call->out[2]);
    bool adds = sh_op_adds(call, 2);
    sh_head_sums<SUMS> sums = {{to, to ? to + s.H : NULL, to ? to + 2 * s.H : NULL},
                               {adds, adds, adds},
                               static_cast<const double *>(call->work),
                               s.B,
                               s.H};

    SH_REQUIRE(call->work_bytes >= sh_cuda_scan_bwd_work_bytes(call));
    SH_TRY(sh_by_act(call->in[0].dtype, [&](auto zero) { return run<decltype(zero)>(call, s); }));
    return sh_map<1>("scan_bwd", sums, s.H, false, call->queue);
}
