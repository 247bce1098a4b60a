/* db = sum of dy over the rows. Bytes: dy once, and the partial sums, at most 512 rows of f32, written and read. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/work.h"

/* First sum parts of the rows, cut by shape alone, then the parts in order. */
extern "C" sh_rc sh_cuda_bias_bwd(const struct sh_op_call *call)
{
    int64_t O = sh_elems(&call->out[0]), rows = sh_elems(&call->in[0]) / O, n_parts = sh_cuda_row_parts(rows);
    float *parts = static_cast<float *>(call->work);

    SH_REQUIRE(call->work_bytes >= sh_cuda_bias_bwd_work_bytes(call));
    SH_TRY(sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        constexpr int N = SH_WIDTH<T>;
        sh_plain_rows<T> f = {sh_data<T>(&call->in[0])};
        return sh_row_sums<N>(f, parts, rows, O, n_parts, sh_aligned<N>(f.x, O), call->queue);
    }));
    return sh_fold_parts(sh_data<float>(&call->out[0]), sh_op_adds(call, 0), parts, n_parts, O, call->queue);
}
