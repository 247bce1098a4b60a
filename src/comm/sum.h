/* Sums of several vectors in a fixed order. Local, no state. */
#ifndef SH_COMM_SUM_H
#define SH_COMM_SUM_H

#include "src/base/dtype.h"

/* out[i] = ((src[0][i] + src[1][i]) + src[2][i]) + ...: the order of src, so that the bits depend on nothing else.
 *   src  n_src (>= 1) vectors of elems f32 or f64; one of them may be out itself */
void sh_comm_sum(enum sh_dtype dtype, void *out, const void *const *src, int n_src, int64_t elems);

#endif
