/* The rows of a router: scores and choice from logits, and the gradients of logits. A warp has a row, and lane i its
 * experts i, i + 32, ...; what has been chosen is struck out by the lane that owns it. Scores are compared as integers
 * in the order of kernels/op.h, so the choice is the largest of E numbers, k times. Floor: N E numbers read and
 * written. Not measured on a GPU. */
#include "kernels/cuda/moe/route.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/work.h"

namespace
{
constexpr int WARPS = 4, LANES = 32;

struct choice {
    float *weight; /* [N,k] */
    int32_t *expert;
    float *score;      /* [N,E]: logits first */
    float *lse;        /* (opt) [N] */
    const float *bias; /* (opt) [E] */
    const void *b;     /* (opt) [E] act: of the logits */
    bool b_is_bf16;
    int64_t rows;
    int32_t E, k, groups, top_groups;
    bool sigmoid, norm, forced;
    float scale;

    __device__ __forceinline__ float bias_of_logit(int32_t e) const
    {
        return b_is_bf16 ? sh_widen(static_cast<const sh_bf16 *>(b)[e]) : static_cast<const float *>(b)[e];
    }
};

/* A number whose order is that of the choice: NaN is 1, -Inf more; 0 is what may not be chosen. -0 counts as 0. */
__device__ __forceinline__ uint32_t key_of(float wish)
{
    uint32_t bits = __float_as_uint(wish + 0.0f);

    if (wish != wish)
        return 1;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float wish_of(uint32_t key)
{
    if (key == 1)
        return nanf("");
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

struct larger {
    __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const
    {
        return a > b ? a : b;
    }
};

/* The number of the largest of n keys, the lower number first, for all lanes; it is struck out. A lane looks only at
 * its own keys. */
__device__ __forceinline__ int32_t take_best(uint32_t *keys, int32_t n)
{
    int32_t lane = threadIdx.x % LANES;
    uint64_t best = 0;

    for (int32_t i = lane; i < n; i += LANES)
        best = larger()(best, (uint64_t)keys[i] << 32 | (uint32_t)~i);
    int32_t which = (int32_t) ~(uint32_t)sh_warp_reduce(best, larger());
    if (which % LANES == lane)
        keys[which] = 0;
    return which;
}

/* From logits to scores in place, and the log of the sum of the logits' exponentials. */
__device__ __forceinline__ void score_row(const choice &c, float *score, int64_t n)
{
    int32_t lane = threadIdx.x % LANES;
    float most = -INFINITY, sum = 0;

    for (int32_t e = lane; e < c.E; e += LANES) {
        if (c.b)
            score[e] += c.bias_of_logit(e);
        most = fmaxf(most, score[e]);
    }
    most = sh_warp_reduce(most, sh_larger());
    for (int32_t e = lane; e < c.E; e += LANES)
        sum += expf(score[e] - most);
    sum = sh_warp_reduce(sum, sh_add());
    for (int32_t e = lane; e < c.E; e += LANES)
        score[e] = c.sigmoid ? 1.0f / (1.0f + expf(-score[e])) : expf(score[e] - most) / sum;
    if (c.lse && lane == 0)
        c.lse[n] = most + logf(sum);
}

/* Strike out the experts of all but the best groups. */
__device__ __forceinline__ void keep_best_groups(const choice &c, uint32_t *keys, uint32_t *groups)
{
    int32_t lane = threadIdx.x % LANES, size = c.E / c.groups;
    uint64_t open = 0;

    for (int32_t g = lane; g < c.groups; g += LANES) {
        uint32_t best = 0, second = 0;
        for (int32_t e = g * size; e < (g + 1) * size; e++) {
            uint32_t key = keys[e], less = min(key, best);
            best = max(key, best);
            second = max(second, less);
        }
        groups[g] = key_of(wish_of(best) + (second ? wish_of(second) : 0));
    }
    for (int32_t t = 0; t < c.top_groups; t++)
        open |= (uint64_t)1 << take_best(groups, c.groups);
    __syncwarp();
    for (int32_t e = lane; e < c.E; e += LANES)
        if (!(open >> (e / size) & 1))
            keys[e] = 0;
}

/* 1e-20 as in the published models: scores that are all 0 give weights of 0. */
__device__ __forceinline__ void route_row(const choice &c, int64_t n, uint32_t *keys)
{
    int32_t lane = threadIdx.x % LANES, *expert = c.expert + n * c.k;
    float *score = c.score + n * c.E, *weight = c.weight + n * c.k, sum = 1e-20f;

    score_row(c, score, n);
    for (int32_t e = lane; e < c.E; e += LANES)
        keys[e] = key_of(c.bias ? score[e] + c.bias[e] : score[e]);
    __syncwarp();
    if (c.groups)
        keep_best_groups(c, keys, keys + c.E);
    for (int32_t j = 0; j < c.k; j++) {
        int32_t e = c.forced ? (int32_t)((n * c.k + j) % c.E) : take_best(keys, c.E);
        sum += score[e];
        if (lane == j % LANES)
            expert[j] = e;
    }
    float by = c.norm ? c.scale / sum : c.scale;
    for (int32_t j = lane; j < c.k; j += LANES)
        weight[j] = by * score[expert[j]];
    __syncwarp();
}

/* This warp's piece of the dynamic shared memory. */
template <class T> __device__ __forceinline__ T *mine(T *shared, int32_t each)
{
    return shared + threadIdx.x / LANES * each;
}

__device__ __forceinline__ int64_t first_row()
{
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
}

__global__ void __launch_bounds__(WARPS *LANES) route(choice c)
{
    SH_DYNAMIC_SHARED(uint32_t, keys);

    for (int64_t n = first_row(); n < c.rows; n += (int64_t)gridDim.x * WARPS)
        route_row(c, n, mine(keys, c.E + c.groups));
}

struct backward {
    const float *dweight; /* [N,k] */
    const int32_t *expert;
    const float *score; /* [N,E] */
    const float *lse;   /* (opt) [N] */
    int32_t *count;     /* [E]: choices that fell on each expert */
    void *out;
    int64_t rows;
    int32_t E, k;
    bool sigmoid, norm;
    float scale, aux, z; /* aux, z: times the loss's scale; aux: also times E / (N k) */
};

struct clear {
    int32_t *count;
    template <int> __device__ __forceinline__ void at(int64_t e) const
    {
        count[e] = 0;
    }
};

/* The order of additions does not matter for a count. */
__global__ void __launch_bounds__(WARPS *LANES) count_choices(backward b)
{
    SH_DYNAMIC_SHARED(int32_t, count);
    int64_t step = (int64_t)gridDim.x * WARPS * LANES;

    for (int32_t e = threadIdx.x; e < b.E; e += WARPS * LANES)
        count[e] = 0;
    __syncthreads();
    for (int64_t i = (int64_t)blockIdx.x * WARPS * LANES + threadIdx.x; i < b.rows * b.k; i += step)
        if (b.expert[i] >= 0 && b.expert[i] < b.E)
            atomicAdd(&count[b.expert[i]], 1);
    __syncthreads();
    for (int32_t e = threadIdx.x; e < b.E; e += WARPS * LANES)
        if (count[e])
            atomicAdd(&b.count[e], count[e]);
}

/* d [E], of this warp: the gradients of scores; only those of the chosen are not 0. */
__device__ __forceinline__ void through_weights(const backward &b, int64_t n, float *d)
{
    const float *dweight = b.dweight + n * b.k, *score = b.score + n * b.E;
    const int32_t *expert = b.expert + n * b.k;
    int32_t lane = threadIdx.x % LANES;
    float sum = 1e-20f, mean = 0;

    for (int32_t j = 0; j < b.k && b.norm; j++)
        sum += score[expert[j]];
    for (int32_t j = 0; j < b.k && b.norm; j++)
        mean += dweight[j] * (score[expert[j]] / sum);
    float by = b.norm ? b.scale / sum : b.scale;
    for (int32_t e = lane; e < b.E; e += LANES)
        d[e] = 0;
    __syncwarp();
    for (int32_t j = lane; j < b.k; j += LANES)
        d[expert[j]] = by * (dweight[j] - mean);
    __syncwarp();
}

/* The loss aux: p is the score, or a sigmoid's share of the row. */
__device__ __forceinline__ void add_aux(const backward &b, int64_t n, float *d)
{
    const float *score = b.score + n * b.E;
    int32_t lane = threadIdx.x % LANES;
    float sum = 0, mean = 0;

    for (int32_t e = lane; e < b.E && b.sigmoid; e += LANES) {
        sum += score[e];
        mean += (float)b.count[e] * score[e];
    }
    sum = b.sigmoid ? 1e-20f + sh_warp_reduce(sum, sh_add()) : 1;
    mean = b.sigmoid ? sh_warp_reduce(mean, sh_add()) / sum : 0;
    for (int32_t e = lane; e < b.E; e += LANES)
        d[e] += b.aux * (((float)b.count[e] - mean) / sum);
}

/* f32: as it is. */
__device__ __forceinline__ void put(float *row, int32_t, int32_t e, float d)
{
    row[e] = d;
}

/* As three numbers of bf16, which together have the 24 bits of one of f32; what is not finite has no remainder. */
__device__ __forceinline__ void put(sh_bf16 *row, int32_t E, int32_t e, float d)
{
    for (int part = 0; part < 3; part++) {
        sh_bf16 high = sh_narrow<sh_bf16>(d);
        row[part * E + e] = high;
        d = fabsf(d) < INFINITY ? d - sh_widen(high) : 0;
    }
}

/* From the gradients of scores to those of logits; z's comes with the softmax. */
template <class T> __device__ __forceinline__ void through_scores(const backward &b, int64_t n, const float *d)
{
    constexpr int PARTS = sizeof(T) == sizeof(float) ? 1 : 3;
    const float *score = b.score + n * b.E;
    T *row = static_cast<T *>(b.out) + n * PARTS * b.E;
    int32_t lane = threadIdx.x % LANES;
    float dot = 0, shift = !b.sigmoid && b.z != 0 ? b.z * b.lse[n] : 0;

    for (int32_t e = lane; e < b.E && !b.sigmoid; e += LANES)
        dot += d[e] * score[e];
    shift -= b.sigmoid ? 0 : sh_warp_reduce(dot, sh_add());
    for (int32_t e = lane; e < b.E; e += LANES)
        put(row, b.E, e, score[e] * (b.sigmoid ? d[e] * (1.0f - score[e]) : d[e] + shift));
    __syncwarp();
}

template <class T> __global__ void __launch_bounds__(WARPS *LANES) route_bwd(backward b)
{
    SH_DYNAMIC_SHARED(float, shared);
    float *d = mine(shared, b.E);

    for (int64_t n = first_row(); n < b.rows; n += (int64_t)gridDim.x * WARPS) {
        through_weights(b, n, d);
        if (b.aux != 0)
            add_aux(b, n, d);
        through_scores<T>(b, n, d);
    }
}

struct losses {
    const float *score;   /* [N,E] */
    const int32_t *first; /* [E+1] */
    const float *lse;     /* (opt) [N] */
    double *parts;        /* [2,n]: aux and z of a part of the rows */
    int64_t rows, n;
    int32_t E;
    bool sigmoid;
    double aux, z; /* aux: times E */
};

/* aux of a row, without its coefficient, for all lanes. */
__device__ __forceinline__ double aux_of(const losses &l, int64_t row)
{
    double sum = 0, shared = 0;

    for (int32_t e = threadIdx.x % LANES; e < l.E; e += LANES) {
        double score = l.score[row * l.E + e];
        sum += score;
        shared += (double)(l.first[e + 1] - l.first[e]) / l.first[l.E] * score;
    }
    sum = sh_warp_reduce(sum, sh_add());
    shared = sh_warp_reduce(shared, sh_add());
    return l.sigmoid ? shared / (sum + 1e-20) : shared;
}

/* A block has a part of the rows, a warp every fourth of them. */
__global__ void __launch_bounds__(WARPS *LANES) route_losses(losses l)
{
    for (int64_t part = blockIdx.x; part < l.n; part += gridDim.x) {
        double sum[2] = {0, 0};
        for (int64_t r = l.rows * part / l.n + threadIdx.x / LANES; r < l.rows * (part + 1) / l.n; r += WARPS) {
            double aux = aux_of(l, r);
            if (threadIdx.x % LANES)
                continue;
            sum[0] += l.aux * aux;
            if (l.z != 0)
                sum[1] += l.z * l.lse[r] * l.lse[r];
        }
        sh_block_sum(sum);
        for (int i = 0; i < 2 && threadIdx.x == 0; i++)
            l.parts[i * l.n + part] = sum[i];
    }
}

dim3 blocks_of(int64_t rows)
{
    return dim3(sh_blocks(sh_ceil_div(rows, WARPS)));
}
} // namespace

extern "C" sh_rc sh_cuda_route_rows(const struct sh_op_call *call)
{
    const struct sh_op_attr *a = call->attr;
    choice c = {sh_data<float>(&call->out[0]),
                sh_data<int32_t>(&call->out[1]),
                sh_data<float>(&call->out[2]),
                sh_data<float>(&call->out[3]),
                sh_data<float>(&call->in[2]),
                call->in[3].data,
                call->in[3].dtype == SH_BF16,
                sh_elems(&call->out[2]) / call->in[1].dim[0],
                (int32_t)call->in[1].dim[0],
                a->route.chosen,
                a->route.groups,
                a->route.top_groups,
                a->route.sigmoid,
                a->route.norm,
                a->route.forced,
                a->route.scale};

    if (c.rows == 0)
        return SH_OK;
    return SH_LAUNCH(route, blocks_of(c.rows), dim3(WARPS * LANES), WARPS * (size_t)(c.E + c.groups) * sizeof(uint32_t),
                     call->queue, c);
}

/* Few blocks count, since each adds to the same numbers at its end. */
static sh_rc count_all(const backward &b, void *queue)
{
    constexpr int64_t EACH = 16 * WARPS * LANES;
    dim3 blocks(sh_blocks(sh_ceil_div(b.rows * b.k, EACH)));

    SH_TRY(sh_map<1>("clear counts", clear{b.count}, b.E, false, queue));
    return SH_LAUNCH(count_choices, blocks, dim3(WARPS * LANES), (size_t)b.E * sizeof(int32_t), queue, b);
}

extern "C" sh_rc sh_cuda_route_bwd_rows(const struct sh_op_call *call, int32_t *count, void *d)
{
    const struct sh_op_attr *a = call->attr;
    backward b = {};
    b.dweight = sh_data<float>(&call->in[0]);
    b.expert = sh_data<int32_t>(&call->in[1]);
    b.score = sh_data<float>(&call->in[2]);
    b.lse = sh_data<float>(&call->in[3]);
    b.count = count;
    b.out = d;
    b.E = (int32_t)call->in[5].dim[0];
    b.rows = sh_elems(&call->in[2]) / b.E;
    b.k = a->route.chosen;
    b.sigmoid = a->route.sigmoid;
    b.norm = a->route.norm;
    b.scale = a->route.scale;
    b.aux = (float)((double)a->route.aux * (double)b.E * call->scalars->router_scale / (double)(b.rows * b.k));
    b.z = (float)(2 * (double)a->route.z * call->scalars->router_scale);

    if (b.rows == 0)
        return SH_OK;
    if (b.aux != 0)
        SH_TRY(count_all(b, call->queue));
    return sh_by_act(call->in[4].dtype, [&](auto zero) {
        return SH_LAUNCH(route_bwd<decltype(zero)>, blocks_of(b.rows), dim3(WARPS * LANES),
                         WARPS * (size_t)b.E * sizeof(float), call->queue, b);
    });
}

/* Parts of the rows, then the parts in order. A gradient that is three numbers has three rows of parts. */
extern "C" sh_rc sh_cuda_route_db(const struct sh_op_call *call, const void *d, void *work, int64_t work_bytes)
{
    const struct sh_operand *db = &call->out[2];
    int64_t E = db->dim[0], rows = sh_elems(&call->in[2]) / E, n = sh_cuda_row_parts(rows);
    float *parts = static_cast<float *>(work);

    return sh_by_act(call->in[4].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        const int64_t K = (sizeof(T) == sizeof(float) ? 1 : 3) * E;
        sh_plain_rows<T> f = {static_cast<const T *>(d)};

        SH_REQUIRE(n * K * (int64_t)sizeof(float) <= work_bytes);
        SH_TRY(sh_row_sums<N>(f, parts, rows, K, n, sh_aligned<N>(f.x, K), call->queue));
        return sh_fold_parts(sh_data<float>(db), sh_op_adds(call, 2), parts, n * K / E, E, call->queue);
    });
}

extern "C" sh_rc sh_cuda_route_loss(const struct sh_op_call *call)
{
    const struct sh_op_attr *a = call->attr;
    double *loss = sh_data<double>(&call->out[0]);
    losses l = {};
    l.score = sh_data<float>(&call->in[0]);
    l.first = sh_data<int32_t>(&call->in[1]);
    l.lse = sh_data<float>(&call->in[2]);
    l.parts = static_cast<double *>(call->work);
    l.rows = call->in[0].dim[0];
    l.n = sh_cuda_row_parts(l.rows);
    l.E = (int32_t)call->in[0].dim[1];
    l.sigmoid = a->route.sigmoid;
    l.aux = (double)a->route.aux * (double)l.E;
    l.z = (double)a->route.z;

    SH_REQUIRE(call->work_bytes >= sh_cuda_route_loss_work_bytes(call) && (l.z == 0 || l.lse));
    SH_TRY(SH_LAUNCH(route_losses, dim3(sh_blocks(l.n)), dim3(WARPS * LANES), 0, call->queue, l));
    for (int i = 0; i < 2; i++)
        SH_TRY(sh_sum_parts(loss + i, sh_op_adds(call, 0), l.parts + i * l.n, l.n, call->queue));
    return SH_OK;
}
