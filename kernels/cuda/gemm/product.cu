/* Matrix products without a library, for shapes that cuBLASLt has no kernel for, and biases that it cannot add
 * (cublaslt.c), tile by tile.
 *
 * Floor: 2*m*n*k operations. This does them on ordinary cores, and reads a n / 64 times and b m / 64 times: enough for
 * what a library refuses, not for a whole model. Not measured on a GPU. */
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/gemm/product_tile.cuh"

namespace
{
using namespace sh_product;

template <class T, class O> __global__ void __launch_bounds__(THREADS) multiply(task<T, O> p)
{
    SH_SHARED(float, a, DEPTH *PITCH);
    SH_SHARED(float, b, DEPTH *PITCH);

    for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x)
        make_tile(p, tile / p.across * TILE, tile % p.across * TILE, a, b);
}

template <class T, class O> sh_rc run(const struct sh_matmul *p, void *queue)
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

extern "C" sh_rc sh_cuda_product(const struct sh_matmul *p, void *queue)
{
    SH_REQUIRE(!p->bias);
    if (p->in_dtype == SH_BF16 && p->out_dtype == SH_F32)
        return run<sh_bf16, float>(p, queue);
    SH_REQUIRE(p->in_dtype == p->out_dtype);
    return sh_by_act(p->in_dtype, [&](auto zero) { return run<decltype(zero), decltype(zero)>(p, queue); });
}

extern "C" sh_rc sh_cuda_product_bias(const struct sh_matmul *p, void *queue)
{
    return sh_by_act(p->out_dtype, [&](auto zero) {
        typedef decltype(zero) O;
        rows_of_bias<O> f = {static_cast<O *>(p->c), static_cast<const O *>(p->addend), static_cast<const O *>(p->bias),
                             p->n, p->ldc};
        return sh_map<1>("bias", f, p->m * p->n, false, queue);
    });
}
