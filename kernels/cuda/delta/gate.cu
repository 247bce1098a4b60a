/* Gates: the norms of heads with a gate, a warp to each head of a row, and the gate of attention's output. Bound by
 * memory; bytes per element in bf16 (f32: twice): norm 6, backward 10 and what its weight's sums read again; gate 6,
 * backward 10; rows apart or back 4. Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/work.h"

namespace
{
constexpr int WARPS = 8, LANES = 32;

/* `heads` heads of V elements, of which each has the weights of one of `groups`; y may be x. dy NULL: the forward. The gate
 * comes behind the norm, or in front of it (GATE_NORM). */
template <class T> struct gated {
    T *y, *dz;
    const T *dy, *x, *z, *w;
    float *rstd;
    int64_t heads, V, groups;
    float eps;
    bool front, vectors;

    /* What is normed: x, or x silu(z) in its place. */
    template <int N> __device__ __forceinline__ void load(float (&v)[N], float (&gate)[N], int64_t h, int64_t c) const
    {
        sh_load_some(v, x + h * V + c, V - c, vectors);
        sh_load_some(gate, z + h * V + c, V - c, vectors);
        for (int k = 0; k < N; k++)
            v[k] *= front ? gate[k] * sh_sigmoid<T>(gate[k]) : 1;
    }

    template <int N> __device__ __forceinline__ void load_weight(float (&v)[N], int64_t h, int64_t c) const
    {
        sh_load_some(v, w + h % groups * V + c, V - c, vectors);
    }

    template <int N> __device__ __forceinline__ void make(int64_t h, unsigned lane) const
    {
        float square = 0;

        /* As often for each lane, so that all meet in the sum. */
        for (int64_t first = 0; first < V; first += LANES * N) {
            int64_t c = first + lane * N;
            float v[N], gate[N];
            if (c >= V)
                continue;
            load(v, gate, h, c);
            for (int k = 0; k < N; k++)
                square += v[k] * v[k];
        }
        float by = 1.0f / sqrtf(sh_warp_reduce(square, sh_add()) / (float)V + eps);
        for (int64_t c = lane * N; c < V; c += LANES * N) {
            float v[N], gate[N], weight[N];
            load(v, gate, h, c);
            load_weight(weight, h, c);
            for (int k = 0; k < N; k++)
                v[k] = v[k] * by * weight[k] * (front ? 1 : gate[k] * sh_sigmoid<T>(gate[k]));
            sh_store_some(y + h * V + c, v, V - c, vectors);
        }
        if (lane == 0)
            rstd[h] = by;
    }

    /* With n what is normed times rstd, and d = dy w, times silu(z) if the gate comes behind: du = rstd (d - n mean(d n)) */
    template <int N> __device__ __forceinline__ void back(int64_t h, unsigned lane) const
    {
        float by = rstd[h], sum = 0;

        for (int64_t first = 0; first < V; first += LANES * N) {
            int64_t c = first + lane * N;
            float d[N], n[N], gate[N], weight[N];
            if (c >= V)
                continue;
            sh_load_some(d, dy + h * V + c, V - c, vectors);
            load(n, gate, h, c);
            load_weight(weight, h, c);
            for (int k = 0; k < N; k++)
                sum += d[k] * weight[k] * (front ? 1 : gate[k] * sh_sigmoid<T>(gate[k])) * n[k] * by;
        }
        float mean = sh_warp_reduce(sum, sh_add()) / (float)V;
        for (int64_t c = lane * N; c < V; c += LANES * N)
            inputs_back<N>(h, c, by, mean);
    }

    template <int N> __device__ __forceinline__ void inputs_back(int64_t h, int64_t c, float by, float mean) const
    {
        float d[N], n[N], gate[N], weight[N], from[N];

        sh_load_some(d, dy + h * V + c, V - c, vectors);
        load(n, gate, h, c);
        load_weight(weight, h, c);
        sh_load_some(from, x + h * V + c, V - c, vectors);
        for (int k = 0; k < N; k++) {
            float s = sh_sigmoid<T>(gate[k]), silu = gate[k] * s, slope = s * (1 + gate[k] * (1 - s));
            float all = d[k] * weight[k], du = by * (all * (front ? 1 : silu) - n[k] * by * mean);

            d[k] = front ? du * silu : du;
            gate[k] = (front ? du * from[k] : all * n[k] * by) * slope;
        }
        sh_store_some(y + h * V + c, d, V - c, vectors);
        sh_store_some(dz + h * V + c, gate, V - c, vectors);
    }
};

template <class T> __global__ void __launch_bounds__(WARPS *LANES) gated_norm_kernel(gated<T> f)
{
    constexpr int N = SH_WIDTH<T>;
    int64_t step = (int64_t)gridDim.x * WARPS;

    for (int64_t h = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES; h < f.heads; h += step) {
        if (f.dy)
            f.template back<N>(h, threadIdx.x % LANES);
        else
            f.template make<N>(h, threadIdx.x % LANES);
    }
}

/* dy x rstd silu(z) as rows of a matrix [heads / groups,groups V]. */
template <class T> struct weight_rows {
    struct raw {
        sh_raw<T> dy, x, z;
        float rstd;
    };
    static constexpr int AT_ONCE = 2, N = SH_WIDTH<T>;
    gated<T> f;

    __device__ __forceinline__ void load(raw &r, int64_t i, int64_t left, bool vectors) const
    {
        r.dy.load(f.dy + i, left, vectors);
        r.x.load(f.x + i, left, vectors);
        r.z.load(f.z + i, left, vectors);
        r.rstd = f.rstd[i / f.V];
    }

    /* Neighbours may be of two groups if those are no whole vectors. */
    __device__ __forceinline__ void value(float (&v)[N], const raw &r, int64_t i, int64_t left, bool whole) const
    {
        float x[N], z[N];
        r.dy.widen(v);
        r.x.widen(x);
        r.z.widen(z);
        for (int k = 0; k < N; k++)
            v[k] *= x[k] * (whole || k >= left ? r.rstd : f.rstd[(i + k) / f.V]) * (z[k] * sh_sigmoid<T>(z[k]));
    }
};

template <class T> sh_rc launch(const gated<T> &f, void *queue)
{
    return SH_LAUNCH(gated_norm_kernel<T>, dim3(sh_blocks(sh_ceil_div(f.heads, WARPS))), dim3(WARPS * LANES), 0, queue,
                     f);
}

template <class T> void align(gated<T> &f)
{
    constexpr int N = SH_WIDTH<T>;
    f.vectors = sh_aligned<N>(f.y, f.V) && sh_aligned<N>(f.dz, f.V) && sh_aligned<N>(f.dy, f.V) &&
                sh_aligned<N>(f.x, f.V) && sh_aligned<N>(f.z, f.V) && sh_aligned<N>(f.w, f.V);
}

sh_rc norm(const struct sh_op_call *call, int64_t groups)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        int64_t V = call->attr->delta.value_dim;
        gated<T> f = {sh_data<T>(&call->out[0]),
                      NULL,
                      NULL,
                      sh_data<T>(&call->in[0]),
                      sh_data<T>(&call->in[1]),
                      sh_data<T>(&call->in[2]),
                      sh_data<float>(&call->out[1]),
                      sh_elems(&call->in[0]) / V,
                      V,
                      groups,
                      call->attr->delta.eps,
                      call->kind == SH_OP_GATE_NORM,
                      false};
        align(f);
        return launch(f, call->queue);
    });
}

sh_rc norm_bwd(const struct sh_op_call *call, int64_t groups)
{
    SH_REQUIRE(call->work_bytes >= sh_cuda_gated_norm_bwd_work_bytes(call));
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        int64_t V = call->attr->delta.value_dim, rows = sh_elems(&call->in[1]) / V / groups, C = groups * V;
        int64_t parts = sh_cuda_row_parts(rows);
        float *sums = static_cast<float *>(call->work);
        gated<T> f = {sh_data<T>(&call->out[0]),
                      sh_data<T>(&call->out[1]),
                      sh_data<T>(&call->in[0]),
                      sh_data<T>(&call->in[1]),
                      sh_data<T>(&call->in[2]),
                      sh_data<T>(&call->in[3]),
                      sh_data<float>(&call->in[4]),
                      rows * groups,
                      V,
                      groups,
                      0,
                      call->kind == SH_OP_GATE_NORM_BWD,
                      false};
        align(f);
        if (call->out[2].data) {
            SH_TRY(sh_row_sums<N>(weight_rows<T>{f}, sums, rows, C, parts, f.vectors, call->queue));
            SH_TRY(sh_fold_parts(sh_data<float>(&call->out[2]), sh_op_adds(call, 2), sums, parts, C, call->queue));
        }
        return launch(f, call->queue);
    });
}

/* ---- the gate of attention ---- */

template <class T> struct gate {
    T *y;
    const T *x, *z;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float v[N], by[N];
        sh_load(v, x + i);
        sh_load(by, z + i);
        for (int k = 0; k < N; k++)
            v[k] *= sh_sigmoid<T>(by[k]);
        sh_store(y + i, v);
    }
};

template <class T> struct gate_bwd {
    T *dx, *dz;
    const T *dy, *x, *z;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float d[N], v[N], by[N];
        sh_load(d, dy + i);
        sh_load(v, x + i);
        sh_load(by, z + i);
        for (int k = 0; k < N; k++) {
            float s = sh_sigmoid<T>(by[k]);
            v[k] = d[k] * v[k] * s * (1 - s);
            d[k] *= s;
        }
        sh_store(dx + i, d);
        sh_store(dz + i, v);
    }
};

/* Element c of a row of `whole`, [q and gate head by head | k | v], is one of qkv, [q | k | v], or of gates. */
template <class T> struct apart {
    T *whole, *qkv, *gates;
    int64_t wide, narrow, D, HD;
    bool join;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t row = i / wide, c = i % wide, head = c / (2 * D), in = c % (2 * D);
        T *other = c >= 2 * HD ? qkv + row * narrow + c - HD
                   : in < D    ? qkv + row * narrow + head * D + in
                               : gates + row * HD + head * D + in - D;
        T v[N];

        sh_load_raw(v, join ? other : whole + i);
        sh_store_raw(join ? whole + i : other, v);
    }
};

sh_rc move(const struct sh_op_call *call, const struct sh_operand *whole, const struct sh_operand *qkv,
           const struct sh_operand *gates, bool join)
{
    return sh_by_act(whole->dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        int64_t D = call->attr->attn.head_dim;
        apart<T> f = {
            sh_data<T>(whole), sh_data<T>(qkv), sh_data<T>(gates), whole->dim[1], qkv->dim[1], D, gates->dim[1], join};
        return sh_map<N>(join ? "join_gate" : "split_gate", f, sh_elems(whole),
                         sh_aligned<N>(f.whole, D) && sh_aligned<N>(f.qkv, D) && sh_aligned<N>(f.gates, D),
                         call->queue);
    });
}
} // namespace

extern "C" sh_rc sh_cuda_gated_norm(const struct sh_op_call *call)
{
    return norm(call, 1);
}

extern "C" sh_rc sh_cuda_gate_norm(const struct sh_op_call *call)
{
    return norm(call, call->attr->delta.heads);
}

extern "C" sh_rc sh_cuda_gated_norm_bwd(const struct sh_op_call *call)
{
    return norm_bwd(call, 1);
}

extern "C" sh_rc sh_cuda_gate_norm_bwd(const struct sh_op_call *call)
{
    return norm_bwd(call, call->attr->delta.heads);
}

extern "C" sh_rc sh_cuda_gate(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        gate<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->in[0]), sh_data<T>(&call->in[1])};
        return sh_map<N>("gate", f, sh_elems(&call->in[0]),
                         sh_aligned<N>(f.y, 0) && sh_aligned<N>(f.x, 0) && sh_aligned<N>(f.z, 0), call->queue);
    });
}

extern "C" sh_rc sh_cuda_gate_bwd(const struct sh_op_call *call)
{
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        gate_bwd<T> f = {sh_data<T>(&call->out[0]), sh_data<T>(&call->out[1]), sh_data<T>(&call->in[0]),
                         sh_data<T>(&call->in[1]), sh_data<T>(&call->in[2])};
        return sh_map<N>("gate_bwd", f, sh_elems(&call->in[0]),
                         sh_aligned<N>(f.dx, 0) && sh_aligned<N>(f.dz, 0) && sh_aligned<N>(f.dy, 0) &&
                             sh_aligned<N>(f.x, 0) && sh_aligned<N>(f.z, 0),
                         call->queue);
    });
}

extern "C" sh_rc sh_cuda_split_gate(const struct sh_op_call *call)
{
    return move(call, &call->in[0], &call->out[0], &call->out[1], false);
}

extern "C" sh_rc sh_cuda_join_gate(const struct sh_op_call *call)
{
    return move(call, &call->out[0], &call->in[0], &call->in[1], true);
}
