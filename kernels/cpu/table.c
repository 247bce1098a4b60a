#include "kernels/cpu/cpu.h"
#include "kernels/plug.h"
#include "kernels/plug_loss.h"
#include "kernels/ref/ref.h"

#include <stddef.h>

/* Kinds without a row need no scratch. */
static int64_t (*const work_of[SH_OP_ROOM])(const struct sh_op_call *call, int threads) = {
    [SH_OP_NORM] = sh_cpu_norm_work_bytes,
    [SH_OP_NORM_BWD] = sh_cpu_norm_bwd_work_bytes,
    [SH_OP_QK_NORM] = sh_cpu_qk_norm_work_bytes,
    [SH_OP_QK_NORM_BWD] = sh_cpu_qk_norm_bwd_work_bytes,
    [SH_OP_QK_MEANS] = sh_cpu_qk_means_work_bytes,
    [SH_OP_LINEAR] = sh_cpu_linear_work_bytes,
    [SH_OP_LINEAR_BWD_X] = sh_cpu_linear_bwd_x_work_bytes,
    [SH_OP_LINEAR_BWD_W] = sh_cpu_linear_bwd_w_work_bytes,
    [SH_OP_BIAS_BWD] = sh_cpu_bias_bwd_work_bytes,
    [SH_OP_ATTENTION] = sh_cpu_attention_work_bytes,
    [SH_OP_ATTENTION_BWD] = sh_cpu_attention_bwd_work_bytes,
    [SH_OP_ATTENTION_ROWS] = sh_cpu_attention_work_bytes,
    [SH_OP_ATTENTION_ROWS_BWD] = sh_cpu_attention_bwd_work_bytes,
    [SH_OP_ADD_NORM] = sh_cpu_add_norm_work_bytes,
    [SH_OP_NORM_BWD_BIAS] = sh_cpu_norm_bwd_work_bytes,
    [SH_OP_GELU_BWD_BIAS] = sh_cpu_gelu_bwd_bias_work_bytes,
    [SH_OP_HEAD_LOSS] = sh_cpu_head_work_bytes,
    [SH_OP_HEAD_LOSS_GRAD] = sh_cpu_head_work_bytes,
    [SH_OP_ATTENTION_CACHE] = sh_cpu_attention_cache_work_bytes,
    [SH_OP_HEAD_SCORE] = sh_cpu_head_work_bytes,
    [SH_OP_LOGITS] = sh_cpu_head_work_bytes,
    [SH_OP_LOSS_REST] = sh_cpu_loss_rest_work_bytes,
    [SH_OP_LORA] = sh_cpu_lora_work_bytes,
    [SH_OP_LORA_BWD] = sh_cpu_lora_work_bytes,
    [SH_OP_EXPERT_LINEAR] = sh_cpu_expert_work_bytes,
    [SH_OP_EXPERT_LINEAR_BWD_X] = sh_cpu_expert_work_bytes,
    [SH_OP_EXPERT_LINEAR_BWD_W] = sh_cpu_expert_work_bytes,
    [SH_OP_ROUTE] = sh_cpu_route_work_bytes,
    [SH_OP_ROUTE_PLAN] = sh_cpu_route_plan_work_bytes,
    [SH_OP_ROUTE_BWD] = sh_cpu_route_bwd_work_bytes,
    [SH_OP_ROUTE_LOSS] = sh_cpu_route_loss_work_bytes,
    [SH_OP_ORTHO] = sh_cpu_ortho_work_bytes,
    [SH_OP_ORTHO_ROWS] = sh_cpu_ortho_rows_work_bytes,
    [SH_OP_SHORT_CONV] = sh_cpu_short_conv_work_bytes,
    [SH_OP_SHORT_CONV_BWD] = sh_cpu_short_conv_bwd_work_bytes,
    [SH_OP_GATED_DELTA] = sh_cpu_gated_delta_work_bytes,
    [SH_OP_GATED_DELTA_BWD] = sh_cpu_gated_delta_bwd_work_bytes,
    [SH_OP_SHORT_CONV_CACHE] = sh_cpu_short_conv_work_bytes,
    [SH_OP_GATED_DELTA_CACHE] = sh_cpu_gated_delta_cache_work_bytes,
    [SH_OP_GATED_NORM_BWD] = sh_cpu_gated_norm_bwd_work_bytes,
    [SH_OP_SCAN] = sh_cpu_scan_work_bytes,
    [SH_OP_SCAN_CACHE] = sh_cpu_scan_cache_work_bytes,
    [SH_OP_SCAN_BWD] = sh_cpu_scan_bwd_work_bytes,
    [SH_OP_GATE_NORM] = sh_cpu_gate_norm_work_bytes,
    [SH_OP_GATE_NORM_BWD] = sh_cpu_gate_norm_bwd_work_bytes,
};

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    return work_of[call->kind] ? work_of[call->kind](call, threads) : sh_plug_work_bytes(call);
}

#define ROW(KIND, name) [SH_OP_##KIND] = sh_cpu_##name,

/* An operation, or a loss of pairs or of targets. */
static sh_rc run_plug(const struct sh_op_call *call)
{
    const struct sherd_loss *loss = sh_plug_loss(call->kind);

    return !loss ? sh_plug_cpu(call) : loss->pair ? sh_cpu_pair_loss(call) : sh_plug_target_loss(call);
}

const struct sh_kernel_table sh_kernels_cpu = {
    .name = "cpu",
    .run = {SH_OP_LIST(ROW, ROW, SH_OP_SKIP)[SH_OP_KINDS... SH_OP_ROOM - 1] = run_plug},
    .fill_normal = sh_ref_fill_normal,
    .work_bytes = work_bytes,
};
