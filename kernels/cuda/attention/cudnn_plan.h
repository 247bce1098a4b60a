/* Plans of cuDNN's attention: a graph of products, masks and sums (cudnn_graph.c), which cuDNN matches to one of its
 * fused kernels. Separate from the calls of a run (attention_cudnn.c), so that a test without a GPU can make the very
 * plans of a run. Local; one thread. */
#ifndef SH_KERNELS_CUDA_CUDNN_PLAN_H
#define SH_KERNELS_CUDA_CUDNN_PLAN_H

#include "kernels/op.h"

#include <stddef.h>

/* Some heads of some sequences of a call, in which a row holds all_heads + 2 all_kv_heads heads of qkv. */
struct sh_cudnn_shape {
    int64_t batch, heads, kv_heads, seq, dim, all_heads, all_kv_heads;
    int64_t most_bytes; /* limit on scratch; plans that need more are skipped */
    int64_t backward;   /* 0 or 1, like the next field */
    int64_t any_order;  /* the backward's dq may be added in any order */
};

/* The GPU of a plan: this process's, or one that is only described. */
struct sh_cudnn_gpu {
    int capability;   /* 10 x major + minor */
    const char *json; /* cuDNN's description; NULL: this process's GPU */
};

struct sh_cudnn_plan;
struct sh_cudnn_engine; /* cudnn_promise.h */

/* How a call is computed: a plan for pieces of that shape. */
struct sh_cudnn_pieces {
    struct sh_cudnn_shape shape;
    struct sh_cudnn_plan *plan;
};

/* Load libcudnn.so.9. Errors: SH_E_USAGE if it is missing, older than 9.8, or known for faults in attention. */
sh_rc sh_cudnn_load(void);
/* As cudnnGetVersion() writes it: 91900 is 9.19.0. Only after a load. */
size_t sh_cudnn_version(void);
/* Start cuDNN on this process's GPU; once. */
sh_rc sh_cudnn_open(void);

/* Make a plan; it takes a second or two. The caller destroys it; destroying NULL does nothing.
 *   engine  the kernel to take; NULL, or with index -1: the best that cuDNN offers within shape->most_bytes
 * Errors: SH_E_USAGE for a length that this cuDNN cannot; SH_E_BUG with cuDNN's message, or if the plan needs too
 * much scratch. */
sh_rc sh_cudnn_plan_create(const struct sh_cudnn_shape *shape, struct sh_cudnn_gpu gpu,
                           const struct sh_cudnn_engine *engine, struct sh_cudnn_plan **out);
void sh_cudnn_plan_destroy(struct sh_cudnn_plan *p);
int64_t sh_cudnn_plan_bytes(const struct sh_cudnn_plan *p); /* of scratch */

/* What computes it, as cuDNN numbers it: "engine 5, knobs 24=31 14=2". */
const char *sh_cudnn_plan_name(const struct sh_cudnn_plan *p);

/* Run it on a stream.
 *   at       [n] addresses of the graph's tensors, by their number; NULL: not part of the graph
 *   scratch  sh_cudnn_plan_bytes(), aligned to 256 bytes */
sh_rc sh_cudnn_plan_run(struct sh_cudnn_plan *p, void *const *at, int n, void *scratch, void *stream);

/* The plan of a call (shapes and attr set, data not) on that GPU; attention_cudnn.c. The caller destroys out->plan.
 * Errors: as above; SH_E_USAGE also if cuDNN does not support the call, or promises no order that it asks for. */
sh_rc sh_attention_cudnn_plan(const struct sh_op_call *call, const struct sh_cudnn_gpu *gpu,
                              struct sh_cudnn_pieces *out);

#endif
