/* How products, attention and head cut their scratch, in plain C and in every build, so that a plan for GPUs can be
 * made anywhere. The functions that return sizes are in cuda.h. Local. */
#ifndef SH_KERNELS_CUDA_WORK_PRODUCT_H
#define SH_KERNELS_CUDA_WORK_PRODUCT_H

#include "kernels/op.h"

/* HEAD_LOSS, HEAD_LOSS_GRAD: byte offset of each piece from a start aligned to 256 bytes. */
struct sh_cuda_head_work {
    int64_t chunk, ld; /* rows at a time; elements of one row of logits */
    int64_t row_loss, logits, product;
    int64_t bytes; /* of all pieces, including room to align the start to 256 */
};
struct sh_cuda_head_work sh_cuda_head_work(const struct sh_op_call *call);

/* LORA, LORA_BWD: byte offsets, from a start aligned to 256 bytes, of the values not yet scaled (at offset 0), of du,
 * and of cuBLASLt's scratch. */
struct sh_cuda_lora_work {
    int64_t scaled, product, bytes;
};
struct sh_cuda_lora_work sh_cuda_lora_work(const struct sh_op_call *call);

/* ROUTE_BWD: byte offsets, from a start aligned to 256 bytes, of counts [E], of w as often as there are parts, and of
 * cuBLASLt's scratch; at offset 0 the gradients of logits, each in as many parts. */
struct sh_cuda_route_work {
    int64_t parts, count, w, product, bytes;
};
struct sh_cuda_route_work sh_cuda_route_work(const struct sh_op_call *call);

/* EXPERT_LINEAR* by cuBLASLt, which is called once for all groups, but for gradients of weights once for each group of
 * an expert: they are sums into the same place. A call has up to `pitch` groups, so that its arrays start at multiples of
 * 16 bytes. Byte offsets, from a start aligned to 256 bytes, of cuBLASLt's scratch and two numbers in f32; at offset 0
 * addresses of three matrices for each group of each call, then rows and columns in i32. */
struct sh_cuda_expert_work {
    int64_t calls, groups, pitch; /* groups: of a call */
    int64_t rows, numbers, product, bytes;
};
struct sh_cuda_expert_work sh_cuda_expert_work(const struct sh_op_call *call);

/* ORTHO: the type of what is multiplied, and byte offsets, from a start aligned to 256 bytes, of x once more, of the product of
 * x with itself, of that one's square in f32, of sums of lines in f64, and of cuBLASLt's scratch; at offset 0 x. Rows of
 * all matrices start at multiples of sh_cuda_ortho_ld() elements, 16 bytes of bf16. */
struct sh_cuda_ortho_work {
    enum sh_dtype type;
    int64_t next, gram, square, sums, product, bytes;
};
struct sh_cuda_ortho_work sh_cuda_ortho_work(const struct sh_op_call *call);

static inline int64_t sh_cuda_ortho_ld(int64_t length)
{
    return (length + 7) / 8 * 8;
}

/* ATTENTION, ATTENTION_BWD by cuDNN. Its deterministic backward pass keeps a [T,T] matrix for each query head that it
 * is working on; the other one keeps dq in f32. So a call is cut into pieces of `batch` sequences times `kv_heads`
 * key-value heads, each dividing the whole. The sizes of plans were read from cuDNN 9.8 to 9.19 for sm_80, 90 and
 * 100; a plan that needs more is not used. */
struct sh_cuda_cudnn_work {
    int64_t batch, kv_heads; /* 0: cuDNN does not support this call */
    int64_t sums, dq_sums;   /* bytes: the row sums between its two steps, and dq in f32 */
    int64_t plan;            /* bytes: the plan's own workspace */
    int64_t bytes;
};
struct sh_cuda_cudnn_work sh_cuda_cudnn_work(const struct sh_op_call *call);

#endif
