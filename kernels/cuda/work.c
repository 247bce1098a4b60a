#include "kernels/cuda/work.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/delta/scan.h"
#include "kernels/cuda/gemm/operand.h"
#include "kernels/qk_norm.h"

static int64_t elems(const struct sh_operand *t)
{
    return sh_cuda_rows(t) * sh_cuda_last_dim(t);
}

/* Integers for sorting the tokens, or the positions of documents, so that the rows of each are added in order. The
 * two sorts run one after the other, so the larger one determines the size. */
int64_t sh_cuda_embed_bwd_work_bytes(const struct sh_op_call *call)
{
    int64_t words = call->out[0].ndim ? call->out[0].dim[0] : 0;
    int64_t positions = call->out[1].ndim && call->in[2].ndim ? call->out[1].dim[0] : 0,
            most = words > positions ? words : positions;

    return most ? sh_cuda_embed_bwd_ints(elems(&call->in[1]), most) * (int64_t)sizeof(int32_t) : 0;
}

/* Partial sums of dw, and of db and the bias if they are wanted. */
int64_t sh_cuda_norm_bwd_work_bytes(const struct sh_op_call *call)
{
    int64_t C = elems(&call->in[2]), N = elems(&call->in[1]) / C;
    int64_t sums = (call->out[1].ndim > 0) + (call->out[2].ndim > 0) + (call->out[3].ndim > 0);
    return sums * sh_cuda_row_parts(N) * C * (int64_t)sizeof(float);
}

/* Partial sums of wq, and then in the same place those of wk. */
int64_t sh_cuda_qk_norm_bwd_work_bytes(const struct sh_op_call *call)
{
    struct sh_qk_norm s = sh_qk_norm_of(call, &call->in[2]);
    int64_t q = sh_cuda_row_parts(s.rows * s.q) * s.wq, k = sh_cuda_row_parts(s.rows * s.k) * s.wk;
    return (q > k ? q : k) * (int64_t)sizeof(float);
}

int64_t sh_cuda_bias_bwd_work_bytes(const struct sh_op_call *call)
{
    int64_t O = elems(&call->out[call->kind == SH_OP_GELU_BWD_BIAS ? 1 : 0]);
    return sh_cuda_row_parts(elems(&call->in[0]) / O) * O * (int64_t)sizeof(float);
}

/* A sum of each head over a part of the rows. */
int64_t sh_cuda_sink_bwd_work_bytes(const struct sh_op_call *call)
{
    int64_t H = call->out[0].dim[0];
    return sh_cuda_row_parts(elems(&call->in[2]) / H) * H * (int64_t)sizeof(float);
}

/* Partial sums of the weights, and of the bias. */
int64_t sh_cuda_short_conv_bwd_work_bytes(const struct sh_op_call *call)
{
    int64_t C = call->in[1].dim[2], rows = call->in[1].dim[0] * call->in[1].dim[1];
    return sh_cuda_row_parts(rows) * C * (call->in[2].dim[2] + 1) * (int64_t)sizeof(float);
}

/* Two sums of each head in f64, then what heads need. */
int64_t sh_cuda_gated_delta_bwd_work_bytes(const struct sh_op_call *call)
{
    struct sh_delta s = sh_delta_of(call, &call->in[1]);
    return s.B * s.H * (2 * (int64_t)sizeof(double) + sh_cuda_delta_floats(&s) * (int64_t)sizeof(float));
}

/* Three sums of each head in f64, then what heads need. */
int64_t sh_cuda_scan_bwd_work_bytes(const struct sh_op_call *call)
{
    struct sh_delta s = sh_space_of(call, &call->in[1]);
    return s.B * s.H * (3 * (int64_t)sizeof(double) + sh_cuda_scan_floats(&s) * (int64_t)sizeof(float));
}

/* A sum of each weight over a part of the rows; GATE_NORM_BWD has a weight for each column. */
int64_t sh_cuda_gated_norm_bwd_work_bytes(const struct sh_op_call *call)
{
    int64_t C = elems(&call->in[3]);
    return sh_cuda_row_parts(elems(&call->in[1]) / C) * C * (int64_t)sizeof(float);
}

/* The loss of each row, and its square. */
int64_t sh_cuda_loss_rest_work_bytes(const struct sh_op_call *call)
{
    return (call->attr->part.squares == 0 ? 1 : 2) * call->in[0].dim[0] * (int64_t)sizeof(double);
}

/* A count of each expert's choices in each part, and of all. */
int64_t sh_cuda_route_plan_work_bytes(const struct sh_op_call *call)
{
    int64_t E = elems(&call->out[2]) - 1;
    return E * (sh_cuda_plan_parts(elems(&call->in[0])) + 1) * (int64_t)sizeof(int32_t);
}

/* Numbers of each row, and what the documents that begin at a place weigh. */
int64_t sh_cuda_pair_loss_work_bytes(const struct sh_op_call *call)
{
    return call->in[1].dim[0] * call->out[2].dim[0] * (int64_t)sizeof(double) +
           elems(&call->in[1]) * (int64_t)sizeof(float);
}

/* A sum of each loss over a part of the rows. */
int64_t sh_cuda_route_loss_work_bytes(const struct sh_op_call *call)
{
    return 2 * sh_cuda_row_parts(call->in[0].dim[0]) * (int64_t)sizeof(double);
}
