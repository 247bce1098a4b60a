/* Rectangular blocks of matrices, moved between the compute type (f32, bf16 or f16) and f32 scratch, in which
 * products, attention and the head do their arithmetic. A block is `rows` rows of `cols` neighbouring elements; ld is
 * the distance between rows in elements. Source and destination do not overlap unless stated. All local, for one
 * thread, no failure. */
#ifndef SH_KERNELS_CPU_BLOCK_H
#define SH_KERNELS_CPU_BLOCK_H

#include "src/base/number/dtype.h"

#include <stdint.h>

struct sh_cpu_block {
    int64_t rows, cols;
};

/* dst [rows,cols] f32 = src [rows,cols] of type dtype. */
void sh_cpu_block_load(struct sh_cpu_block b, float *dst, int64_t ldd, const void *src, int64_t lds,
                       enum sh_dtype dtype);

/* dst [rows,cols] of type dtype = src [rows,cols] f32, rounded once. */
void sh_cpu_block_store(struct sh_cpu_block b, void *dst, int64_t ldd, enum sh_dtype dtype, const float *src,
                        int64_t lds);

/* dst [rows,cols] f32 += row [cols] of type dtype, the same row each time (a bias). */
void sh_cpu_block_add_row(struct sh_cpu_block b, float *dst, int64_t ldd, const void *row, enum sh_dtype dtype);

/* dst [rows,cols] f32 += src [rows,cols] of type dtype. */
void sh_cpu_block_add(struct sh_cpu_block b, float *dst, int64_t ldd, const void *src, int64_t lds,
                      enum sh_dtype dtype);

/* Element `elem` of a tensor of type dtype. */
static inline void *sh_cpu_at(const void *data, enum sh_dtype dtype, int64_t elem)
{
    return (char *)(uintptr_t)data + elem * sh_dtype_bytes(dtype);
}

/* Scratch is cut into pieces that start on cache lines. */
static inline int64_t sh_cpu_round64(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

#endif
