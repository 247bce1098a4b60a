/* How an optimizer's kernel walks its shard: run by run of weight decay, piece by piece over the threads, and within
 * a piece stride by stride, with prefetching. The rule sees parameters and states as f32, whatever type they are
 * stored in. */
#ifndef SH_OPTIM_UPDATE_H
#define SH_OPTIM_UPDATE_H

#include "kernels/op.h"

/* n elements, at most SH_CPU_STRIDE, in place: parameters, the states in the order of the row, and their gradient, if the
 * operation has one.
 * `factors`: the rule's, the same for all elements of a run. */
typedef void sh_cpu_rule(float *p, float *const *state, const float *grad, int64_t n, const void *factors);

/* The parameters: whole, or in halves if the operand after the states is present. */
static inline struct sh_floats sh_cpu_params_of(const struct sh_op_call *call, int n_states)
{
    struct sh_floats whole = {(float *)call->out[0].data, NULL, NULL, NULL, NULL, SH_CODE8_LINEAR};
    struct sh_floats halves = {
        NULL, (sh_bf16 *)call->out[0].data, (int16_t *)call->out[1 + n_states].data, NULL, NULL, SH_CODE8_LINEAR};
    return call->out[1 + n_states].data ? halves : whole;
}

/*   factors  in   for a run without weight decay, and for one with it
 * The operands are those of ADAMW with n_states states. No failure. */
void sh_cpu_update(const struct sh_op_call *call, int n_states, sh_cpu_rule *rule, const void *const factors[2]);

#endif
