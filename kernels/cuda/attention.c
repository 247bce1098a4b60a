#include "kernels/cuda/attention.h"

#include "kernels/cuda/cuda.h"
#include "sherd_config.h"

/* The emulated build has no double of cuDNN. */
#if defined(HAVE_CUDNN) && !defined(SH_CUDA_EMULATED)
#define TRY_CUDNN(call)                  \
    if (sh_attention_cudnn_takes(call))  \
        return sh_attention_cudnn(call)
#else
#define TRY_CUDNN(call) (void)(call)
#endif

sh_rc sh_cuda_attention(const struct sh_op_call *call)
{
    TRY_CUDNN(call);
    struct sh_attention a = sh_attention_of(call);
    return sh_attention_tensor_takes(&a) ? sh_attention_tensor(&a, call->queue) : sh_attention_any(&a, call->queue);
}

sh_rc sh_cuda_attention_bwd(const struct sh_op_call *call)
{
    TRY_CUDNN(call);
    struct sh_attention a = sh_attention_of(call);
    SH_REQUIRE(call->work_bytes >= sh_cuda_attention_bwd_work_bytes(call));
    SH_TRY(sh_attention_delta(&a, call->queue));
    return sh_attention_tensor_takes(&a) ? sh_attention_tensor_bwd(&a, call->queue)
                                         : sh_attention_any_bwd(&a, call->queue);
}
