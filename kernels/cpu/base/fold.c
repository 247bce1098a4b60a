#include "kernels/cpu/base/fold.h"

#include "kernels/cpu/base/block.h"
#include "kernels/cpu/base/stage.h"

#include <string.h>

/* In the order of the parts: the sum does not depend on which thread computed which part. */
void sh_cpu_fold(float *dst, bool add, const float *parts, int64_t n_parts, int64_t stride, int64_t C)
{
    int64_t pieces = sh_cpu_pieces(C);

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t at = p * SH_CPU_PIECE;
        struct sh_cpu_block row = {1, sh_cpu_piece_elems(C, p)};
        float sum[SH_CPU_PIECE] = {0};
        for (int64_t part = 0; part < n_parts; part++)
            sh_cpu_block_add(row, sum, row.cols, parts + part * stride + at, row.cols, SH_F32);
        if (add)
            sh_cpu_block_add(row, dst + at, row.cols, sum, row.cols, SH_F32);
        else
            memcpy(dst + at, sum, (size_t)row.cols * sizeof *sum);
    }
}
