/* The CUDA kernels as a table. In a build without CUDA its rows are there all the same, so that plans can be made with it,
 * and refuse to run. A row comes in when its kernel does: RUN for the function, work_of for its scratch. */
#include "kernels/cuda/cuda.h"

#include "sherd_config.h"

#include <stddef.h>

typedef int64_t work_bytes_function(const struct sh_op_call *call);

static work_bytes_function *const work_of[SH_OP_KINDS] = {
    [SH_OP_EMBED] = NULL,
};

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return work_of[call->kind] ? work_of[call->kind](call) : 0;
}

#ifdef HAVE_CUDA
#define RUN(function) function
#else
#define RUN(function) absent
__attribute__((unused)) static sh_rc absent(const struct sh_op_call *call)
{
    return sh_fail(SH_E_BUG, "%s on a GPU: this sherd was built without CUDA", sh_op_info(call->kind)->name);
}
#endif

const struct sh_kernel_table sh_kernels_cuda = {
    .name = "cuda",
    .run = {
        /* [SH_OP_X] = RUN(sh_cuda_x), in the order of enum sh_op_kind */
        [SH_OP_EMBED] = NULL,
    },
    .work_bytes = work_bytes,
};
