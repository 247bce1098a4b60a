/* The CPU kernels: one function per kind of operation, gathered in sh_kernels_cpu (table.c). kernels/op.c defines
 * what each one computes and the shapes of its operands; a kernel here may differ from kernels/ref by rounding only.
 *
 * Threads are OpenMP's, as many as omp_get_max_threads() returns in the calling thread. One thread calls at a time.
 * Sums are cut into blocks of a fixed size and combined in a fixed order, so the number of threads changes no bit.
 * All local. Errors: SH_E_BUG for types that the check pass refuses; products may pass on SH_E_MEMORY. */
#ifndef SH_KERNELS_CPU_CPU_H
#define SH_KERNELS_CPU_CPU_H

#include "kernels/op.h"

#define sh_cpu_rope_table sh_ref_rope_table /* once per run, in double: nothing to gain */
#define sh_cpu_route_load sh_ref_route_load /* a number for each expert: nothing to gain */
#define sh_cpu_route_bias sh_ref_route_bias
#define sh_cpu_exact_round sh_ref_exact_round           /* a few digits: nothing to gain */
#define sh_cpu_norm_bwd_bias sh_cpu_norm_bwd            /* it looks for the bias */
#define sh_cpu_expert_linear_bwd_x sh_cpu_expert_linear /* they are told apart by call->kind */
#define sh_cpu_expert_linear_bwd_w sh_cpu_expert_linear
#define sh_cpu_adamw_coded sh_cpu_adamw /* by the type of the states */
#define sh_cpu_lion_coded sh_cpu_lion

#define SH_CPU_KERNEL(KIND, name) sh_rc sh_cpu_##name(const struct sh_op_call *call);
SH_OP_LIST(SH_CPU_KERNEL, SH_CPU_KERNEL, SH_OP_SKIP)

/* momentum.c */
sh_rc sh_cpu_sgd(const struct sh_op_call *call);
sh_rc sh_cpu_lion(const struct sh_op_call *call);

/* Scratch that a call needs with `threads` threads (shapes and attr set, data not), for the kinds that need any.
 * head: HEAD_LOSS, HEAD_LOSS_GRAD, HEAD_SCORE and LOGITS, distinguished by call->kind. */
int64_t sh_cpu_norm_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_add_norm_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_norm_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_qk_norm_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_qk_norm_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_qk_means_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_linear_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_linear_bwd_x_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_linear_bwd_w_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_bias_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_attention_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_attention_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_attention_cache_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_gelu_bwd_bias_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_lora_work_bytes(const struct sh_op_call *call, int threads); /* both directions */
int64_t sh_cpu_route_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_route_plan_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_expert_work_bytes(const struct sh_op_call *call, int threads); /* the three products */
int64_t sh_cpu_short_conv_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_short_conv_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_gated_delta_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_gated_delta_cache_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_gated_delta_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_gated_norm_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_scan_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_scan_cache_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_scan_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_gate_norm_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_gate_norm_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_route_bwd_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_route_loss_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_ortho_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_ortho_rows_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_head_work_bytes(const struct sh_op_call *call, int threads);
int64_t sh_cpu_loss_rest_work_bytes(const struct sh_op_call *call, int threads);

#endif
