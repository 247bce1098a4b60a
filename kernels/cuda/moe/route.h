/* What the router's products (route.c) and the kernels of its rows (route.cu) share. Local. */
#ifndef SH_KERNELS_CUDA_MOE_ROUTE_H
#define SH_KERNELS_CUDA_MOE_ROUTE_H

#include "kernels/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ROUTE, from the logits that are in place of the scores. */
sh_rc sh_cuda_route_rows(const struct sh_op_call *call);

/* ROUTE_BWD: the gradients of the logits.
 *   count  scratch [E] i32
 *   d      out     [N,E] f32; if x is bf16: [N,3E] bf16, three times E numbers whose sums they are */
sh_rc sh_cuda_route_bwd_rows(const struct sh_op_call *call, int32_t *count, void *d);

/* ROUTE_BWD: db from d. work: scratch. Errors: SH_E_BUG if that is too small. */
sh_rc sh_cuda_route_db(const struct sh_op_call *call, const void *d, void *work, int64_t work_bytes);

#ifdef __cplusplus
}
#endif

#endif
