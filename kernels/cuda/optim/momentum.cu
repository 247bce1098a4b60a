/* SGD and Lion on a flat shard: 20 bytes per parameter (g, and p and m read and written), whether p is whole or in
 * halves; 16 with states in bf16. */
#include "kernels/momentum.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/runs.cuh"

namespace
{
/* The arithmetic is the same as in the CPU kernel (sh_sgd_elem, sh_lion_elem), element by element. */
template <bool LION> struct momentum {
    struct sh_floats p, m;
    const float *g;
    struct sh_momentum_factors plain, decayed;

    template <int N> __device__ __forceinline__ void at(int64_t i, const sh_runs &r, int run) const
    {
        const struct sh_momentum_factors *by = r.decay[run] ? &decayed : &plain;
        float grad[N], m1[N], p1[N];
        uint32_t word[N] = {0};
        sh_load(grad, g + i);
        sh_floats_load(m1, m, i);
        sh_floats_load(p1, p, i);
        for (int k = 0; k < N; k++) {
            if (LION)
                sh_lion_elem(&p1[k], &m1[k], grad[k], by);
            else
                sh_sgd_elem(&p1[k], &m1[k], grad[k], by);
        }
        if (m.high)
            sh_cuda_random(r, run, i, word);
        sh_cuda_store_state(m, i, m1, word, 0);
        sh_cuda_store_floats(p, i, p1);
    }
};

/* There are factors for runs with and without decay; an element's run decides. */
template <bool LION> sh_rc update(const char *name, const struct sh_op_call *call)
{
    momentum<LION> f = {sh_momentum_params(call), sh_state_floats(&call->out[1]), sh_data<float>(&call->in[0]),
                        sh_momentum_factors_of(call->scalars, false), sh_momentum_factors_of(call->scalars, true)};
    bool vectors = sh_floats_aligned<4>(f.p) && sh_floats_aligned<4>(f.m) && sh_aligned<4>(f.g, 0);

    return sh_update_by_runs(name, call, f, vectors);
}
} // namespace

extern "C" sh_rc sh_cuda_sgd(const struct sh_op_call *call)
{
    return update<false>("sgd", call);
}

extern "C" sh_rc sh_cuda_lion(const struct sh_op_call *call)
{
    return update<true>("lion", call);
}
