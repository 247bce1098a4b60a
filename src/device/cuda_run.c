#include "src/device/cuda.h"

#include "kernels/cuda/cuda.h"
#include "kernels/rows.h"

#include <nvtx3/nvToolsExt.h>

sh_rc sh_cudart_run(const struct sh_op_call *call, const char *label)
{
    sh_rc rc;

    nvtxRangePushA(label);
    rc = sh_rows_run(sh_kernels_cuda.run[call->kind], call);
    nvtxRangePop();
    return rc;
}
