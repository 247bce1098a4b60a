/* The CUDA kernels: one function a kind of operation, gathered in sh_kernels_cuda (table.c). What each one computes, and
 * the shapes of its operands, stands in kernels/op.h; a kernel here may differ from kernels/ref by rounding only.
 *
 * A function puts its work into call->queue, a stream of the current GPU, and returns. Operands and call->work are device
 * memory; scalars are read now and travel as arguments. It allocates nothing, waits for nothing and reads nothing back.
 * Sums have a fixed order and no atomics on floating-point numbers: same inputs, same bits.
 * All local, called by one thread. Errors: SH_E_BUG for types that the check pass should have refused and for launches
 * that the driver refuses; SH_E_USAGE where a library is missing. */
#ifndef SH_KERNELS_CUDA_CUDA_H
#define SH_KERNELS_CUDA_CUDA_H

#include "kernels/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* embed.cu */
sh_rc sh_cuda_embed(const struct sh_op_call *call);
sh_rc sh_cuda_embed_bwd(const struct sh_op_call *call);

/* norm.cu: LayerNorm and RMSNorm */
sh_rc sh_cuda_norm(const struct sh_op_call *call);
sh_rc sh_cuda_norm_bwd(const struct sh_op_call *call);

/* linear.c: by cuBLASLt */
sh_rc sh_cuda_linear(const struct sh_op_call *call);
sh_rc sh_cuda_linear_bwd_x(const struct sh_op_call *call);
sh_rc sh_cuda_linear_bwd_w(const struct sh_op_call *call);

/* cublaslt.c: for all kinds with products; load cuBLASLt, and start it on this GPU. SH_E_USAGE when it is not there. */
sh_rc sh_cuda_product_prepare(const struct sh_op_call *call);

/* bias.cu */
sh_rc sh_cuda_bias_bwd(const struct sh_op_call *call);

/* rope.cu */
sh_rc sh_cuda_rope_table(const struct sh_op_call *call);
sh_rc sh_cuda_rope(const struct sh_op_call *call);

/* attention.c: by cuDNN where it can, else attention.cu and attention_any.cu. prepare makes cuDNN's plan; a call that
 * was not prepared takes the other kernels. Errors: SH_E_USAGE for a head that is too large for all. */
sh_rc sh_cuda_attention_prepare(const struct sh_op_call *call);
sh_rc sh_cuda_attention(const struct sh_op_call *call);
sh_rc sh_cuda_attention_bwd(const struct sh_op_call *call);

/* act.cu */
sh_rc sh_cuda_gelu(const struct sh_op_call *call);
sh_rc sh_cuda_gelu_bwd(const struct sh_op_call *call);
sh_rc sh_cuda_swiglu(const struct sh_op_call *call);
sh_rc sh_cuda_swiglu_bwd(const struct sh_op_call *call);

/* head.c */
sh_rc sh_cuda_head_loss(const struct sh_op_call *call);
sh_rc sh_cuda_head_loss_grad(const struct sh_op_call *call);
sh_rc sh_cuda_logits(const struct sh_op_call *call);

/* vector.cu */
sh_rc sh_cuda_add(const struct sh_op_call *call);
sh_rc sh_cuda_cast(const struct sh_op_call *call);
sh_rc sh_cuda_copy(const struct sh_op_call *call);
sh_rc sh_cuda_accumulate(const struct sh_op_call *call);

/* exact.cu */
sh_rc sh_cuda_sumsq(const struct sh_op_call *call);
sh_rc sh_cuda_exact_round(const struct sh_op_call *call);

/* adamw.cu */
sh_rc sh_cuda_adamw(const struct sh_op_call *call);

/* momentum.cu */
sh_rc sh_cuda_sgd(const struct sh_op_call *call);
sh_rc sh_cuda_lion(const struct sh_op_call *call);

/* init.cu: fill_normal of the table */
sh_rc sh_cuda_fill_normal(uint64_t key, int64_t first, int64_t n, float std, struct sh_floats out, void *queue);

/* mixsum.cu: mixsum of the table */
sh_rc sh_cuda_mixsum(struct sh_floats data, int64_t n, uint64_t place, uint64_t *sums, void *queue);
/* damage.cu: count_bad, sum_words and take_slots of the table */
sh_rc sh_cuda_count_bad(struct sh_floats x, int64_t n, int slot, void *queue);
sh_rc sh_cuda_sum_words(const void *x, int64_t bytes, int slot, void *queue);
sh_rc sh_cuda_take_slots(uint64_t *out, int n, void *queue);

/* Scratch that a call needs (shapes and attr set, data not), for the kinds that need any. In plain C and in every
 * build, so that a plan for GPUs can be made anywhere: work.c, and work_product.c for products, attention and head.
 * head: HEAD_LOSS, HEAD_LOSS_GRAD and LOGITS, told apart by call->kind; linear: the three kinds of LINEAR. */
int64_t sh_cuda_embed_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_norm_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_bias_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_sumsq_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_linear_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_attention_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_attention_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_head_work_bytes(const struct sh_op_call *call);

#ifdef __cplusplus
}
#endif

#endif
