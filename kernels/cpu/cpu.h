/* The CPU kernels: one function a kind of operation, gathered in sh_kernels_cpu (table.c). What each one computes, and
 * the shapes of its operands, stands in kernels/op.h; a kernel here may differ from kernels/ref by rounding only.
 *
 * Threads are OpenMP's: as many as omp_get_max_threads() says in the calling thread. One thread calls at a time. Sums
 * are cut in blocks of a fixed size and combined in a fixed order, so that the number of threads changes no bit.
 * All local. Errors: SH_E_BUG for types that the check pass should have refused; products may pass on SH_E_MEMORY. */
#ifndef SH_KERNELS_CPU_CPU_H
#define SH_KERNELS_CPU_CPU_H

#include "kernels/op.h"

/* embed.c */
sh_rc sh_cpu_embed(const struct sh_op_call *call);
sh_rc sh_cpu_embed_bwd(const struct sh_op_call *call);

/* norm.c: LayerNorm and RMSNorm */
sh_rc sh_cpu_norm(const struct sh_op_call *call);
sh_rc sh_cpu_add_norm(const struct sh_op_call *call);
sh_rc sh_cpu_norm_bwd(const struct sh_op_call *call); /* and NORM_BWD_BIAS */

/* linear.c */
sh_rc sh_cpu_linear(const struct sh_op_call *call);
sh_rc sh_cpu_linear_bwd_x(const struct sh_op_call *call);
sh_rc sh_cpu_linear_bwd_w(const struct sh_op_call *call);

/* bias.c */
sh_rc sh_cpu_bias_bwd(const struct sh_op_call *call);

/* rope.c; the table is kernels/ref's */
sh_rc sh_cpu_rope(const struct sh_op_call *call);

/* attention.c */
sh_rc sh_cpu_attention(const struct sh_op_call *call);
sh_rc sh_cpu_attention_bwd(const struct sh_op_call *call);

/* act.c */
sh_rc sh_cpu_gelu(const struct sh_op_call *call);
sh_rc sh_cpu_gelu_bwd(const struct sh_op_call *call);
sh_rc sh_cpu_gelu_bwd_bias(const struct sh_op_call *call);
sh_rc sh_cpu_swiglu(const struct sh_op_call *call);
sh_rc sh_cpu_swiglu_bwd(const struct sh_op_call *call);

/* head.c */
sh_rc sh_cpu_head_loss(const struct sh_op_call *call);
sh_rc sh_cpu_head_loss_grad(const struct sh_op_call *call);
sh_rc sh_cpu_logits(const struct sh_op_call *call);

/* vector.c */
sh_rc sh_cpu_add(const struct sh_op_call *call);
sh_rc sh_cpu_cast(const struct sh_op_call *call);
sh_rc sh_cpu_copy(const struct sh_op_call *call);
sh_rc sh_cpu_accumulate(const struct sh_op_call *call);
sh_rc sh_cpu_sumsq(const struct sh_op_call *call);

/* adamw.c */
sh_rc sh_cpu_adamw(const struct sh_op_call *call);

/* momentum.c */
sh_rc sh_cpu_sgd(const struct sh_op_call *call);
sh_rc sh_cpu_lion(const struct sh_op_call *call);

/* Scratch that a call needs with `threads` threads (shapes and attr set, data not), for the kinds that need any.
 * head: HEAD_LOSS, HEAD_LOSS_GRAD and LOGITS, told apart by call->kind. */
int64_t sh_cpu_norm_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_add_norm_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_norm_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_linear_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_linear_bwd_x_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_linear_bwd_w_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_bias_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_attention_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_attention_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_gelu_bwd_bias_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_head_work_bytes(const struct sh_op_call *call, int threads);

#endif
