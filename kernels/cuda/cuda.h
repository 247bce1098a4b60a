/* The CUDA kernels: one function per kind of operation, gathered in sh_kernels_cuda (table.c). kernels/op.c defines
 * what each one computes and the shapes of its operands; a kernel here may differ from kernels/ref by rounding only.
 *
 * A function puts its work into call->queue, a stream of the current GPU, and returns. Operands and call->work are
 * device memory, but for the counts of ROUTE_WAVE, which are in pinned memory of the host; scalars are read at once and passed as arguments. A kernel allocates nothing, waits for nothing and
 * reads nothing back. Sums have a fixed order and use no atomics on floating-point numbers: same inputs, same bits.
 * All local, called by one thread. Errors: SH_E_BUG for types that the check pass refuses and for launches that the
 * driver refuses; SH_E_USAGE if a library is missing. */
#ifndef SH_KERNELS_CUDA_CUDA_H
#define SH_KERNELS_CUDA_CUDA_H

#include "kernels/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Products are done by cuBLASLt (linear.c, head.c). Attention is done by cuDNN if possible, otherwise by attention.cu
 * or attention_any.cu (attention.c); SH_E_USAGE for a head that is too large for all of them. */
#define sh_cuda_add_norm sh_cuda_norm                     /* it looks for the second summand */
#define sh_cuda_norm_bwd_bias sh_cuda_norm_bwd            /* it looks for the bias */
#define sh_cuda_expert_linear_bwd_x sh_cuda_expert_linear /* it looks at the kind */
#define sh_cuda_expert_linear_bwd_w sh_cuda_expert_linear
#define SH_CUDA_KERNEL(KIND, name) sh_rc sh_cuda_##name(const struct sh_op_call *call);
SH_OP_LIST(SH_CUDA_KERNEL, SH_CUDA_KERNEL, SH_OP_SKIP)

/* cublaslt.c, for all kinds with products: load cuBLASLt and start it on this GPU. SH_E_USAGE if it is missing. */
sh_rc sh_cuda_product_prepare(const struct sh_op_call *call);

/* product.cu, for cublaslt.c: a product without a bias; and c = addend + bias, to be the addend of a product. */
struct sh_matmul;
sh_rc sh_cuda_product(const struct sh_matmul *p, void *queue);
sh_rc sh_cuda_product_bias(const struct sh_matmul *p, void *queue);

/* moe/expert.cu: Sherd's own kernel of EXPERT_LINEAR*; and whether tensor cores can compute the call: bf16, widths and
 * addresses that are multiples of 16 bytes. */
sh_rc sh_cuda_expert_own(const struct sh_op_call *call);
bool sh_cuda_expert_fits(const struct sh_op_call *call);

/* moe/grouped.c, after sh_cuda_product_prepare(): ask cuBLASLt about a call with attr->rows.choose. */
sh_rc sh_cuda_expert_ask(const struct sh_op_call *call);

/* choices.c: the products of cublaslt.c, then those of grouped.c. */
extern const struct sh_choices sh_cuda_choices;

/* Make cuDNN's plan; a call that was not prepared uses the other kernels. */
sh_rc sh_cuda_attention_prepare(const struct sh_op_call *call);

/* momentum.cu */
sh_rc sh_cuda_sgd(const struct sh_op_call *call);
sh_rc sh_cuda_lion(const struct sh_op_call *call);

/* vector.cu: y [n] of f32 or bf16 = by * a */
sh_rc sh_cuda_scale_into(const float *a, float by, int64_t n, enum sh_dtype type, void *y, void *queue);

/* init.cu: fill_normal of the table */
sh_rc sh_cuda_fill_normal(uint64_t key, const struct sh_rng_runs *runs, float std, struct sh_floats out, void *queue);

/* mixsum.cu: mixsum of the table */
sh_rc sh_cuda_mixsum(struct sh_floats data, int64_t first, int64_t n, uint64_t place, uint64_t *sums, void *queue);

/* coded.cu: widen of the table */
sh_rc sh_cuda_widen(struct sh_floats coded, int64_t n, float *to, void *queue);

/* damage.cu: one kernel, as the runtime knows it: a GPU for which the build has this one can run all */
const void *sh_cuda_any_kernel(void);

/* damage.cu: count_bad, sum_words and take_slots of the table */
sh_rc sh_cuda_count_bad(struct sh_floats x, int64_t n, int slot, void *queue);
sh_rc sh_cuda_sum_words(const void *x, int64_t bytes, int slot, void *queue);
sh_rc sh_cuda_take_slots(uint64_t *out, int n, void *queue);

/* Scratch that a call needs (shapes and attr set, data not), for the kinds that need any. In plain C and in every
 * build, so that a plan for GPUs can be made anywhere: work.c, and work_product.c for products, attention and head.
 * head: HEAD_LOSS, HEAD_LOSS_GRAD and LOGITS, distinguished by call->kind; linear: the three kinds of LINEAR;
 * norm_bwd and bias_bwd: also the kinds they are fused into. */
int64_t sh_cuda_embed_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_norm_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_qk_norm_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_bias_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_sink_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_short_conv_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_gated_delta_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_gated_norm_bwd_work_bytes(const struct sh_op_call *call); /* also GATE_NORM_BWD */
int64_t sh_cuda_loss_rest_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_linear_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_attention_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_attention_bwd_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_lora_work_bytes(const struct sh_op_call *call); /* both directions */
int64_t sh_cuda_head_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_route_work_bytes(const struct sh_op_call *call);  /* both directions */
int64_t sh_cuda_expert_work_bytes(const struct sh_op_call *call); /* the three kinds of EXPERT_LINEAR */
int64_t sh_cuda_route_plan_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_route_loss_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_pair_loss_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_ortho_work_bytes(const struct sh_op_call *call);
int64_t sh_cuda_ortho_rows_work_bytes(const struct sh_op_call *call);

#ifdef __cplusplus
}
#endif

#endif
