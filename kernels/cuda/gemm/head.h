/* Softmax and cross entropy of rows of logits, between the products of the head (head.c): one launch per chunk of
 * rows. Valid C and C++, no CUDA header. */
#ifndef SH_KERNELS_CUDA_HEAD_H
#define SH_KERNELS_CUDA_HEAD_H

#include "src/base/number/dtype.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All pointers are device memory. A row with a negative target or weight 0 has loss 0 and zero gradients. */
struct sh_cuda_softmax {
    int64_t rows, vocab;
    int64_t ld;             /* elements from one row of logits to the next, at least vocab, a multiple of 64 */
    float *logits;          /* [rows,ld] f32, 256-byte aligned; elements past column vocab are never read */
    const int32_t *targets; /* [rows]: class; negative: masked */
    const float *weight;    /* [rows]: the row's loss counts that often; NULL: once */
    int numbers;            /* of the loss: sh_head_numbers() */
    double *row_loss;       /* [numbers,rows] scratch */
    double *loss;  /* [numbers] = or += their sums over rows, in an order that depends on the number of rows only */
    bool add_loss; /* += */
    bool gradient; /* logits become (softmax - onehot) * weight * loss_scale */
    enum sh_dtype grad_dtype; /* f32, or bf16: each row then starts where its logits did: leading dimension 2 * ld */
    double loss_scale;
    bool raw;             /* no softmax: a row's loss is minus the logit of its target (kernels/op.h) */
    double squares;       /* what that of a row's lse counts (kernels/op.h); 0: there are none */
    float cap;            /* the logits are capped, and gradients are those before the cap; 0: they are not */
    int words;            /* of a teacher; 0: none */
    const int32_t *word;  /* [rows,words] */
    const float *teacher; /* [rows,words] log-probabilities; with multi_label [rows,vocab] */
    bool multi_label;     /* labels, each by itself (kernels/op.h) */
    double temperature, alpha;
    int form; /* enum sh_cfg_kd_form */
};

/* Enqueue it. Local; returns before it has run. Cost:   reads the logits once for the loss; with gradients, reads
 * them twice and writes the gradients once. Errors: SH_E_BUG if the launch is refused. */
sh_rc sh_cuda_softmax_loss(const struct sh_cuda_softmax *s, void *queue);

/* Log-probability of each row's target, 0 if the target is negative, and the row's likeliest word; the logits stay
 * unchanged.
 *   logprob    out [rows]   likeliest out [rows]
 * Cost: reads the logits twice. Errors: as above. */
struct sh_cuda_scores {
    int64_t rows, vocab, ld; /* as above */
    const float *logits;
    const int32_t *targets;
    float *logprob;
    int32_t *likeliest;
    bool raw;            /* the target's logit stands for its log-probability */
    int words;           /* to list; 0: none */
    int32_t *best;       /* [rows,words] the likeliest, in the order of kernels/op.h */
    float *best_logprob; /* [rows,words] their log-probabilities; on entry to the kernel their logits */
};
sh_rc sh_cuda_softmax_scores(const struct sh_cuda_scores *s, void *queue);

#ifdef __cplusplus
}
#endif
#endif
