/* The backward of the gated delta rule, from the last chunk on: a block has a head of values of a sequence, whose matrices lie
 * in scratch, where they stay in the L2 cache. The formulas are those of kernels/cpu/delta (doc/decisions/0077); what
 * heads say of the queries and keys that they share is added by a second kernel, in the order of heads. Products run in
 * f32 without tensor cores. Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/delta/chunk.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/work.h"

namespace
{
constexpr int CHUNK = SH_DELTA_CHUNK, THREADS = SH_CHUNK_THREADS, WARPS = THREADS / 32, EACH = SH_DELTA_HEAD / 32;

/* Numbers of the rows of a chunk, as in kernels/cpu/delta/chunk.h, the derivatives by G and b, and a place for another sum. */
struct numbers {
    double G[CHUNK], g[CHUNK], raw[CHUNK], dG[CHUNK], dbeta[CHUNK], left[CHUNK];
    float beta[CHUNK], grown[CHUNK], tail[CHUNK];
};

template <class T> struct call {
    struct sh_delta s;
    const T *dy, *x, *ba, *alog, *dt;
    const int32_t *docs;
    const float *kept;
    T *dx, *dba;
    double *sums; /* [B,H,2] of alog, dt */
    float *room;
    int64_t each; /* floats of a block's room */
};

/* Matrices of a chunk, dense but for those of [n,n], whose rows are CHUNK apart. */
template <class T> struct chunk : sh_cuda_chunk {
    const call<T> &f;
    numbers &z;
    int D, V;
    float *Q, *K, *W, *U, *dO, *X, *A, *P, *F, *dA, *dP, *dS, *t, *keys;

    __device__ chunk(const call<T> &of, numbers &numbers_, int64_t block) : f(of), z(numbers_)
    {
        float *room = f.room + block * f.each;

        b = block / f.s.H, h = block % f.s.H, D = (int)f.s.D, V = (int)f.s.V;
        Q = room, K = Q + CHUNK * D, t = K + CHUNK * D;
        W = t + CHUNK * D, U = W + CHUNK * V, dO = U + CHUNK * V, X = dO + CHUNK * V;
        A = X + CHUNK * V, P = A + CHUNK * CHUNK, F = P + CHUNK * CHUNK, dA = F + CHUNK * CHUNK,
        dP = dA + CHUNK * CHUNK;
        dS = dP + CHUNK * CHUNK;
        keys = dS + D * V;
    }

    __device__ void load_row(int i)
    {
        int lane = threadIdx.x % 32;
        int64_t row = b * f.s.T + begin + i, key = h / (f.s.H / f.s.K) * D;
        const T *x = f.x + row * f.s.row;
        float q[EACH], k[EACH];

        sh_cuda_unit_row(q, x + key, D, 1 / sqrtf((float)D));
        sh_cuda_unit_row(k, x + f.s.K * D + key, D, 1);
        SH_UNROLL
        for (int e = 0; e < EACH; e++)
            if (lane + 32 * e < D) {
                Q[i * D + lane + 32 * e] = q[e];
                K[i * D + lane + 32 * e] = k[e];
            }
        for (int v = lane; v < V; v += 32) {
            W[i * V + v] = sh_widen(x[2 * f.s.K * D + h * V + v]);
            dO[i * V + v] = sh_widen(f.dy[(row * f.s.H + h) * V + v]);
        }
    }

    __device__ void load_gates(int i)
    {
        int64_t row = b * f.s.T + begin + i;

        z.raw[i] = (double)sh_widen(f.ba[(2 * row + 1) * f.s.H + h]) + (double)sh_widen(f.dt[h]);
        z.g[i] = sh_cuda_delta_decay((double)sh_widen(f.alog[h]), z.raw[i]);
        z.beta[i] = sh_sigmoid<float>(sh_widen(f.ba[2 * row * f.s.H + h]));
        z.dG[i] = 0;
    }

    /* Rows, numbers, and A, P, F. */
    __device__ void load()
    {
        by_warps([&](int i) { load_row(i); });
        by_threads(n, [&](int i) { load_gates(i); });
        __syncthreads();
        if (threadIdx.x == 0)
            for (int i = 0; i < n; i++)
                z.G[i] = i ? z.G[i - 1] + z.g[i] : z.g[i];
        __syncthreads();
        by_threads(n, [&](int i) {
            z.grown[i] = (float)exp(z.G[i]);
            z.tail[i] = (float)exp(z.G[n - 1] - z.G[i]);
        });
        sh_cuda_chunk_product(P, CHUNK, false, sh_plain(Q, D), sh_turned(K, D), n, n, D);
        sh_cuda_chunk_product(A, CHUNK, false, sh_plain(K, D), sh_turned(K, D), n, n, D);
        __syncthreads();
        by_threads(n * CHUNK, [&](int e) {
            int i = e / CHUNK, j = e % CHUNK;
            float by = j <= i ? expf((float)(z.G[i] - z.G[j])) : 0;

            F[e] = by;
            P[e] = j <= i ? P[e] * by : 0;
            A[e] = j < i ? z.beta[i] * A[e] * by : 0;
        });
        __syncthreads();
    }

    /* W = V - e^G KS in place of V, and U; a thread has a column. S: NULL for zeros. */
    __device__ void solve(const float *S)
    {
        if (S)
            sh_cuda_chunk_product(U, V, false, sh_plain(K, D), sh_plain(S, V), n, V, D);
        __syncthreads();
        by_threads(V, [&](int v) {
            for (int i = 0; i < n; i++) {
                float w = W[i * V + v] - (S ? z.grown[i] * U[i * V + v] : 0), u = z.beta[i] * w;

                for (int j = 0; j < i; j++)
                    u -= A[i * CHUNK + j] * U[j * V + v];
                W[i * V + v] = w;
                U[i * V + v] = u;
            }
        });
    }

    /* X = (I + A)^-T (P'dO + tail K dS) */
    __device__ void solve_back()
    {
        by_threads(n * D, [&](int e) { t[e] = K[e] * z.tail[e / D]; });
        sh_cuda_chunk_product(X, V, false, sh_turned(P, CHUNK), sh_plain(dO, V), n, V, n);
        sh_cuda_chunk_product(X, V, true, sh_plain(t, D), sh_plain(dS, V), n, V, D);
        __syncthreads();
        by_threads(V, [&](int v) {
            for (int i = n - 2; i >= 0; i--) {
                float x = X[i * V + v];

                for (int j = i + 1; j < n; j++)
                    x -= A[j * CHUNK + i] * X[j * V + v];
                X[i * V + v] = x;
            }
        });
    }

    /* What dP and dA say together of the decay between rows j and i. */
    __device__ __forceinline__ double both(int i, int j) const
    {
        int e = i * CHUNK + j;

        return (double)dP[e] * (double)P[e] - (j < i ? (double)dA[e] * (double)A[e] : 0.0);
    }

    /* dP = dO U', -dA = X U', and what their lower triangles say of G and b. In their place is left what multiplies QK'
     * and, of both triangles, KK'. */
    __device__ void scores_back()
    {
        sh_cuda_chunk_product(dP, CHUNK, false, sh_plain(dO, V), sh_turned(U, V), n, n, V);
        sh_cuda_chunk_product(dA, CHUNK, false, sh_plain(X, V), sh_turned(U, V), n, n, V);
        __syncthreads();
        by_warps([&](int i) {
            double of_b = sh_cuda_chunk_dot(X + i * V, W + i * V, V), row = 0, scores = 0;

            for (int j = threadIdx.x % 32; j <= i; j += 32) {
                row += both(i, j);
                scores -= j < i ? (double)dA[i * CHUNK + j] * (double)A[i * CHUNK + j] : 0.0;
            }
            row = sh_warp_reduce(row, sh_add());
            scores = sh_warp_reduce(scores, sh_add());
            if (threadIdx.x % 32 == 0) {
                z.dG[i] = row;
                z.dbeta[i] = of_b + (z.beta[i] > 0 ? scores / (double)z.beta[i] : 0.0);
            }
        });
        __syncthreads();
        by_threads(n, [&](int j) {
            for (int i = j; i < n; i++)
                z.dG[j] -= both(i, j);
        });
        __syncthreads();
        by_threads(n * CHUNK, [&](int e) {
            int i = e / CHUNK, j = e % CHUNK;

            if (j <= i) {
                dP[e] *= F[e];
                dA[e] = dA[j * CHUNK + i] = j < i ? -dA[e] * z.beta[i] * F[e] : 0;
            } else if (j < n)
                dP[e] = 0;
        });
    }

    __device__ void values_back()
    {
        by_warps([&](int i) {
            T *to = f.dx + (b * f.s.T + begin + i) * f.s.row + 2 * f.s.K * D + h * V;

            for (int v = threadIdx.x % 32; v < V; v += 32)
                to[v] = sh_narrow<T>(z.beta[i] * X[i * V + v]);
        });
    }

    /* What the state behind the chunk says of decays: t = tail U dS' is left for dK. */
    __device__ void next_state_back(const float *S)
    {
        double of_state[1] = {0};

        sh_cuda_chunk_product(t, D, false, sh_plain(U, V), sh_turned(dS, V), n, D, V);
        for (int e = threadIdx.x; S && e < D * V; e += THREADS)
            of_state[0] += (double)(S[e] * dS[e]);
        sh_block_reduce(of_state, 0.0, sh_add());
        __syncthreads();
        by_warps([&](int i) {
            for (int d = threadIdx.x % 32; d < D; d += 32)
                t[i * D + d] *= z.tail[i];
            __syncwarp();
            double left = sh_cuda_chunk_dot(t + i * D, K + i * D, D);
            if (threadIdx.x % 32 == 0)
                z.left[i] = left;
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            double all = (double)z.grown[n - 1] * of_state[0];

            for (int i = 0; i < n; i++) {
                z.dG[i] -= z.left[i];
                all += z.left[i];
            }
            z.dG[n - 1] += all;
        }
        __syncthreads();
    }

    /* Through what the chunk reads of its first state. X becomes dKS = -b e^G X, and dO e^G dO. */
    __device__ void state_back(const float *S)
    {
        float *dQ = keys + begin * 2 * D, *dK = dQ + D;

        by_threads(n * V, [&](int e) {
            int i = e / V;

            dO[e] *= z.grown[i];
            X[e] *= -z.beta[i] * z.grown[i];
        });
        if (S) {
            sh_cuda_chunk_product(dQ, 2 * D, false, sh_plain(dO, V), sh_turned(S, V), n, D, V);
            sh_cuda_chunk_product(dK, 2 * D, false, sh_plain(X, V), sh_turned(S, V), n, D, V);
        }
        __syncthreads();
        by_warps([&](int i) {
            double sum =
                S ? sh_cuda_chunk_dot(dQ + i * 2 * D, Q + i * D, D) + sh_cuda_chunk_dot(dK + i * 2 * D, K + i * D, D)
                  : 0.0;

            if (threadIdx.x % 32 == 0)
                z.dG[i] += sum;
            __syncwarp();
            for (int d = threadIdx.x % 32; d < D; d += 32) {
                dQ[i * 2 * D + d] = S ? dQ[i * 2 * D + d] : 0;
                dK[i * 2 * D + d] = t[i * D + d] + (S ? dK[i * 2 * D + d] : 0);
            }
        });
        sh_cuda_chunk_product(dQ, 2 * D, true, sh_plain(dP, CHUNK), sh_plain(K, D), n, D, n);
        sh_cuda_chunk_product(dK, 2 * D, true, sh_turned(dP, CHUNK), sh_plain(Q, D), n, D, n);
        __syncthreads();
        sh_cuda_chunk_product(dK, 2 * D, true, sh_plain(dA, CHUNK), sh_plain(K, D), n, D, n);
        by_threads(D * V, [&](int e) { dS[e] = S ? dS[e] * z.grown[n - 1] : 0; });
        if (S) {
            sh_cuda_chunk_product(dS, V, true, sh_turned(Q, D), sh_plain(dO, V), D, V, n);
            sh_cuda_chunk_product(dS, V, true, sh_turned(K, D), sh_plain(X, V), D, V, n);
        }
        __syncthreads();
    }

    /* dG to dg, which is its sum from each row on; then to a, b, and the sums. */
    __device__ void gates_back(double (&sums)[2])
    {
        double by = exp((double)sh_widen(f.alog[h]));

        if (threadIdx.x == 0)
            for (int i = n - 2; i >= 0; i--)
                z.dG[i] += z.dG[i + 1];
        __syncthreads();
        by_threads(n, [&](int i) {
            int64_t row = b * f.s.T + begin + i;
            double of_b = (double)z.beta[i], raw = -z.dG[i] * by / (1 + exp(-z.raw[i]));

            f.dba[2 * row * f.s.H + h] = sh_narrow<T>((float)(z.dbeta[i] * of_b * (1 - of_b)));
            f.dba[(2 * row + 1) * f.s.H + h] = sh_narrow<T>((float)raw);
            z.left[i] = raw;
        });
        __syncthreads();
        for (int i = n - 1; i >= 0; i--) {
            sums[0] += z.dG[i] * z.g[i];
            sums[1] += z.left[i];
        }
        __syncthreads();
    }

    __device__ void back(const float *S, double (&sums)[2])
    {
        load();
        solve(S);
        solve_back();
        scores_back();
        values_back();
        next_state_back(S);
        state_back(S);
        gates_back(sums);
    }
};

template <class T> __global__ void __launch_bounds__(THREADS) delta_back(call<T> f)
{
    SH_SHARED(numbers, z, 1);
    chunk<T> c(f, *z, blockIdx.x);
    double sums[2] = {0};

    c.by_threads(c.D * c.V, [&](int e) { c.dS[e] = 0; });
    __syncthreads();
    for (int64_t end = f.s.T; end > 0; end = c.begin) {
        int64_t first = sh_cuda_document_of(f.docs, f.s.T, c.b, end - 1);

        c.begin = first + (end - 1 - first) / CHUNK * CHUNK;
        c.n = (int)(end - c.begin);
        c.back(c.begin == first ? NULL : f.kept + ((c.b * f.s.slots + c.begin / CHUNK) * f.s.H + c.h) * c.D * c.V,
               sums);
    }
    if (threadIdx.x < 2)
        f.sums[blockIdx.x * 2 + threadIdx.x] = sums[threadIdx.x];
}

/* Through the lengths of queries and keys: of y = x / |x| the derivative is (dy - y (y.dy)) / |x|. A warp has a query or
 * key of a row. */
template <class T> __global__ void __launch_bounds__(THREADS) lengths_back(call<T> f)
{
    int64_t step = (int64_t)gridDim.x * WARPS, all = f.s.B * f.s.T * 2 * f.s.K;

    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < all; i += step) {
        int64_t row = i / (2 * f.s.K), which = i % (2 * f.s.K), key = which % f.s.K, heads = f.s.H / f.s.K;
        int64_t at = row * f.s.row + which * f.s.D, b = row / f.s.T, t = row % f.s.T;
        float y[EACH], d[EACH] = {0}, sum = 0, by = sh_cuda_unit_row(y, f.x + at, (int)f.s.D, 1);
        float scale = which < f.s.K ? 1 / sqrtf((float)f.s.D) : 1;

        for (int64_t h = key * heads; h < (key + 1) * heads; h++) {
            const float *from =
                f.room + (b * f.s.H + h + 1) * f.each - f.s.T * 2 * f.s.D + (t * 2 + which / f.s.K) * f.s.D;

            SH_UNROLL
            for (int e = 0; e < EACH; e++)
                d[e] += (int)(threadIdx.x % 32) + 32 * e < f.s.D ? from[threadIdx.x % 32 + 32 * e] : 0;
        }
        SH_UNROLL
        for (int e = 0; e < EACH; e++)
            sum += y[e] * d[e];
        sum = sh_warp_reduce(sum, sh_add());
        SH_UNROLL
        for (int e = 0; e < EACH; e++)
            if ((int)(threadIdx.x % 32) + 32 * e < f.s.D)
                f.dx[at + threadIdx.x % 32 + 32 * e] = sh_narrow<T>(by * scale * (d[e] - y[e] * sum));
    }
}

template <class T> sh_rc run(const struct sh_op_call *call_, const struct sh_delta &s)
{
    call<T> f = {s,
                 sh_data<T>(&call_->in[0]),
                 sh_data<T>(&call_->in[1]),
                 sh_data<T>(&call_->in[2]),
                 sh_data<T>(&call_->in[3]),
                 sh_data<T>(&call_->in[4]),
                 sh_data<int32_t>(&call_->in[5]),
                 sh_data<float>(&call_->in[6]),
                 sh_data<T>(&call_->out[0]),
                 sh_data<T>(&call_->out[1]),
                 static_cast<double *>(call_->work),
                 reinterpret_cast<float *>(static_cast<double *>(call_->work) + s.B * s.H * 2),
                 sh_cuda_delta_floats(&s)};

    SH_TRY(SH_LAUNCH(delta_back<T>, dim3((unsigned)(s.B * s.H)), dim3(THREADS), 0, call_->queue, f));
    return SH_LAUNCH(lengths_back<T>, dim3(sh_blocks(sh_ceil_div(s.B * s.T * 2 * s.K, WARPS))), dim3(THREADS), 0,
                     call_->queue, f);
}
} // namespace

extern "C" sh_rc sh_cuda_gated_delta_bwd(const struct sh_op_call *call)
{
    struct sh_delta s = sh_delta_of(call, &call->in[1]);
    sh_head_sums<2> sums = {{sh_data<float>(&call->out[2]), sh_data<float>(&call->out[3])},
                            {sh_op_adds(call, 2), sh_op_adds(call, 3)},
                            static_cast<const double *>(call->work),
                            s.B,
                            s.H};

    SH_REQUIRE(s.D <= SH_DELTA_HEAD && s.V <= THREADS && call->work_bytes >= sh_cuda_gated_delta_bwd_work_bytes(call));
    SH_TRY(sh_by_act(call->in[0].dtype, [&](auto zero) { return run<decltype(zero)>(call, s); }));
    return sh_map<1>("gated_delta_bwd", sums, s.H, false, call->queue);
}
