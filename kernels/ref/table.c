#include "kernels/ref/ref.h"

#include <stddef.h>

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads; /* one thread, always */
    switch (call->kind) {
    case SH_OP_ATTENTION: return sh_ref_attention_work_bytes(call);
    case SH_OP_ATTENTION_BWD: return sh_ref_attention_bwd_work_bytes(call);
    case SH_OP_HEAD_LOSS:
    case SH_OP_HEAD_LOSS_GRAD: return sh_ref_head_loss_work_bytes(call);
    default: return 0;
    }
}

const struct sh_kernel_table sh_kernels_ref = {
    .name = "ref",
    .run = {
        [SH_OP_EMBED] = sh_ref_embed,
        [SH_OP_EMBED_BWD] = sh_ref_embed_bwd,
        [SH_OP_NORM] = sh_ref_norm,
        [SH_OP_NORM_BWD] = sh_ref_norm_bwd,
        [SH_OP_LINEAR] = sh_ref_linear,
        [SH_OP_LINEAR_BWD_X] = sh_ref_linear_bwd_x,
        [SH_OP_LINEAR_BWD_W] = sh_ref_linear_bwd_w,
        [SH_OP_BIAS_BWD] = sh_ref_bias_bwd,
        [SH_OP_ROPE_TABLE] = sh_ref_rope_table,
        [SH_OP_ROPE] = sh_ref_rope,
        [SH_OP_ATTENTION] = sh_ref_attention,
        [SH_OP_ATTENTION_BWD] = sh_ref_attention_bwd,
        [SH_OP_GELU] = sh_ref_gelu,
        [SH_OP_GELU_BWD] = sh_ref_gelu_bwd,
        [SH_OP_SWIGLU] = sh_ref_swiglu,
        [SH_OP_SWIGLU_BWD] = sh_ref_swiglu_bwd,
        [SH_OP_ADD] = sh_ref_add,
        [SH_OP_HEAD_LOSS] = sh_ref_head_loss,
        [SH_OP_HEAD_LOSS_GRAD] = sh_ref_head_loss,
        [SH_OP_LOGITS] = sh_ref_logits,
        [SH_OP_CAST] = sh_ref_copy,
        [SH_OP_COPY] = sh_ref_copy,
        [SH_OP_ACCUMULATE] = sh_ref_accumulate,
        [SH_OP_SUMSQ] = sh_ref_sumsq,
        [SH_OP_EXACT_ROUND] = sh_ref_exact_round,
        [SH_OP_ADAMW] = sh_ref_adamw,
        [SH_OP_SGD] = sh_ref_sgd,
        [SH_OP_LION] = sh_ref_lion,
    },
    .fill_normal = sh_ref_fill_normal,
    .work_bytes = work_bytes,
};
