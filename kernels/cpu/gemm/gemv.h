/* Products with few rows, like those of a generation step: y [m,n] = x [m,k] op(w) + bias. Each element of w is read
 * from memory once and converted in registers, whereas the engines of gemm.h would pack it first. A row's bits depend
 * neither on the other rows nor on the number of threads. All local. */
#ifndef SH_GEMM_GEMV_H
#define SH_GEMM_GEMV_H

#include "kernels/cpu/gemm/gemm.h"

/* Whether it handles such a product: few rows, x not transposed, no addend, equal types except for f32 sums of 16
 * bits. */
bool sh_gemv_takes(const struct sh_matmul *g);

/* Run it with all threads of the caller. Cost: the bytes of w. */
void sh_gemv_run(const struct sh_matmul *g);

#endif
