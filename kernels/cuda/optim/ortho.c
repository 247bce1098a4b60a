/* What has no kernel for GPUs yet: norms of heads on several ranks. src/plan/request.c refuses a run that would need one. */
#include "kernels/cuda/cuda.h"

sh_rc sh_cuda_qk_means(const struct sh_op_call *call)
{
    return sh_fail(SH_E_USAGE, "%s: there is no kernel for GPUs", sh_op_info(call->kind)->name);
}
