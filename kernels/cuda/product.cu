/* Matrix products without a library, for shapes that cuBLASLt has no kernel for, and biases that it cannot add
 * (cublaslt.c). A block computes tiles of 64 x 64, each thread 4 x 4 of it, from tiles of both sides in shared memory.
 * Sums are in f32, in the order of k: the same bits on any GPU in every run.
 *
 * Floor: 2*m*n*k operations. This does them on ordinary cores, and reads a n / 64 times and b m / 64 times: enough for
 * what a library refuses, not for a whole model. Not measured on a GPU. */
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"

namespace
{
constexpr int TILE = 64, DEPTH = 16, LANES = 16, EACH = TILE / LANES, THREADS = LANES * LANES;
constexpr int PITCH = TILE + 1; /* so that threads that write a column use different banks */

/* One side of a product: element (i, k) is at i * step + k * k_step, where i is a row of a or a column of b. */
template <class T> struct side {
    const T *first;
    int64_t count, step, k_step;
};

/* T: type of a and b; O: of the output and the addend. */
template <class T, class O> struct task {
    side<T> a, b;
    int64_t k, across, tiles; /* across: tiles in a row of c */
    O *c;
    const O *addend; /* (opt) */
    int64_t ldc;
};

/* tile [DEPTH,TILE] = elements (from + i, k0 + j), zeros past the ends. Neighbouring threads read neighbours. */
template <class T> __device__ __forceinline__ void fetch(float *tile, side<T> s, int64_t from, int64_t k0, int64_t k)
{
    for (int t = threadIdx.x; t < TILE * DEPTH; t += THREADS) {
        int i = s.step == 1 ? t % TILE : t / DEPTH, j = s.step == 1 ? t / TILE : t % DEPTH;
        bool there = from + i < s.count && k0 + j < k;
        tile[j * PITCH + i] = there ? sh_widen(s.first[(from + i) * s.step + (k0 + j) * s.k_step]) : 0;
    }
}

/* An addend may be c itself: the thread that reads an element is the one that writes it. */
template <class T, class O>
__device__ __forceinline__ void put(const task<T, O> &p, const float sum[EACH][EACH], int64_t row, int64_t column)
{
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int64_t m = row + LANES * i, n = column + LANES * j;
            if (m >= p.a.count || n >= p.b.count)
                continue;
            float addend = p.addend ? sh_widen(p.addend[m * p.ldc + n]) : 0;
            p.c[m * p.ldc + n] = sh_narrow<O>(sum[i][j] + addend);
        }
}

template <class T, class O> __global__ void __launch_bounds__(THREADS) multiply(task<T, O> p)
{
    SH_SHARED(float, a, DEPTH *PITCH);
    SH_SHARED(float, b, DEPTH *PITCH);
    int row = threadIdx.x / LANES, column = threadIdx.x % LANES;

    for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        int64_t m0 = tile / p.across * TILE, n0 = tile % p.across * TILE;
        float sum[EACH][EACH] = {};
        for (int64_t k0 = 0; k0 < p.k; k0 += DEPTH) {
            fetch(a, p.a, m0, k0, p.k);
            fetch(b, p.b, n0, k0, p.k);
            __syncthreads();
            for (int k = 0; k < DEPTH; k++)
                for (int i = 0; i < EACH; i++)
                    for (int j = 0; j < EACH; j++)
                        sum[i][j] += a[k * PITCH + row + LANES * i] * b[k * PITCH + column + LANES * j];
            __syncthreads();
        }
        put(p, sum, m0 + row, n0 + column);
    }
}

template <class T, class O> sh_rc run(const struct sh_cublaslt_product *p, void *queue)
{
    task<T, O> t;
    t.a = {static_cast<const T *>(p->a), p->m, p->trans_a ? 1 : p->lda, p->trans_a ? p->lda : 1};
    t.b = {static_cast<const T *>(p->b), p->n, p->trans_b ? p->ldb : 1, p->trans_b ? 1 : p->ldb};
    t.k = p->k, t.across = sh_ceil_div(p->n, TILE), t.tiles = t.across * sh_ceil_div(p->m, TILE);
    t.c = static_cast<O *>(p->c), t.ldc = p->ldc;
    t.addend = static_cast<const O *>(p->addend);
    return SH_LAUNCH((multiply<T, O>), dim3(sh_blocks(t.tiles)), dim3(THREADS), 0, queue, t);
}

/* c = addend + bias; element by element, for rows of any length. */
template <class O> struct rows_of_bias {
    O *c;
    const O *addend, *bias;
    int64_t n, ldc;

    template <int> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t to = i / n * ldc + i % n;
        c[to] = sh_narrow<O>(sh_widen(bias[i % n]) + (addend ? sh_widen(addend[to]) : 0));
    }
};
} // namespace

extern "C" sh_rc sh_cuda_product(const struct sh_cublaslt_product *p, void *queue)
{
    SH_REQUIRE(!p->bias);
    if (p->in_dtype == SH_BF16 && p->out_dtype == SH_F32)
        return run<sh_bf16, float>(p, queue);
    SH_REQUIRE(p->in_dtype == p->out_dtype);
    return sh_by_act(p->in_dtype, [&](auto zero) { return run<decltype(zero), decltype(zero)>(p, queue); });
}

extern "C" sh_rc sh_cuda_product_bias(const struct sh_cublaslt_product *p, void *queue)
{
    return sh_by_act(p->out_dtype, [&](auto zero) {
        typedef decltype(zero) O;
        rows_of_bias<O> f = {static_cast<O *>(p->c), static_cast<const O *>(p->addend), static_cast<const O *>(p->bias),
                             p->n, p->ldc};
        return sh_map<1>("bias", f, p->m * p->n, false, queue);
    });
}
