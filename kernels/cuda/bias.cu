/* db = sum of dy over the rows. Bytes: dy once, and the partial sums, 1/32 of it or less. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/work.h"

extern "C" sh_rc sh_cuda_bias_bwd(const struct sh_op_call *call)
{
    int64_t O = sh_elems(&call->out[0]), rows = sh_elems(&call->in[0]) / O, n_parts = sh_cuda_bias_parts(rows);
    float *parts = static_cast<float *>(call->work);

    SH_REQUIRE(call->work_bytes >= sh_cuda_bias_bwd_work_bytes(call));
    SH_TRY(sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        return sh_fold<T, SH_WIDTH<T>>(parts, false, sh_data<T>(&call->in[0]), rows, O, n_parts, call->queue);
    }));
    return sh_fold_parts(sh_data<float>(&call->out[0]), sh_op_adds(call, 0), parts, n_parts, O, call->queue);
}
