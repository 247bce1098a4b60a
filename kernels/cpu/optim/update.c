#include "kernels/cpu/optim/update.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/optim/coded.h"
#include "kernels/cpu/optim/states.h"

/* One update of a shard. */
struct update {
    const struct sh_op_call *call;
    struct sh_floats p;
    int n_states;
    sh_cpu_rule *rule;
};

/* Parameters in halves go through a buffer in the L1 cache, so that one loop does the arithmetic for both forms. */
static void update_stride(const struct update *u, struct sh_floats p, float *const *state, const float *grad, int64_t n,
                          const void *factors)
{
    float room[SH_CPU_STRIDE];

    if (p.whole) {
        u->rule(p.whole, state, grad, n, factors);
        return;
    }
    sh_floats_get(p, n, room);
    u->rule(room, state, grad, n, factors);
    sh_floats_put(p, n, room);
}

/* The prefetch is in the loop itself: compilers drop calls of a function that does nothing else. */
static void update_piece(const struct update *u, const struct sh_random *random, int64_t at, int64_t n,
                         const void *factors)
{
    enum { STRIDE = SH_CPU_STRIDE, AHEAD = SH_CPU_AHEAD, BYTES = STRIDE * (int)sizeof(float) };
    char *upper = sh_floats_array(u->p, 0), *lower = sh_floats_array(u->p, 1);
    int64_t size = sh_floats_bytes(u->p, 1);
    const float *g = u->call->in[0].data ? u->call->in[0].data : u->p.whole; /* a rule may need none */
    struct sh_cpu_states s;

    for (int64_t i = at; i < at + n; i += STRIDE) {
        int64_t here = at + n - i < STRIDE ? at + n - i : STRIDE;

        sh_cpu_prefetch(upper, (i + AHEAD) * size, STRIDE * size);
        if (lower)
            sh_cpu_prefetch(lower, (i + AHEAD) * size, STRIDE * size);
        sh_cpu_prefetch(g, (i + AHEAD) * (int64_t)sizeof *g, BYTES);
        sh_cpu_states_get(u->call, u->n_states, i, here, &s);
        update_stride(u, sh_floats_at(u->p, i), s.at, g + i, here, factors);
        sh_cpu_states_put(u->call, u->n_states, random, i, here, &s);
    }
}

/* Elements between runs are padding and are left alone. */
void sh_cpu_update(const struct sh_op_call *call, int n_states, sh_cpu_rule *rule, const void *const factors[2])
{
    const struct update u = {call, sh_cpu_params_of(call, n_states), n_states, rule};

    if (n_states && call->out[1].dtype == SH_U8) {
        sh_cpu_update_coded(call, n_states, rule, factors);
        return;
    }
    for (int r = 0; r < call->attr->runs.count; r++) {
        const struct sh_decay_run *run = &call->runs[r];
        int64_t begin = run->begin, n = run->end - begin, pieces = sh_cpu_pieces(n);
        struct sh_random random = sh_random_of(call, run);
#pragma omp parallel for schedule(static)
        for (int64_t p = 0; p < pieces; p++)
            update_piece(&u, &random, begin + p * SH_CPU_PIECE, sh_cpu_piece_elems(n, p), factors[run->decay]);
    }
}
