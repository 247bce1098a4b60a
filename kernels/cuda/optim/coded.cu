/* AdamW and Lion with states in codes of eight bits, and what copies these to the host. Bytes per parameter: 16.25 of AdamW
 * (g, and p, m, v read and written), 14.1 of Lion, whether p is whole or in halves; 5.1 of the copy. Half a warp has a block
 * of 64 codes, so that its largest number is found by four shuffles. Not measured on a GPU. */
#include "kernels/adamw.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/runs.cuh"
#include "kernels/momentum.h"

namespace
{
constexpr int THREADS = 256, EACH = SH_CODE_EACH, LANES = SH_CODE_LANES, PER_WARP = 32 / LANES;
static_assert(PER_WARP * LANES == 32, "whole blocks of codes");

struct adamw {
    static constexpr int STATES = 2;
    struct sh_adamw_factors f;
    float keep; /* in a run with decay */

    __device__ __forceinline__ void step(float *p, float (&state)[STATES][EACH], int k, float g, bool decay) const
    {
        sh_adamw_elem(p, &state[0][k], &state[1][k], g, &f, decay ? keep : f.keep);
    }
};

struct lion {
    static constexpr int STATES = 1;
    struct sh_momentum_factors f;
    float keep;

    __device__ __forceinline__ void step(float *p, float (&state)[STATES][EACH], int k, float g, bool decay) const
    {
        struct sh_momentum_factors by = f;
        by.keep = decay ? keep : f.keep;
        sh_lion_elem(p, &state[0][k], g, &by);
    }
};

/* Blocks [first, first + blocks) of a shard, and the runs that they are of. */
template <class RULE> struct coded {
    RULE rule;
    struct sh_floats p;
    const float *g;
    unsigned char *state[RULE::STATES];
    int64_t first, blocks;
    sh_runs r;

    /* Whether the block that starts at element `at` has elements of a run; `run` is the last that starts there or before. */
    __device__ __forceinline__ bool has(int64_t at, int run) const
    {
        int64_t end = at + SH_CODE8_ELEMS;
        return (r.begin[run] < end && r.end[run] > at) || (run + 1 < r.n && r.begin[run + 1] < end);
    }

    /* N elements of a run, numbers [k, k + N) of this lane. */
    template <int N>
    __device__ __forceinline__ void update(int64_t at, int run, int k, float (&x)[RULE::STATES][EACH],
                                           uint32_t (&word)[EACH]) const
    {
        float grad[N], p1[N];
        uint32_t bits[N];

        sh_load(grad, g + at);
        sh_floats_load(p1, p, at);
        sh_cuda_random(r, run, at, bits);
        for (int i = 0; i < N; i++) {
            rule.step(&p1[i], x, k + i, grad[i], r.decay[run]);
            word[k + i] = bits[i];
        }
        sh_cuda_store_floats(p, at, p1);
    }

    /* The lane's elements of a block, each by its run. What is in none keeps its numbers. */
    template <bool VECTORS>
    __device__ __forceinline__ void update_lane(int64_t block, int64_t at, int run, float (&x)[RULE::STATES][EACH],
                                                uint32_t (&word)[EACH]) const
    {
        bool whole = r.begin[run] <= block && block + SH_CODE8_ELEMS <= r.end[run];

        for (int s = 0; s < RULE::STATES; s++)
            sh_cuda_load_codes(x[s], state[s], sh_state_law(s), at);
        if (VECTORS && whole) {
            update<EACH>(at, run, 0, x, word);
            return;
        }
        for (int k = 0; k < EACH; k++) {
            int own = whole ? run : sh_decay_run_at(r, at + k);
            if (r.begin[own] <= at + k && at + k < r.end[own])
                update<1>(at + k, own, k, x, word);
        }
    }
};

/* All lanes of a warp stay together for the shuffles, though one of its two blocks may be past the end or of no run. */
template <bool VECTORS, class RULE> __global__ void __launch_bounds__(THREADS) update_codes(coded<RULE> u)
{
    unsigned lane = threadIdx.x % LANES, half = threadIdx.x % 32 / LANES;
    int64_t step = (int64_t)gridDim.x * (THREADS / LANES);

    for (int64_t i = ((int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * PER_WARP; i < u.blocks; i += step) {
        int64_t block = u.first + i + half, at = block * SH_CODE8_ELEMS;
        int run = sh_decay_run_at(u.r, at);
        bool there = i + half < u.blocks && u.has(at, run);
        float x[RULE::STATES][EACH] = {};
        uint32_t word[EACH];

        for (int k = 0; k < EACH; k++)
            word[k] = (uint32_t)SH_CODE8_NEAREST << SH_RANDOM_BITS | SH_CODE8_NEAREST;
        if (there)
            u.template update_lane<VECTORS>(at, at + lane * EACH, run, x, word);
        for (int s = 0; s < RULE::STATES; s++) {
            float scale = sh_cuda_largest(x[s]);
            if (there)
                sh_cuda_store_codes(u.state[s] + block * SH_CODE8_BLOCK_BYTES, sh_state_law(s), lane, x[s], word,
                                    s * SH_RANDOM_BITS, scale);
        }
    }
}

template <class RULE> sh_rc launch(const char *name, const coded<RULE> &u, bool vectors, void *queue)
{
    dim3 grid(sh_blocks(sh_ceil_div(u.blocks, THREADS / LANES)));

    if (vectors)
        return sh_launch(name, update_codes<true, RULE>, grid, dim3(THREADS), 0, queue, u);
    return sh_launch(name, update_codes<false, RULE>, grid, dim3(THREADS), 0, queue, u);
}

/* SH_RUNS runs a launch, or fewer: all runs that a block is of are in one, since what a launch finds in none of its runs it
 * rounds to nearest. A block is of 64 runs at most. */
template <class RULE> sh_rc update(const char *name, const struct sh_op_call *call, coded<RULE> u)
{
    const struct sh_decay_run *run = call->runs;
    const int count = call->attr->runs.count;
    bool vectors = sh_floats_aligned<EACH>(u.p) && sh_aligned<EACH>(u.g, 0);
    static_assert(SH_RUNS >= SH_CODE8_ELEMS, "a launch has all runs of a block");

    for (int s = 0; s < RULE::STATES; s++) {
        u.state[s] = sh_data<unsigned char>(&call->out[1 + s]);
        SH_REQUIRE(sh_aligned<EACH>(u.state[s], 0));
    }
    for (int done = 0; done < count;) {
        int n = count - done < SH_RUNS ? count - done : SH_RUNS;
        int64_t begin = run[done].begin / SH_CODE8_ELEMS, end = sh_ceil_div(run[done + n - 1].end, SH_CODE8_ELEMS);

        u.first = begin > u.first + u.blocks ? begin : u.first + u.blocks;
        if (done + n < count && run[done + n].begin / SH_CODE8_ELEMS < end)
            end = run[done + n].begin / SH_CODE8_ELEMS;
        u.blocks = end - u.first;
        u.r = sh_runs_of(call, done, n);
        SH_TRY(launch(name, u, vectors, call->queue));
        while (done < count && run[done].end <= end * SH_CODE8_ELEMS)
            done++;
    }
    return SH_OK;
}

struct widen {
    struct sh_floats from;
    float *to;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        float v[N];
        sh_cuda_load_codes(v, from.coded, from.law, i);
        sh_store(to + i, v);
    }
};
} // namespace

extern "C" sh_rc sh_cuda_adamw_coded(const struct sh_op_call *call)
{
    adamw rule = {sh_adamw_factors_of(call->scalars, false), sh_adamw_factors_of(call->scalars, true).keep};

    return update("adamw_coded", call,
                  coded<adamw>{rule, sh_adamw_params(call), sh_data<float>(&call->in[0]), {}, 0, 0, {}});
}

extern "C" sh_rc sh_cuda_lion_coded(const struct sh_op_call *call)
{
    lion rule = {sh_momentum_factors_of(call->scalars, false), sh_momentum_factors_of(call->scalars, true).keep};

    return update("lion_coded", call,
                  coded<lion>{rule, sh_momentum_params(call), sh_data<float>(&call->in[0]), {}, 0, 0, {}});
}

sh_rc sh_cuda_widen(struct sh_floats coded, int64_t n, float *to, void *queue)
{
    SH_REQUIRE(coded.coded && sh_aligned<4>(coded.coded, 0));
    return sh_map<4>("widen", widen{coded, to}, n, sh_aligned<4>(to, 0), queue);
}
