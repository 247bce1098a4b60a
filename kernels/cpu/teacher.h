/* Rows of logits and the words of a teacher, or what labels are to be (kernels/op.h). Local, for one thread, no failure. */
#ifndef SH_KERNELS_CPU_TEACHER_H
#define SH_KERNELS_CPU_TEACHER_H

#include "kernels/op.h"

/* Whether a call of HEAD_LOSS or HEAD_LOSS_GRAD learns from a teacher; known without data. */
static inline bool sh_cpu_has_teacher(const struct sh_op_call *call)
{
    return call->in[5].ndim > 0;
}

/* Numbers of a row, without its weight. */
struct sh_teacher_row {
    double kl, mass; /* of labels: SH_HEAD_TRUE_POSITIVES and SH_HEAD_POSITIVES */
    bool right;
};

/* The loss of one row of logits x [n], without its weight. With gradient, x becomes `scale` times the gradient of that
 * and of attr->head.squares lse^2, else it stays.
 *   lse  out  the log of the sum of the row's exponentials */
double sh_cpu_teacher_row(const struct sh_op_call *call, int64_t row, float *x, int64_t n, bool gradient, double scale,
                          double *lse, struct sh_teacher_row *numbers);

/* The likeliest word of x [n], whose largest is max, the first one on a tie. For a row of NaNs it is word 0. */
int32_t sh_cpu_best_word(const float *x, int64_t n, float max);

/* The k largest of x [n], in descending order, of equal ones the first, and where they are. */
void sh_cpu_best_words(const float *x, int64_t n, int64_t k, int32_t *word, float *best);

#endif
