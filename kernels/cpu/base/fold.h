/* Sums over the rows of a matrix, for gradients of parameters. The rows are cut into at most SH_CPU_FOLDS parts,
 * whatever the number of threads. Each part is summed in row order into a partial row, and the partial rows are
 * summed in order, so the result depends on the shape only. Local, no failure. */
#ifndef SH_KERNELS_CPU_FOLD_H
#define SH_KERNELS_CPU_FOLD_H

#include <stdbool.h>
#include <stdint.h>

/* Enough for the threads of one rank; the partial rows are at most 1/16 of the traffic if a part has 16 rows. */
enum { SH_CPU_FOLDS = 64 };

static inline int64_t sh_cpu_folds(int64_t rows)
{
    return rows < SH_CPU_FOLDS ? rows : SH_CPU_FOLDS;
}

/* First row of part `part`; for part sh_cpu_folds(rows) it is `rows`. */
static inline int64_t sh_cpu_fold_row(int64_t rows, int64_t part)
{
    return rows * part / sh_cpu_folds(rows);
}

/* dst [C] = (add: dst) + sum of n_parts rows of C neighbouring elements, `stride` apart. Uses all threads. */
void sh_cpu_fold(float *dst, bool add, const float *parts, int64_t n_parts, int64_t stride, int64_t C);

#endif
