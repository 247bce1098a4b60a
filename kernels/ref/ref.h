/* The reference kernels: what each operation *is*. Plain loops, one function per kind, forward and backward of a
 * family in one file. They read any operand as double, compute in double and round once when they store, so one loop
 * serves f32 and bf16 (and f64, with which the tests differentiate them). They run on one thread and are slow on
 * purpose: other devices are tested against them, and people read them.
 *
 * Contract and shapes: kernels/op.h, op.c. All local. Errors: SH_E_DATA from embed for a token outside the
 * vocabulary. */
#ifndef SH_KERNELS_REF_REF_H
#define SH_KERNELS_REF_REF_H

#include "kernels/op.h"

#define sh_ref_head_loss_grad sh_ref_head_loss
#define sh_ref_cast sh_ref_copy
#define sh_ref_expert_linear_bwd_x sh_ref_expert_linear

#define SH_REF_KERNEL(KIND, name) sh_rc sh_ref_##name(const struct sh_op_call *call);
SH_OP_LIST(SH_REF_KERNEL, SH_OP_SKIP, SH_OP_SKIP)

sh_rc sh_ref_fill_normal(uint64_t key, const struct sh_rng_runs *runs, float std, struct sh_floats out, void *queue);

int64_t sh_ref_attention_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_attention_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_attention_cache_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_lora_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_route_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_ortho_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_ortho_rows_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_gated_delta_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_gated_delta_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_scan_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_scan_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_ref_head_loss_work_bytes(const struct sh_op_call *call);

/* What plug-ins have too (include/sherd/op.h). */
#define sh_ref_get sh_operand_get
#define sh_ref_set sh_operand_set
#define sh_ref_elems sh_operand_elems

/* Store in output `out`, or add to it if the call says so ("+=" in op.h). */
static inline void sh_ref_sum(const struct sh_op_call *call, int out, int64_t i, double value)
{
    sh_ref_set(&call->out[out], i, sh_op_adds(call, out) ? sh_ref_get(&call->out[out], i) + value : value);
}

/* Set state k of element i in an update (kernels/states.h). */
void sh_ref_state_set(const struct sh_op_call *call, const struct sh_decay_run *run, int k, int64_t i, double value);

#endif
