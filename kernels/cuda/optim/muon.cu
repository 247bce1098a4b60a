/* Muon's two operations on a flat shard: 16 bytes per parameter for the momentum (u and m read and written), 12 for the
 * step (u, and p read and written). */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/runs.cuh"
#include "kernels/momentum.h"

namespace
{
struct muon_momentum {
    struct sh_floats m;
    float *u;
    struct sh_momentum_factors f;

    template <int N> __device__ __forceinline__ void at(int64_t i, const sh_runs &r, int run) const
    {
        float step[N], m1[N];
        uint32_t word[N] = {0};
        sh_load(step, u + i);
        sh_floats_load(m1, m, i);
        for (int k = 0; k < N; k++)
            sh_muon_elem(&step[k], &m1[k], &f);
        if (m.high)
            sh_cuda_random(r, run, i, word);
        sh_cuda_store_state(m, i, m1, word, 0);
        sh_store(u + i, step);
    }
};

struct muon_apply {
    struct sh_floats p;
    const float *u;
    struct sh_momentum_factors plain, decayed;

    template <int N> __device__ __forceinline__ void at(int64_t i, const sh_runs &r, int run) const
    {
        const struct sh_momentum_factors *by = r.decay[run] ? &decayed : &plain;
        float step[N], p1[N];
        sh_load(step, u + i);
        sh_floats_load(p1, p, i);
        for (int k = 0; k < N; k++)
            sh_muon_step(&p1[k], step[k], by);
        sh_cuda_store_floats(p, i, p1);
    }
};
} // namespace

extern "C" sh_rc sh_cuda_muon_momentum(const struct sh_op_call *call)
{
    muon_momentum f = {sh_state_floats(&call->out[1]), (float *)call->out[0].data,
                       sh_momentum_factors_of(call->scalars, false)};

    return sh_update_by_runs("muon_momentum", call, f, sh_floats_aligned<4>(f.m) && sh_aligned<4>(f.u, 0));
}

extern "C" sh_rc sh_cuda_muon_apply(const struct sh_op_call *call)
{
    struct sh_floats whole = {(float *)call->out[0].data, NULL, NULL, NULL, NULL, SH_CODE8_LINEAR};
    struct sh_floats halves = {NULL,           (sh_bf16 *)call->out[0].data, (int16_t *)call->out[1].data, NULL, NULL,
                               SH_CODE8_LINEAR};
    muon_apply f = {call->out[1].data ? halves : whole, sh_data<float>(&call->in[0]),
                    sh_momentum_factors_of(call->scalars, false), sh_momentum_factors_of(call->scalars, true)};

    return sh_update_by_runs("muon_apply", call, f, sh_floats_aligned<4>(f.p) && sh_aligned<4>(f.u, 0));
}
