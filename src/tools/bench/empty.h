/* A checkpoint file of the largest model without its data: what its structure alone costs. */
#ifndef SH_BENCH_EMPTY_H
#define SH_BENCH_EMPTY_H

#include "src/base/err.h"

/* Write and read back a file with the names of Llama-3.1-405B's 1,137 tensors in 3 states, of one element each. Only
 * rank 0 does it, as in a save. Local. Errors: SH_E_DATA. */
sh_rc sh_bench_empty(const char *path, double *seconds);

#endif
