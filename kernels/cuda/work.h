/* How the kernels without a library cut their sums, and with that their scratch: for the kernels, and for plans on
 * machines without CUDA (work.c). All numbers depend on shapes only. Valid C and C++. Local, no failure. */
#ifndef SH_KERNELS_CUDA_WORK_H
#define SH_KERNELS_CUDA_WORK_H

#include "kernels/op.h"

/* Words of one partial sum of exact.cu: the digits of struct sh_exact, and what is not finite. */
enum { SH_CUDA_EXACT_WORDS = 24 };

static inline int64_t sh_cuda_parts(int64_t n, int64_t each, int64_t most)
{
    int64_t parts = (n + each - 1) / each;
    return parts < 1 ? 1 : parts < most ? parts : most;
}

/* Enough blocks for the largest GPUs, and so few that the partial sums are a small part of what is read. */
static inline int64_t sh_cuda_norm_parts(int64_t rows)
{
    return sh_cuda_parts(rows, 4, 512);
}

static inline int64_t sh_cuda_bias_parts(int64_t rows)
{
    return sh_cuda_parts(rows, 64, 128);
}

static inline int64_t sh_cuda_sumsq_parts(int64_t elems)
{
    return sh_cuda_parts(elems, 8192, 1024);
}

/* Integers of EMBED_BWD's scratch: where each token's rows begin, where its next one goes, and the rows twice. */
static inline int64_t sh_cuda_embed_bwd_ints(int64_t rows, int64_t vocab)
{
    return 2 * vocab + 1 + 2 * rows;
}

#endif
