/* Operations on whole vectors. */
#include "src/base/exact.h"
#include "kernels/ref/ref.h"

/* In double, rounded once to the type of the output, like all kernels of this folder. */
sh_rc sh_ref_add(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->in[0], i) + sh_ref_get(&call->in[1], i));
    return SH_OK;
}

sh_rc sh_ref_row_add(const struct sh_op_call *call)
{
    const struct sh_operand *first = &call->in[2], *y = &call->out[0];
    int64_t rows = (int64_t)sh_ref_get(first, sh_ref_elems(first) - 1);

    for (int64_t i = 0; i < rows * y->dim[1]; i++)
        sh_ref_set(y, i, sh_ref_get(&call->in[0], i) + sh_ref_get(&call->in[1], i));
    return SH_OK;
}

sh_rc sh_ref_scale(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, (double)call->attr->scale.by * sh_ref_get(&call->in[0], i));
    return SH_OK;
}

/* Part p (q, k, v) of head h: order (h, p) on one side, (p, h) on the other. */
sh_rc sh_ref_regroup(const struct sh_op_call *call)
{
    int64_t H = call->attr->regroup.heads, D = call->attr->regroup.head_dim, row = 3 * H * D;

    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++) {
        int64_t n = i / row, h = i % row / (3 * D), p = i / D % 3, d = i % D, by_part = n * row + (p * H + h) * D + d;
        sh_ref_set(&call->out[0], call->attr->regroup.inverse ? i : by_part,
                   sh_ref_get(&call->in[0], call->attr->regroup.inverse ? by_part : i));
    }
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

/* Exact sums have the same bits in any order, so this one is not merely close to what other kernels give, but equal. */
sh_rc sh_ref_sumsq(const struct sh_op_call *call)
{
    struct sh_exact sum = {0};
    if (sh_op_adds(call, 0))
        sh_exact_get(&sum, call->out[0].data);
    sh_exact_add_squares(&sum, call->in[0].data, sh_ref_elems(&call->in[0]));
    sh_exact_put(&sum, call->out[0].data);
    return SH_OK;
}

/* The 22 parts of an exact sum become one double, rounded once. */
sh_rc sh_ref_exact_round(const struct sh_op_call *call)
{
    struct sh_exact sum;
    sh_exact_get(&sum, call->in[0].data);
    *(double *)call->out[0].data = sh_exact_round(&sum);
    return SH_OK;
}
