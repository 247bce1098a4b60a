/* AdamW on a flat shard: 28 bytes per parameter (g, and p, m, v read and written), whether p is whole or in halves;
 * 20 with states in bf16. */
#include "kernels/adamw.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/runs.cuh"

namespace
{
/* One element of the shard is one parameter. `keep` is 1 - lr * decay in runs with decay, and 1 elsewhere. */
struct adamw {
    struct sh_floats p, m, v;
    const float *g;
    struct sh_adamw_factors plain;
    float keep; /* in a run with decay */

    template <int N> __device__ __forceinline__ void at(int64_t at, const sh_runs &r, int run) const
    {
        float grad[N], m1[N], v1[N], p1[N], kept = r.decay[run] ? keep : plain.keep;
        uint32_t word[N] = {0};
        sh_load(grad, g + at);
        sh_floats_load(m1, m, at);
        sh_floats_load(v1, v, at);
        sh_floats_load(p1, p, at);
        for (int k = 0; k < N; k++)
            sh_adamw_elem(&p1[k], &m1[k], &v1[k], grad[k], &plain, kept);
        if (m.high)
            sh_cuda_random(r, run, at, word);
        sh_cuda_store_state(m, at, m1, word, 0);
        sh_cuda_store_state(v, at, v1, word, 1);
        sh_cuda_store_floats(p, at, p1);
    }
};
} // namespace

/* Both kinds of run in one launch: an element's run determines its factors. */
extern "C" sh_rc sh_cuda_adamw(const struct sh_op_call *call)
{
    const struct sh_operand *out = call->out;
    adamw f = {sh_adamw_params(call),
               sh_state_floats(&out[1]),
               sh_state_floats(&out[2]),
               sh_data<float>(&call->in[0]),
               sh_adamw_factors_of(call->scalars, false),
               sh_adamw_factors_of(call->scalars, true).keep};
    bool vectors = sh_floats_aligned<4>(f.p) && sh_floats_aligned<4>(f.m) && sh_floats_aligned<4>(f.v) &&
                   sh_aligned<4>(f.g, 0);

    return sh_update_by_runs("adamw", call, f, vectors);
}
