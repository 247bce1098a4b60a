/* Plans of cuDNN's attention, separate from running them, so that a test without a GPU can make the very plans of a
 * run. Local; one thread. */
#ifndef SH_KERNELS_CUDA_ATTENTION_CUDNN_H
#define SH_KERNELS_CUDA_ATTENTION_CUDNN_H

#include "kernels/op.h"

/* Some heads of some sequences of a call, in which a row holds all_heads + 2 all_kv_heads heads of qkv. */
struct sh_cudnn_shape {
    int64_t batch, heads, kv_heads, seq, dim, all_heads, all_kv_heads;
    int64_t most_bytes; /* limit on scratch; plans that need more are skipped */
    int64_t backward;   /* 0 or 1, like the next field */
    int64_t any_order;  /* the backward's dq may be added in any order */
};

/* Load libcudnn.so.9. Errors: SH_E_USAGE if it is missing, or older than 9.8. */
sh_rc sh_cudnn_load(void);

/* Make the plan of a call (shapes and attr set, data not) for a GPU described in cuDNN's JSON, and discard it.
 *   bytes, most  out  scratch that the plan needs, and how much it would be given
 * Errors: SH_E_USAGE if cuDNN does not support the call; SH_E_BUG with cuDNN's message, or if the plan needs too
 * much. */
sh_rc sh_cudnn_try_plan(const struct sh_op_call *call, const char *gpu, int64_t *bytes, int64_t *most);

#endif
