/* Shapes of operands, for the C files of this folder. */
#ifndef SH_KERNELS_CUDA_OPERAND_H
#define SH_KERNELS_CUDA_OPERAND_H

#include "kernels/op.h"

static inline int64_t sh_cuda_last_dim(const struct sh_operand *t)
{
    return t->dim[t->ndim - 1];
}

/* The product of all dimensions except the last. */
static inline int64_t sh_cuda_rows(const struct sh_operand *t)
{
    int64_t rows = 1;
    for (int i = 0; i < t->ndim - 1; i++)
        rows *= t->dim[i];
    return rows;
}

/* Address of element i. */
static inline void *sh_cuda_at(const struct sh_operand *t, int64_t i)
{
    return (char *)t->data + i * sh_dtype_bytes(t->dtype);
}

/* Pieces of scratch start at multiples of 256 bytes, as the libraries require. */
static inline int64_t sh_cuda_round256(int64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

#endif
