/* The scratch of SCAN_BWD on GPUs, for its kernels and for plans (work.c). Valid C and C++. Local, no failure. */
#ifndef SH_KERNELS_CUDA_DELTA_SCAN_H
#define SH_KERNELS_CUDA_DELTA_SCAN_H

#include "kernels/scan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A launch has the chunks that begin in as many rows, so that scratch does not hold what each head says of the rows of its
 * group in a whole sequence: a group may have all heads. Not less than a chunk. */
enum { SH_CUDA_SCAN_WINDOW = 512 };

/* The most rows of those chunks. */
static inline int64_t sh_cuda_scan_rows(const struct sh_delta *s)
{
    int64_t most = SH_CUDA_SCAN_WINDOW + SH_SCAN_CHUNK - 1;
    return s->T < most ? s->T : most;
}

/* Floats of a head's scratch: matrices of a chunk, the derivative by a state, and those by B and C of a window's rows, last. */
static inline int64_t sh_cuda_scan_floats(const struct sh_delta *s)
{
    int64_t n = SH_SCAN_CHUNK;
    return n * (2 * s->D + 4 * s->V + 2 * n) + s->D * s->V + sh_cuda_scan_rows(s) * 2 * s->D;
}

/* Bytes; call: of SCAN_BWD. */
int64_t sh_cuda_scan_bwd_work_bytes(const struct sh_op_call *call);

#ifdef __cplusplus
}
#endif

#endif
