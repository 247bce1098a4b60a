/* How products, attention and head cut their scratch: plain C, in every build, so that a plan for GPUs can be made
 * anywhere. The functions that say how much are in cuda.h. Local. */
#ifndef SH_KERNELS_CUDA_WORK_PRODUCT_H
#define SH_KERNELS_CUDA_WORK_PRODUCT_H

#include "kernels/op.h"

/* HEAD_LOSS, HEAD_LOSS_GRAD: bytes from a place that begins at 256 bytes to each piece. */
struct sh_cuda_head_work {
    int64_t chunk, ld; /* rows at a time; elements of one row of logits */
    int64_t row_loss, logits, product;
    int64_t bytes; /* of all, with what it takes to begin at 256 */
};
struct sh_cuda_head_work sh_cuda_head_work(const struct sh_op_call *call);

/* LORA, LORA_BWD: bytes from a place that begins at 256 bytes to what is not yet scaled (it begins there), du, and cuBLASLt's
 * scratch. */
struct sh_cuda_lora_work {
    int64_t scaled, product, bytes;
};
struct sh_cuda_lora_work sh_cuda_lora_work(const struct sh_op_call *call);

/* ATTENTION, ATTENTION_BWD by cuDNN. Its deterministic backward pass keeps a [T,T] matrix of each query head that it
 * works on, the other one dq in f32, so a call is cut: `batch` sequences times `kv_heads` key-value heads at a time, each
 * dividing the whole.
 * The sizes of plans were read from cuDNN 9.8 to 9.19 for sm_80, 90 and 100; a plan that wants more is not used. */
struct sh_cuda_cudnn_work {
    int64_t batch, kv_heads; /* 0: cuDNN is not for this call */
    int64_t sums, dq_sums;   /* bytes: of the row sums between its two steps, and of dq in f32 */
    int64_t plan;            /* the same: of the plan's own space */
    int64_t bytes;
};
struct sh_cuda_cudnn_work sh_cuda_cudnn_work(const struct sh_op_call *call);

#endif
