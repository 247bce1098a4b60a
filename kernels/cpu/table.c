#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

#include <stddef.h>

static int64_t (*const work_of[SH_OP_KINDS])(const struct sh_op_call *call, int threads) = {
    [SH_OP_NORM] = sh_cpu_norm_work_bytes,
    [SH_OP_NORM_BWD] = sh_cpu_norm_bwd_work_bytes,
    [SH_OP_LINEAR] = sh_cpu_linear_work_bytes,
    [SH_OP_LINEAR_BWD_X] = sh_cpu_linear_bwd_x_work_bytes,
    [SH_OP_LINEAR_BWD_W] = sh_cpu_linear_bwd_w_work_bytes,
    [SH_OP_BIAS_BWD] = sh_cpu_bias_bwd_work_bytes,
    [SH_OP_ATTENTION] = sh_cpu_attention_work_bytes,
    [SH_OP_ATTENTION_BWD] = sh_cpu_attention_bwd_work_bytes,
    [SH_OP_ADD_NORM] = sh_cpu_add_norm_work_bytes,
    [SH_OP_NORM_BWD_BIAS] = sh_cpu_norm_bwd_work_bytes,
    [SH_OP_GELU_BWD_BIAS] = sh_cpu_gelu_bwd_bias_work_bytes,
    [SH_OP_HEAD_LOSS] = sh_cpu_head_work_bytes,
    [SH_OP_HEAD_LOSS_GRAD] = sh_cpu_head_work_bytes,
    [SH_OP_LOGITS] = sh_cpu_head_work_bytes,
};

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    return work_of[call->kind] ? work_of[call->kind](call, threads) : 0;
}

const struct sh_kernel_table sh_kernels_cpu = {
    .name = "cpu",
    .run = {
        [SH_OP_EMBED] = sh_cpu_embed,
        [SH_OP_EMBED_BWD] = sh_cpu_embed_bwd,
        [SH_OP_NORM] = sh_cpu_norm,
        [SH_OP_NORM_BWD] = sh_cpu_norm_bwd,
        [SH_OP_LINEAR] = sh_cpu_linear,
        [SH_OP_LINEAR_BWD_X] = sh_cpu_linear_bwd_x,
        [SH_OP_LINEAR_BWD_W] = sh_cpu_linear_bwd_w,
        [SH_OP_BIAS_BWD] = sh_cpu_bias_bwd,
        [SH_OP_ROPE_TABLE] = sh_ref_rope_table, /* once a run, in double: nothing to gain */
        [SH_OP_ROPE] = sh_cpu_rope,
        [SH_OP_ATTENTION] = sh_cpu_attention,
        [SH_OP_ATTENTION_BWD] = sh_cpu_attention_bwd,
        [SH_OP_GELU] = sh_cpu_gelu,
        [SH_OP_GELU_BWD] = sh_cpu_gelu_bwd,
        [SH_OP_SWIGLU] = sh_cpu_swiglu,
        [SH_OP_SWIGLU_BWD] = sh_cpu_swiglu_bwd,
        [SH_OP_ADD] = sh_cpu_add,
        [SH_OP_ADD_NORM] = sh_cpu_add_norm,
        [SH_OP_NORM_BWD_BIAS] = sh_cpu_norm_bwd,
        [SH_OP_GELU_BWD_BIAS] = sh_cpu_gelu_bwd_bias,
        [SH_OP_HEAD_LOSS] = sh_cpu_head_loss,
        [SH_OP_HEAD_LOSS_GRAD] = sh_cpu_head_loss_grad,
        [SH_OP_LOGITS] = sh_cpu_logits,
        [SH_OP_CAST] = sh_cpu_cast,
        [SH_OP_COPY] = sh_cpu_copy,
        [SH_OP_ACCUMULATE] = sh_cpu_accumulate,
        [SH_OP_SUMSQ] = sh_cpu_sumsq,
        [SH_OP_EXACT_ROUND] = sh_ref_exact_round, /* some digits: nothing to gain */
        [SH_OP_ADAMW] = sh_cpu_adamw,
        [SH_OP_SGD] = sh_cpu_sgd,
        [SH_OP_LION] = sh_cpu_lion,
    },
    .fill_normal = sh_ref_fill_normal,
    .work_bytes = work_bytes,
};
