/* What has no kernel for GPUs yet: gathers in codes, norms of heads on several ranks.
 * src/plan/request.c refuses a run that would need one. */
#include "kernels/cuda/cuda.h"

#define ON_CPUS(kernel)                                                                              \
    sh_rc sh_cuda_##kernel(const struct sh_op_call *call)                                            \
    {                                                                                                \
        return sh_fail(SH_E_USAGE, "%s: there is no kernel for GPUs", sh_op_info(call->kind)->name); \
    }
ON_CPUS(encode)
ON_CPUS(decode)
ON_CPUS(qk_means)
