/* Muon's two operations on a flat shard: 16 bytes per parameter for the momentum (u and m read and written), 12 for the
 * step (u, and p read and written). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/optim/update.h"
#include "kernels/momentum.h"

/* What the walk takes for the parameters is the gradient, which becomes the step. */
SH_CLONES static void add_momentum(float *u, float *const *state, const float *none, int64_t n, const void *factors)
{
    const struct sh_momentum_factors f = *(const struct sh_momentum_factors *)factors;
    float *m = state[0];

    (void)none;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sh_muon_elem(&u[i], &m[i], &f);
}

SH_CLONES static void apply(float *p, float *const *none, const float *u, int64_t n, const void *factors)
{
    const struct sh_momentum_factors f = *(const struct sh_momentum_factors *)factors;

    (void)none;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sh_muon_step(&p[i], u[i], &f);
}

static sh_rc update(const struct sh_op_call *call, int n_states, sh_cpu_rule *rule)
{
    const struct sh_momentum_factors plain = sh_momentum_factors_of(call->scalars, false),
                                     decayed = sh_momentum_factors_of(call->scalars, true);

    sh_cpu_update(call, n_states, rule, (const void *const[]){&plain, &decayed});
    return SH_OK;
}

sh_rc sh_cpu_muon_momentum(const struct sh_op_call *call)
{
    return update(call, 1, add_momentum);
}

sh_rc sh_cpu_muon_apply(const struct sh_op_call *call)
{
    return update(call, 0, apply);
}
