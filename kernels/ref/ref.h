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
int64_t sh_ref_head_loss_work_bytes(const struct sh_op_call *call);

/* Element i of an operand. */
static inline double sh_ref_get(const struct sh_operand *t, int64_t i)
{
    switch (t->dtype) {
    case SH_BF16: return sh_bf16_to_f32(((const sh_bf16 *)t->data)[i]);
    case SH_F16: return sh_f16_to_f32(((const sh_f16 *)t->data)[i]);
    case SH_F64: return ((const double *)t->data)[i];
    case SH_I32: return ((const int32_t *)t->data)[i];
    case SH_I64: return (double)((const int64_t *)t->data)[i];
    case SH_U8: return ((const uint8_t *)t->data)[i];
    default: return ((const float *)t->data)[i];
    }
}

static inline void sh_ref_set(const struct sh_operand *t, int64_t i, double value)
{
    switch (t->dtype) {
    case SH_BF16: ((sh_bf16 *)t->data)[i] = sh_f32_to_bf16((float)value); break;
    case SH_F16: ((sh_f16 *)t->data)[i] = sh_f32_to_f16((float)value); break;
    case SH_F64: ((double *)t->data)[i] = value; break;
    case SH_I32: ((int32_t *)t->data)[i] = (int32_t)value; break;
    case SH_I64: ((int64_t *)t->data)[i] = (int64_t)value; break;
    case SH_U8: ((uint8_t *)t->data)[i] = (uint8_t)value; break;
    default: ((float *)t->data)[i] = (float)value;
    }
}

/* Store in output `out`, or add to it if the call says so ("+=" in op.h). */
static inline void sh_ref_sum(const struct sh_op_call *call, int out, int64_t i, double value)
{
    sh_ref_set(&call->out[out], i, sh_op_adds(call, out) ? sh_ref_get(&call->out[out], i) + value : value);
}

/* Set state k of element i in an update (kernels/states.h). */
void sh_ref_state_set(const struct sh_op_call *call, const struct sh_decay_run *run, int k, int64_t i, double value);

static inline int64_t sh_ref_elems(const struct sh_operand *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

#endif
