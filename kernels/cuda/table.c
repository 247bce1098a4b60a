/* The CUDA kernels as a table. A build without CUDA has the same rows, so that it can make plans, but they refuse to
 * run. */
#include "kernels/cuda/cuda.h"

#include "kernels/cuda/delta/scan.h"
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/plug.h"
#include "sherd_config.h"
#include "src/base/log.h"

#include <stddef.h>

typedef int64_t work_bytes_function(const struct sh_op_call *call);

/* clang-format off */
static work_bytes_function *const work_of[SH_OP_ROOM] = {
    [SH_OP_EMBED_BWD] = sh_cuda_embed_bwd_work_bytes,
    [SH_OP_NORM_BWD] = sh_cuda_norm_bwd_work_bytes,
    [SH_OP_LINEAR] = sh_cuda_linear_work_bytes,
    [SH_OP_LINEAR_BWD_X] = sh_cuda_linear_work_bytes,
    [SH_OP_LINEAR_BWD_W] = sh_cuda_linear_work_bytes,
    [SH_OP_NORM_BWD_BIAS] = sh_cuda_norm_bwd_work_bytes,
    [SH_OP_QK_NORM_BWD] = sh_cuda_qk_norm_bwd_work_bytes,
    [SH_OP_BIAS_BWD] = sh_cuda_bias_bwd_work_bytes,
    [SH_OP_GELU_BWD_BIAS] = sh_cuda_bias_bwd_work_bytes,
    [SH_OP_ATTENTION] = sh_cuda_attention_work_bytes,
    [SH_OP_ATTENTION_BWD] = sh_cuda_attention_bwd_work_bytes,
    [SH_OP_ATTENTION_ROWS_BWD] = sh_cuda_attention_bwd_work_bytes,
    [SH_OP_HEAD_LOSS] = sh_cuda_head_work_bytes,
    [SH_OP_HEAD_LOSS_GRAD] = sh_cuda_head_work_bytes,
    [SH_OP_HEAD_SCORE] = sh_cuda_head_work_bytes,
    [SH_OP_LOGITS] = sh_cuda_head_work_bytes,
    [SH_OP_LOSS_REST] = sh_cuda_loss_rest_work_bytes,
    [SH_OP_SINK_BWD] = sh_cuda_sink_bwd_work_bytes,
    [SH_OP_SHORT_CONV_BWD] = sh_cuda_short_conv_bwd_work_bytes,
    [SH_OP_GATED_DELTA_BWD] = sh_cuda_gated_delta_bwd_work_bytes,
    [SH_OP_GATED_NORM_BWD] = sh_cuda_gated_norm_bwd_work_bytes,
    [SH_OP_GATE_NORM_BWD] = sh_cuda_gated_norm_bwd_work_bytes,
    [SH_OP_SCAN_BWD] = sh_cuda_scan_bwd_work_bytes,
    [SH_OP_LORA] = sh_cuda_lora_work_bytes,
    [SH_OP_LORA_BWD] = sh_cuda_lora_work_bytes,
    [SH_OP_ROUTE] = sh_cuda_route_work_bytes,
    [SH_OP_ROUTE_BWD] = sh_cuda_route_work_bytes,
    [SH_OP_EXPERT_LINEAR] = sh_cuda_expert_work_bytes,
    [SH_OP_EXPERT_LINEAR_BWD_X] = sh_cuda_expert_work_bytes,
    [SH_OP_EXPERT_LINEAR_BWD_W] = sh_cuda_expert_work_bytes,
    [SH_OP_ROUTE_LOSS] = sh_cuda_route_loss_work_bytes,
    [SH_OP_PAIR_LOSS] = sh_cuda_pair_loss_work_bytes,
    [SH_OP_ORTHO] = sh_cuda_ortho_work_bytes,
    [SH_OP_ORTHO_ROWS] = sh_cuda_ortho_rows_work_bytes,
    [SH_OP_ROUTE_PLAN] = sh_cuda_route_plan_work_bytes,
};
/* clang-format on */

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return work_of[call->kind] ? work_of[call->kind](call) : sh_plug_work_bytes(call);
}

#ifdef HAVE_CUDA
#define RUN(function) function
/* One line for all of a model: its widths are alike. */
static sh_rc say_if_slow(const struct sh_op_call *call)
{
    static bool said;

    if (call->in[0].dtype == SH_BF16 && !said && !sh_cuda_expert_fits(call)) {
        said = true;
        sh_log_info(
            "%s: widths or addresses that are no multiples of 16 bytes are not for tensor cores; other kernels of "
            "Sherd compute it, much slower",
            sh_op_info(call->kind)->name);
    }
    return SH_OK;
}

/* Kinds with products or plans are prepared before the first step; the other kinds need nothing that could be
 * missing. */
static sh_rc prepare_kernel(const struct sh_op_call *call)
{
    switch (call->kind) {
    case SH_OP_ATTENTION:
    case SH_OP_ATTENTION_BWD:
    case SH_OP_ATTENTION_ROWS:
    case SH_OP_ATTENTION_ROWS_BWD: return sh_cuda_attention_prepare(call);
    case SH_OP_LINEAR:
    case SH_OP_LINEAR_BWD_X:
    case SH_OP_LINEAR_BWD_W:
    case SH_OP_HEAD_LOSS:
    case SH_OP_HEAD_LOSS_GRAD:
    case SH_OP_HEAD_SCORE:
    case SH_OP_LOGITS:
    case SH_OP_LORA:
    case SH_OP_LORA_BWD:
    case SH_OP_ROUTE:
    case SH_OP_ROUTE_BWD:
    case SH_OP_ORTHO:
        SH_TRY(sh_cuda_product_prepare(call));
        return sh_cublaslt_ask(call, sh_kernels_cuda.run[call->kind]);
    case SH_OP_EXPERT_LINEAR:
    case SH_OP_EXPERT_LINEAR_BWD_X:
    case SH_OP_EXPERT_LINEAR_BWD_W:
        SH_TRY(say_if_slow(call));
        if (!call->attr->rows.choose)
            return SH_OK;
        SH_TRY(sh_cuda_product_prepare(call));
        return sh_cuda_expert_ask(call);
    default: return SH_OK;
    }
}
#else
#define RUN(function) absent
#define prepare_kernel absent
/* This build can make plans for a GPU; a run is refused with a line that says why. */
static sh_rc absent(const struct sh_op_call *call)
{
    return sh_fail(SH_E_BUG, "%s on a GPU: this sherd was built without CUDA", sh_op_info(call->kind)->name);
}
#endif

#define ROW(KIND, name) [SH_OP_##KIND] = RUN(sh_cuda_##name),

const struct sh_kernel_table sh_kernels_cuda = {
    .name = "cuda",
    .run = {SH_OP_LIST(ROW, ROW, SH_OP_SKIP)[SH_OP_KINDS... SH_OP_ROOM - 1] = RUN(sh_plug_cuda)},
    .prepare = prepare_kernel,
#ifdef HAVE_CUDA
    .fill_normal = sh_cuda_fill_normal,
    .mixsum = sh_cuda_mixsum,
    .widen = sh_cuda_widen,
    .count_bad = sh_cuda_count_bad,
    .sum_words = sh_cuda_sum_words,
    .take_slots = sh_cuda_take_slots,
    .choices = &sh_cuda_choices,
#endif
    .work_bytes = work_bytes,
};
