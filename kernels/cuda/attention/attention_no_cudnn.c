/* For builds without cuDNN: it takes no call. */
#include "kernels/cuda/attention/attention.h"

sh_rc sh_attention_cudnn_prepare(const struct sh_op_call *call)
{
    (void)call;
    return SH_OK;
}

bool sh_attention_cudnn_takes(const struct sh_op_call *call)
{
    (void)call;
    return false;
}

sh_rc sh_attention_cudnn(const struct sh_op_call *call)
{
    (void)call;
    return sh_fail(SH_E_BUG, "attention without cuDNN");
}
