/* SGD and Lion on a flat shard: 20 bytes a parameter (g, and p and m read and written), whether p is whole or in
 * halves; 16 with states in bf16. */
#include "kernels/momentum.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/states.h"

typedef void rule(float *p, float *m, const float *grad, int64_t n, struct sh_momentum_factors f);

/* The arithmetic of an element is shared with the GPU's kernels (momentum.h); loops are here so that compilers make
 * vectors of them. */
SH_CLONES static void sgd(float *p, float *m, const float *grad, int64_t n, struct sh_momentum_factors f)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sh_sgd_elem(&p[i], &m[i], grad[i], &f);
}

SH_CLONES static void lion(float *p, float *m, const float *grad, int64_t n, struct sh_momentum_factors f)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sh_lion_elem(&p[i], &m[i], grad[i], &f);
}

/* Parameters in halves go through a room in the L1 cache, so that one loop does the arithmetic of both. */
static void update_params(struct sh_floats p, float *m, const float *grad, int64_t n, struct sh_momentum_factors f,
                          rule *by)
{
    float room[SH_CPU_STRIDE];

    if (p.whole) {
        by(p.whole, m, grad, n, f);
        return;
    }
    sh_floats_get(p, n, room);
    by(room, m, grad, n, f);
    sh_floats_put(p, n, room);
}

/* Memory is asked for ahead, as in adamw.c. */
static void update_piece(const struct sh_op_call *call, const struct sh_random *random, int64_t at, int64_t n,
                         struct sh_momentum_factors f, rule *by)
{
    enum { STRIDE = SH_CPU_STRIDE, AHEAD = SH_CPU_AHEAD, BYTES = STRIDE * (int)sizeof(float), STATES = 1 };
    struct sh_floats p = sh_momentum_params(call);
    char *upper = sh_floats_array(p, 0), *lower = sh_floats_array(p, 1);
    int64_t size = sh_floats_bytes(p, 1);
    const float *g = call->in[0].data;
    struct sh_cpu_states s;

    for (int64_t i = at; i < at + n; i += STRIDE) {
        int64_t here = at + n - i < STRIDE ? at + n - i : STRIDE;

        sh_cpu_prefetch(upper + (i + AHEAD) * size, STRIDE * size);
        if (lower)
            sh_cpu_prefetch(lower + (i + AHEAD) * size, STRIDE * size);
        sh_cpu_prefetch(g + i + AHEAD, BYTES);
        sh_cpu_states_get(call, STATES, i, here, &s);
        update_params(sh_floats_at(p, i), s.at[0], g + i, here, f, by);
        sh_cpu_states_put(call, STATES, random, i, here, &s);
    }
}

/* As in adamw.c. */
static sh_rc update_runs(const struct sh_op_call *call, rule *by)
{
    for (int r = 0; r < call->attr->runs.count; r++) {
        int64_t begin = call->runs[r].begin, n = call->runs[r].end - begin, pieces = sh_cpu_pieces(n);
        struct sh_momentum_factors f = sh_momentum_factors_of(call->scalars, call->runs[r].decay);
        struct sh_random random = sh_random_of(call, &call->runs[r]);
#pragma omp parallel for schedule(static)
        for (int64_t p = 0; p < pieces; p++)
            update_piece(call, &random, begin + p * SH_CPU_PIECE, sh_cpu_piece_elems(n, p), f, by);
    }
    return SH_OK;
}

sh_rc sh_cpu_sgd(const struct sh_op_call *call)
{
    return update_runs(call, sgd);
}

sh_rc sh_cpu_lion(const struct sh_op_call *call)
{
    return update_runs(call, lion);
}
