/* The states of an optimizer as f32, piece by piece: in place, or, if bf16, in a buffer in the L1 cache.
 *
 *     struct sh_cpu_states s;
 *     sh_cpu_states_get(call, n_states, i, n, &s);
 *     ... s.at[k][0..n) of state k ...
 *     sh_cpu_states_put(call, n_states, &random, i, n, &s);
 *
 * For one thread, no failure. */
#ifndef SH_OPTIM_STATES_H
#define SH_OPTIM_STATES_H

#include "kernels/cpu/base/stage.h"
#include "kernels/states.h"

struct sh_cpu_states {
    float *at[SH_STATES_MAX];
    float room[SH_STATES_MAX][SH_CPU_STRIDE];
};

/* Elements [i, i + n) of the shard, n at most SH_CPU_STRIDE; prefetches those that follow. */
void sh_cpu_states_get(const struct sh_op_call *call, int n_states, int64_t i, int64_t n, struct sh_cpu_states *s);

/* Store what is in a buffer, rounded by the random bits of its run. */
void sh_cpu_states_put(const struct sh_op_call *call, int n_states, const struct sh_random *random, int64_t i,
                       int64_t n, const struct sh_cpu_states *s);

/* The words of random bits of elements [i, i + n) of a run. */
void sh_cpu_random_words(const struct sh_random *random, int64_t i, int64_t n, uint32_t *words);

#endif
