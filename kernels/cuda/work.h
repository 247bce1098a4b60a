/* How the kernels that use no library cut their sums, and hence their scratch, for the kernels and for plans on
 * machines without CUDA (work.c). All numbers depend on shapes only. Valid C and C++. Local, no failure. */
#ifndef SH_KERNELS_CUDA_WORK_H
#define SH_KERNELS_CUDA_WORK_H

#include "kernels/delta.h"

static inline int64_t sh_cuda_parts(int64_t n, int64_t each, int64_t most)
{
    int64_t parts = (n + each - 1) / each;
    return parts < 1 ? 1 : parts < most ? parts : most;
}

/* Enough blocks for the largest GPUs, but few enough that the partial sums are a small part of what is read. All sums
 * over rows use the same cut, so fused kinds add in the same order as the pair they replace. */
static inline int64_t sh_cuda_row_parts(int64_t rows)
{
    return sh_cuda_parts(rows, 4, 512);
}

/* Blocks that count the places of the tokens. */
enum { SH_CUDA_SCAN_THREADS = 1024 };
static inline int64_t sh_cuda_scan_blocks(int64_t vocab)
{
    return (vocab + SH_CUDA_SCAN_THREADS - 1) / SH_CUDA_SCAN_THREADS;
}

/* Integers in EMBED_BWD's scratch: where each token's rows start, where its next one goes, the rows twice, and how
 * many rows each block of tokens has. */
static inline int64_t sh_cuda_embed_bwd_ints(int64_t rows, int64_t vocab)
{
    return 2 * vocab + 1 + 2 * rows + sh_cuda_scan_blocks(vocab);
}

/* The largest head of attention, but for that of a cache; and whether kernels for tensor cores take heads of this size, as
 * the table in attention/attention.cu says. */
enum { SH_ATTENTION_MAX_DIM = 512 };
static inline bool sh_cuda_attention_tiles(int64_t dim)
{
    return dim == 32 || dim == 64 || dim == 96 || dim == 128;
}

/* Parts that choices are cut into for sorting. */
static inline int64_t sh_cuda_plan_parts(int64_t choices)
{
    return sh_cuda_parts(choices, 256, 1024);
}

/* Floats of a head's scratch in GATED_DELTA_BWD: matrices of a chunk, the derivative by a state, and those by the queries and
 * keys of all rows, last. */
static inline int64_t sh_cuda_delta_floats(const struct sh_delta *s)
{
    int64_t n = SH_DELTA_CHUNK;
    return n * (3 * s->D + 4 * s->V + 5 * n) + s->D * s->V + s->T * 2 * s->D;
}

#endif
