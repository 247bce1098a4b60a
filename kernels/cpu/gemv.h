/* Products with few rows, as those of a step of generation: y [m,n] = x [m,k] op(w) + bias. Each element of w is read from
 * memory once and converted in registers, where the engines of gemm.h would pack it first. A row's bits depend neither on
 * the other rows nor on threads. All local. */
#ifndef SH_KERNELS_CPU_GEMV_H
#define SH_KERNELS_CPU_GEMV_H

#include "kernels/cpu/gemm.h"

/* Whether it is for such a product: few rows, x not turned, no addend, types alike but for f32 sums of 16 bits. */
bool sh_gemv_takes(const struct sh_gemm *g);

/* By all threads of the calling one. Cost: the bytes of w. */
void sh_gemv_run(const struct sh_gemm *g);

#endif
