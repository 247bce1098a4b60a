/* What cuBLASLt reads of grouped products on the GPU (grouped.c), written there from the offsets of the groups
 * (grouped.cu). Valid C and C++, no CUDA header. */
#ifndef SH_KERNELS_CUDA_MOE_GROUPED_H
#define SH_KERNELS_CUDA_MOE_GROUPED_H

#include "kernels/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One matrix of each group, column by column as cuBLASLt has them. */
struct sh_grouped_side {
    void *data;
    int64_t bytes;   /* of a number */
    int64_t rows;    /* numbers of a column, without a gap to the next one */
    int64_t columns; /* of an expert's matrix; 0: a column for each row of the group */
};

struct sh_grouped {
    const int32_t *first;           /* [calls * groups + 1] */
    int64_t calls, groups, pitch;   /* as in struct sh_cuda_expert_work */
    int64_t E;                      /* group g is one of expert g % E */
    struct sh_grouped_side side[3]; /* A, B, D */
    /* Out: side s of group g of call c has number (s * calls + c) * pitch + g. Columns follow all rows. */
    void **data;
    int32_t *rows;
    float *numbers; /* 0 and 1 */
};

/* Enqueue it. Local. Errors: SH_E_BUG if the launch is refused. */
sh_rc sh_cuda_grouped_arrays(const struct sh_grouped *g, void *queue);

/* first [groups + 1] = offsets of groups that divide M rows equally. */
sh_rc sh_cuda_grouped_balance(int32_t *first, int64_t groups, int64_t M, void *queue);

/* See op.h. A "call" is one of EXPERT_LINEAR*, whose first answer is Sherd's own kernel; choices.c has `library`. */
extern const struct sh_choices sh_cuda_grouped_choices;

#ifdef __cplusplus
}
#endif
#endif
