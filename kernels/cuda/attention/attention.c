#include "kernels/cuda/attention/attention.h"

#include "kernels/cuda/cuda.h"
#include "src/base/log.h"

static bool is_packed(const struct sh_op_call *call)
{
    return call->kind == SH_OP_ATTENTION || call->kind == SH_OP_ATTENTION_BWD;
}

/* Runs of queries go to Sherd's own kernels. */
static bool cudnn_takes(const struct sh_op_call *call)
{
    return is_packed(call) && sh_attention_cudnn_takes(call);
}

static bool tensor_takes(const struct sh_op_call *call, const struct sh_attention *a)
{
    return call->attr->attn.cap == 0 && sh_attention_tensor_takes(a);
}

/* Said once for a head size, since it shows in nothing but time. */
static void say_if_slow(const struct sh_op_call *call, const struct sh_attention *a)
{
    static bool said[SH_ATTENTION_MAX_DIM + 1];

    if (a->dtype == SH_BF16 && !said[a->dim])
        sh_log_info(
            "attention with heads of %d elements%s: no kernel for tensor cores takes it; another kernel of Sherd "
            "computes it, much slower",
            a->dim, call->attr->attn.cap != 0 ? " and a cap of scores" : "");
    said[a->dim] = true;
}

/* What no kernel can do on this GPU is refused before the first step; the text names the limit. */
sh_rc sh_cuda_attention_prepare(const struct sh_op_call *call)
{
    if (call->attr->attn.head_dim > SH_ATTENTION_MAX_DIM)
        return sh_fail(SH_E_USAGE, "attention on a GPU: head size %d is too large, the limit is %d",
                       call->attr->attn.head_dim, SH_ATTENTION_MAX_DIM);
    if (is_packed(call))
        SH_TRY(sh_attention_cudnn_prepare(call));
    if (cudnn_takes(call))
        return SH_OK;
    struct sh_attention a = sh_attention_of(call);
    bool backward = call->kind == SH_OP_ATTENTION_BWD || call->kind == SH_OP_ATTENTION_ROWS_BWD;
    if (tensor_takes(call, &a))
        return sh_attention_tensor_check(&a, backward);
    say_if_slow(call, &a);
    return sh_attention_any_check(&a, backward);
}

/* cuDNN first, then tensor cores, then the kernel that takes any shape. The choice depends on shape, type and cap only, so
 * each step is computed the same way. */
sh_rc sh_cuda_attention(const struct sh_op_call *call)
{
    if (cudnn_takes(call))
        return sh_attention_cudnn(call);
    struct sh_attention a = sh_attention_of(call);
    return tensor_takes(call, &a) ? sh_attention_tensor(&a, call->queue)
                                  : sh_attention_any(&a, call->attr->attn.cap, call->queue);
}

/* A separate kernel computes delta = sum over D of do * o; cuDNN does it inside its graph. */
sh_rc sh_cuda_attention_bwd(const struct sh_op_call *call)
{
    if (cudnn_takes(call))
        return sh_attention_cudnn(call);
    struct sh_attention a = sh_attention_of(call);
    SH_REQUIRE(call->work_bytes >= sh_cuda_attention_bwd_work_bytes(call));
    SH_TRY(sh_attention_delta(&a, call->queue));
    return tensor_takes(call, &a) ? sh_attention_tensor_bwd(&a, call->queue)
                                  : sh_attention_any_bwd(&a, call->attr->attn.cap, call->queue);
}

sh_rc sh_cuda_attention_rows(const struct sh_op_call *call)
{
    return sh_cuda_attention(call);
}

sh_rc sh_cuda_attention_rows_bwd(const struct sh_op_call *call)
{
    return sh_cuda_attention_bwd(call);
}
