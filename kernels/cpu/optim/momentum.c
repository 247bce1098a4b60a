/* SGD and Lion on a flat shard: 20 bytes per parameter (g, and p and m read and written), whether p is whole or in
 * halves; 16 with states in bf16. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/optim/update.h"
#include "kernels/momentum.h"

/* The arithmetic of an element is shared with the GPU kernels (momentum.h); the loops are here so that compilers
 * vectorise them. */
SH_CLONES static void sgd(float *p, float *const *state, const float *grad, int64_t n, const void *factors)
{
    const struct sh_momentum_factors f = *(const struct sh_momentum_factors *)factors;
    float *m = state[0];

#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sh_sgd_elem(&p[i], &m[i], grad[i], &f);
}

SH_CLONES static void lion(float *p, float *const *state, const float *grad, int64_t n, const void *factors)
{
    const struct sh_momentum_factors f = *(const struct sh_momentum_factors *)factors;
    float *m = state[0];

#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sh_lion_elem(&p[i], &m[i], grad[i], &f);
}

/* As in adamw.c. */
static sh_rc update(const struct sh_op_call *call, sh_cpu_rule *rule)
{
    const struct sh_momentum_factors plain = sh_momentum_factors_of(call->scalars, false),
                                     decayed = sh_momentum_factors_of(call->scalars, true);

    sh_cpu_update(call, 1, rule, (const void *const[]){&plain, &decayed});
    return SH_OK;
}

sh_rc sh_cpu_sgd(const struct sh_op_call *call)
{
    return update(call, sgd);
}

sh_rc sh_cpu_lion(const struct sh_op_call *call)
{
    return update(call, lion);
}
