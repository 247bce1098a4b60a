/* The experts' products on ordinary cores: float32, and bf16 whose widths or addresses are no multiples of 16 bytes.
 * Tile by tile as in product.cu, and as slow. Not measured on a GPU. */
#include "kernels/cuda/moe/expert.cuh"

#include "kernels/cuda/gemm/product_tile.cuh"

namespace
{
using namespace sh_product;

template <class T> struct rows_of {
    sh_experts x;
    T *to;
    const T *from, *w;
    int64_t wide_to, wide_from, tiles, across;
    bool forward;
};

/* y = x w[e]', or dx = dy w[e] */
template <class T> __global__ void __launch_bounds__(THREADS) experts_rows(rows_of<T> r)
{
    SH_SHARED(float, a, DEPTH *PITCH);
    SH_SHARED(float, b, DEPTH *PITCH);

    for (int64_t i = blockIdx.x; i < r.tiles * r.across; i += gridDim.x) {
        sh_expert_tile at;
        if (!sh_expert_find<TILE>(r.x, i / r.across, at))
            return;
        task<T, T> p = {};
        p.a = {r.from + at.row * r.wide_from, at.end - at.row, r.wide_from, 1};
        p.b = {r.w + at.expert * r.x.O * r.x.I, r.wide_to, r.forward ? r.x.I : 1, r.forward ? 1 : r.x.I};
        p.k = r.wide_from;
        p.c = r.to + at.row * r.wide_to;
        p.ldc = r.wide_to;
        make_tile(p, 0, i % r.across * TILE, a, b);
    }
}

template <class T> struct weights_of {
    sh_experts x;
    float *dw;
    const T *dy, *in;
    int64_t down, across; /* tiles of one expert */
    bool add;
};

/* dw[e] (+)= dy' x, group by group; without rows it is 0, or what it was. */
template <class T> __global__ void __launch_bounds__(THREADS) experts_weights(weights_of<T> g)
{
    SH_SHARED(float, a, DEPTH *PITCH);
    SH_SHARED(float, b, DEPTH *PITCH);

    for (int64_t i = blockIdx.x; i < g.x.E * g.down * g.across; i += gridDim.x) {
        int64_t e = i / (g.down * g.across), m = i / g.across % g.down * TILE, n = i % g.across * TILE;
        task<T, float> p = {};
        p.c = g.dw + e * g.x.O * g.x.I;
        p.addend = g.add ? p.c : NULL;
        p.ldc = g.x.I;
        for (int64_t group = e; group < g.x.groups; group += g.x.E) {
            int64_t row = g.x.first[group];
            p.a = {g.dy + row * g.x.O, g.x.O, 1, g.x.O};
            p.b = {g.in + row * g.x.I, g.x.I, 1, g.x.I};
            p.k = g.x.first[group + 1] - row;
            if (p.k == 0 && (p.addend || group + g.x.E < g.x.groups))
                continue;
            make_tile(p, m, n, a, b);
            p.addend = p.c;
        }
    }
}

template <class T> sh_rc run_rows(const struct sh_op_call *call)
{
    rows_of<T> r = {sh_experts_of(call),
                    sh_data<T>(&call->out[0]),
                    sh_data<T>(&call->in[0]),
                    sh_data<T>(&call->in[2]),
                    call->out[0].dim[1],
                    call->in[0].dim[1],
                    0,
                    0,
                    call->kind == SH_OP_EXPERT_LINEAR};
    r.tiles = sh_expert_tiles<TILE>(r.x);
    r.across = sh_ceil_div(r.wide_to, TILE);
    if (r.tiles == 0)
        return SH_OK;
    return SH_LAUNCH(experts_rows<T>, dim3(sh_blocks(r.tiles * r.across)), dim3(THREADS), 0, call->queue, r);
}

template <class T> sh_rc run_weights(const struct sh_op_call *call)
{
    weights_of<T> g = {
        sh_experts_of(call), sh_data<float>(&call->out[0]), sh_data<T>(&call->in[0]), sh_data<T>(&call->in[1]), 0, 0,
        sh_op_adds(call, 0)};
    g.down = sh_ceil_div(g.x.O, TILE);
    g.across = sh_ceil_div(g.x.I, TILE);
    return SH_LAUNCH(experts_weights<T>, dim3(sh_blocks(g.x.E * g.down * g.across)), dim3(THREADS), 0, call->queue, g);
}
} // namespace

sh_rc sh_cuda_expert_any(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return call->kind == SH_OP_EXPERT_LINEAR_BWD_W ? run_weights<T>(call) : run_rows<T>(call);
    });
}
