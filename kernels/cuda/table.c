/* The CUDA kernels as a table. In a build without CUDA its rows are there all the same, so that plans can be made with
 * it, and refuse to run. */
#include "kernels/cuda/cuda.h"

#include "sherd_config.h"

#include <stddef.h>

typedef int64_t work_bytes_function(const struct sh_op_call *call);

static work_bytes_function *const work_of[SH_OP_KINDS] = {
    [SH_OP_EMBED_BWD] = sh_cuda_embed_bwd_work_bytes,
    [SH_OP_NORM_BWD] = sh_cuda_norm_bwd_work_bytes,
    [SH_OP_LINEAR] = sh_cuda_linear_work_bytes,
    [SH_OP_LINEAR_BWD_X] = sh_cuda_linear_work_bytes,
    [SH_OP_LINEAR_BWD_W] = sh_cuda_linear_work_bytes,
    [SH_OP_BIAS_BWD] = sh_cuda_bias_bwd_work_bytes,
    [SH_OP_ATTENTION] = sh_cuda_attention_work_bytes,
    [SH_OP_ATTENTION_BWD] = sh_cuda_attention_bwd_work_bytes,
    [SH_OP_HEAD_LOSS] = sh_cuda_head_work_bytes,
    [SH_OP_HEAD_LOSS_GRAD] = sh_cuda_head_work_bytes,
    [SH_OP_LOGITS] = sh_cuda_head_work_bytes,
    [SH_OP_SUMSQ] = sh_cuda_sumsq_work_bytes,
};

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return work_of[call->kind] ? work_of[call->kind](call) : 0;
}

#ifdef HAVE_CUDA
#define RUN(function) function
static sh_rc prepare_call(const struct sh_op_call *call)
{
    switch (call->kind) {
    case SH_OP_ATTENTION:
    case SH_OP_ATTENTION_BWD: return sh_cuda_attention_prepare(call);
    case SH_OP_LINEAR:
    case SH_OP_LINEAR_BWD_X:
    case SH_OP_LINEAR_BWD_W:
    case SH_OP_HEAD_LOSS:
    case SH_OP_HEAD_LOSS_GRAD:
    case SH_OP_LOGITS: return sh_cuda_product_prepare(call);
    default: return SH_OK;
    }
}
#else
#define RUN(function) absent
static sh_rc absent(const struct sh_op_call *call)
{
    return sh_fail(SH_E_BUG, "%s on a GPU: this sherd was built without CUDA", sh_op_info(call->kind)->name);
}
#endif

const struct sh_kernel_table sh_kernels_cuda = {
    .name = "cuda",
    .run = {
        [SH_OP_EMBED] = RUN(sh_cuda_embed),
        [SH_OP_EMBED_BWD] = RUN(sh_cuda_embed_bwd),
        [SH_OP_NORM] = RUN(sh_cuda_norm),
        [SH_OP_NORM_BWD] = RUN(sh_cuda_norm_bwd),
        [SH_OP_LINEAR] = RUN(sh_cuda_linear),
        [SH_OP_LINEAR_BWD_X] = RUN(sh_cuda_linear_bwd_x),
        [SH_OP_LINEAR_BWD_W] = RUN(sh_cuda_linear_bwd_w),
        [SH_OP_BIAS_BWD] = RUN(sh_cuda_bias_bwd),
        [SH_OP_ROPE_TABLE] = RUN(sh_cuda_rope_table),
        [SH_OP_ROPE] = RUN(sh_cuda_rope),
        [SH_OP_ATTENTION] = RUN(sh_cuda_attention),
        [SH_OP_ATTENTION_BWD] = RUN(sh_cuda_attention_bwd),
        [SH_OP_GELU] = RUN(sh_cuda_gelu),
        [SH_OP_GELU_BWD] = RUN(sh_cuda_gelu_bwd),
        [SH_OP_SWIGLU] = RUN(sh_cuda_swiglu),
        [SH_OP_SWIGLU_BWD] = RUN(sh_cuda_swiglu_bwd),
        [SH_OP_ADD] = RUN(sh_cuda_add),
        [SH_OP_HEAD_LOSS] = RUN(sh_cuda_head_loss),
        [SH_OP_HEAD_LOSS_GRAD] = RUN(sh_cuda_head_loss_grad),
        [SH_OP_LOGITS] = RUN(sh_cuda_logits),
        [SH_OP_CAST] = RUN(sh_cuda_cast),
        [SH_OP_COPY] = RUN(sh_cuda_copy),
        [SH_OP_ACCUMULATE] = RUN(sh_cuda_accumulate),
        [SH_OP_SUMSQ] = RUN(sh_cuda_sumsq),
        [SH_OP_EXACT_ROUND] = RUN(sh_cuda_exact_round),
        [SH_OP_ADAMW] = RUN(sh_cuda_adamw),
        [SH_OP_SGD] = RUN(sh_cuda_sgd),
        [SH_OP_LION] = RUN(sh_cuda_lion),
    },
    .prepare = RUN(prepare_call),
#ifdef HAVE_CUDA
    .fill_normal = sh_cuda_fill_normal,
    .mixsum = sh_cuda_mixsum,
    .count_bad = sh_cuda_count_bad,
    .sum_words = sh_cuda_sum_words,
    .take_slots = sh_cuda_take_slots,
#endif
    .work_bytes = work_bytes,
};
