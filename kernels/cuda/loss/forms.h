/* Losses of rows of logits other than plain cross entropy (kernels/op.h): of logits with a soft cap, with a teacher, or
 * without a softmax. Valid C and C++, no CUDA header. */
#ifndef SH_KERNELS_CUDA_FORMS_H
#define SH_KERNELS_CUDA_FORMS_H

#include "kernels/cuda/gemm/head.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueue the losses of the rows, and with gradient their derivatives in place of the logits; the sum over rows is the
 * caller's. With s->cap the logits must be capped already. Local. Errors: SH_E_BUG if the launch is refused. */
sh_rc sh_cuda_form_loss(const struct sh_cuda_softmax *s, void *queue);

/* Enqueue the words of s->best, and their logits in place of s->best_logprob. Nothing with s->words 0. Local. Errors: as
 * above; SH_E_BUG for more words than a row has, or than SH_KD_WORDS. */
sh_rc sh_cuda_top_words(const struct sh_cuda_scores *s, void *queue);

/* Enqueue x = cap tanh(x / cap) for the first `columns` of each row of x [rows,ld]. cap 0: nothing. Local. Errors: as
 * above. */
sh_rc sh_cuda_cap_rows(float *x, int64_t rows, int64_t columns, int64_t ld, float cap, void *queue);

/* Enqueue x = 0 for all columns of x [rows,ld] but the `columns` from `first` on. Local. Errors: as above. */
sh_rc sh_cuda_zero_others(float *x, int64_t rows, int64_t first, int64_t columns, int64_t ld, void *queue);

#ifdef __cplusplus
}
#endif
#endif
