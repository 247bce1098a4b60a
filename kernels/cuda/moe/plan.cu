/* What a router's choice leads to: a stable counting sort of the choices by expert, the load of the experts, and the
 * bias that evens it out. The choices are cut into parts, by shape alone. A warp counts the choices of a part; a warp
 * turns the counts of an expert into places; then a warp deals a part out, 32 choices at a time, whose order it knows
 * from ballots. No atomics but counts in shared memory. Floor: M numbers read twice, two written. Not measured on a
 * GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/work.h"

namespace
{
constexpr int LANES = 32, WARPS = 4;

struct plan {
    const int32_t *expert;          /* [M] */
    int32_t *order, *place, *first; /* [M], [M], [E+1] */
    int32_t *next;                  /* [E,parts]: counts, then the row of a part's next choice */
    int32_t *total;                 /* [E] */
    int64_t M;
    int32_t E, parts;

    __device__ __forceinline__ int64_t begin(int64_t part) const
    {
        return M * part / parts;
    }

    /* Always an expert: only damaged memory has others, and even then nothing outside the operands is touched. */
    __device__ __forceinline__ int32_t expert_of(int64_t i) const
    {
        int32_t e = expert[i];
        return e < 0 || e >= E ? E - 1 : e;
    }
};

/* A warp is a block. */
__global__ void __launch_bounds__(LANES) count_parts(plan p)
{
    SH_DYNAMIC_SHARED(int32_t, count);

    for (int64_t part = blockIdx.x; part < p.parts; part += gridDim.x) {
        for (int32_t e = threadIdx.x; e < p.E; e += LANES)
            count[e] = 0;
        __syncwarp();
        for (int64_t i = p.begin(part) + threadIdx.x; i < p.begin(part + 1); i += LANES)
            atomicAdd(&count[p.expert_of(i)], 1);
        __syncwarp();
        for (int32_t e = threadIdx.x; e < p.E; e += LANES)
            p.next[e * (int64_t)p.parts + part] = count[e];
        __syncwarp();
    }
}

/* The expert of this warp in a grid of warps; E or more: none. */
__device__ __forceinline__ int32_t my_expert()
{
    return (int32_t)(blockIdx.x * WARPS + threadIdx.x / LANES);
}

__global__ void __launch_bounds__(LANES *WARPS) add_parts(plan p)
{
    int32_t lane = threadIdx.x % LANES;

    for (int32_t e = my_expert(); e < p.E; e += (int32_t)gridDim.x * WARPS) {
        int32_t sum = 0;
        for (int32_t part = lane; part < p.parts; part += LANES)
            sum += p.next[e * (int64_t)p.parts + part];
        sum = sh_warp_reduce(sum, sh_add());
        if (lane == 0)
            p.total[e] = sum;
    }
}

/* Expert by expert, and within it part by part. */
__global__ void __launch_bounds__(LANES *WARPS) start_rows(plan p)
{
    int32_t lane = threadIdx.x % LANES;

    for (int32_t e = my_expert(); e < p.E; e += (int32_t)gridDim.x * WARPS) {
        int32_t row = 0;
        for (int32_t first = 0; first < e; first += LANES)
            row += first + lane < e ? p.total[first + lane] : 0;
        row = sh_warp_reduce(row, sh_add());
        if (lane == 0)
            p.first[e] = row;
        if (lane == 0 && e == p.E - 1)
            p.first[p.E] = row + p.total[e];
        for (int32_t part = lane; part - lane < p.parts; part += LANES) {
            int32_t *next = p.next + e * (int64_t)p.parts + part, count = part < p.parts ? *next : 0;
            int32_t upto = sh_warp_upto(count);
            if (part < p.parts)
                *next = row + upto - count;
            row += __shfl_sync(~0u, upto, LANES - 1);
        }
    }
}

/* The lanes that have the same number as this one, out of [0, E]. */
__device__ __forceinline__ unsigned lanes_with(int32_t number, int32_t E)
{
    unsigned same = ~0u;

    for (int bit = 0; E >> bit; bit++) {
        unsigned set = __ballot_sync(~0u, number >> bit & 1);
        same &= number >> bit & 1 ? set : ~set;
    }
    return same;
}

/* Choices [i, i + 32) of a part that ends at `end`; next [E]: where its next ones go. */
__device__ __forceinline__ void deal(const plan &p, int32_t *next, int64_t i, int64_t end)
{
    unsigned lane = threadIdx.x;
    bool there = i + lane < end;
    int32_t e = there ? p.expert_of(i + lane) : p.E;
    unsigned same = lanes_with(e, p.E), before = (unsigned)__popc(same & ((1u << lane) - 1));
    int32_t row = there ? next[e] + (int32_t)before : 0;

    __syncwarp();
    if (there) {
        p.order[row] = (int32_t)(i + lane);
        p.place[i + lane] = row;
        if (before == 0)
            next[e] = row + __popc(same);
    }
    __syncwarp();
}

__global__ void __launch_bounds__(LANES) deal_parts(plan p)
{
    SH_DYNAMIC_SHARED(int32_t, next);

    for (int64_t part = blockIdx.x; part < p.parts; part += gridDim.x) {
        for (int32_t e = threadIdx.x; e < p.E; e += LANES)
            next[e] = p.next[e * (int64_t)p.parts + part];
        __syncwarp();
        for (int64_t i = p.begin(part); i < p.begin(part + 1); i += LANES)
            deal(p, next, i, p.begin(part + 1));
    }
}

/* Whole numbers in f64: exact, in any order. */
struct load_of {
    double *load;
    const int32_t *first;
    bool add;

    template <int> __device__ __forceinline__ void at(int64_t e) const
    {
        double rows = first[e + 1] - first[e];
        load[e] = add ? load[e] + rows : rows;
    }
};

/* sum + the values of all lanes, one after another, as a loop on the host adds them. */
__device__ __forceinline__ double add_in_order(double sum, double v)
{
    for (int i = 0; i < LANES; i++)
        sum += __shfl_sync(~0u, v, i);
    return sum;
}

/* The bits of kernels/ref. One warp: E numbers, once per layer and step. */
__global__ void __launch_bounds__(LANES) route_bias(const double *load, float *bias, int64_t E, double step)
{
    double mean = 0, sum = 0;

    for (int64_t e = threadIdx.x; e - (int)threadIdx.x < E; e += LANES)
        mean = add_in_order(mean, e < E ? load[e] / (double)E : 0);
    for (int64_t e = threadIdx.x; e - (int)threadIdx.x < E; e += LANES) {
        double less = e < E ? mean - load[e] : 0;
        float moved = e < E ? (float)((double)bias[e] + (less > 0 ? step : less < 0 ? -step : 0)) : 0;
        if (e < E)
            bias[e] = moved;
        sum = add_in_order(sum, (double)moved);
    }
    for (int64_t e = threadIdx.x; e < E; e += LANES)
        bias[e] = (float)((double)bias[e] - sum / (double)E);
}
} // namespace

extern "C" sh_rc sh_cuda_route_plan(const struct sh_op_call *call)
{
    plan p = {};
    p.expert = sh_data<int32_t>(&call->in[0]);
    p.order = sh_data<int32_t>(&call->out[0]);
    p.place = sh_data<int32_t>(&call->out[1]);
    p.first = sh_data<int32_t>(&call->out[2]);
    p.M = sh_elems(&call->in[0]);
    p.E = (int32_t)(sh_elems(&call->out[2]) - 1);
    p.parts = (int32_t)sh_cuda_plan_parts(p.M);
    p.next = static_cast<int32_t *>(call->work);
    p.total = p.next + p.E * (int64_t)p.parts;

    SH_REQUIRE(call->work_bytes >= sh_cuda_route_plan_work_bytes(call));
    dim3 parts(sh_blocks(p.parts)), experts(sh_blocks(sh_ceil_div(p.E, WARPS)));
    size_t counts = (size_t)p.E * sizeof(int32_t);
    SH_TRY(SH_LAUNCH(count_parts, parts, dim3(LANES), counts, call->queue, p));
    SH_TRY(SH_LAUNCH(add_parts, experts, dim3(LANES * WARPS), 0, call->queue, p));
    SH_TRY(SH_LAUNCH(start_rows, experts, dim3(LANES * WARPS), 0, call->queue, p));
    return SH_LAUNCH(deal_parts, parts, dim3(LANES), counts, call->queue, p);
}

extern "C" sh_rc sh_cuda_route_load(const struct sh_op_call *call)
{
    load_of f = {sh_data<double>(&call->out[0]), sh_data<int32_t>(&call->in[0]), sh_op_adds(call, 0)};
    return sh_map<1>("route_load", f, sh_elems(&call->out[0]), false, call->queue);
}

extern "C" sh_rc sh_cuda_route_bias(const struct sh_op_call *call)
{
    return SH_LAUNCH(route_bias, dim3(1), dim3(LANES), 0, call->queue, sh_data<double>(&call->in[0]),
                     sh_data<float>(&call->out[0]), sh_elems(&call->in[0]), (double)call->attr->route.step);
}
