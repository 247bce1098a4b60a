/* Operations on whole vectors. */
#include "kernels/ref/ref.h"

sh_rc sh_ref_add(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->in[0], i) + sh_ref_get(&call->in[1], i));
    return SH_OK;
}

sh_rc sh_ref_copy(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->in[0], i));
    return SH_OK;
}

sh_rc sh_ref_accumulate(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->out[0], i) + sh_ref_get(&call->in[0], i));
    return SH_OK;
}

sh_rc sh_ref_sumsq(const struct sh_op_call *call)
{
    double sum = 0;
    for (int64_t i = 0; i < sh_ref_elems(&call->in[0]); i++)
        sum += sh_ref_get(&call->in[0], i) * sh_ref_get(&call->in[0], i);
    sh_ref_sum(call, 0, 0, sum);
    return SH_OK;
}
