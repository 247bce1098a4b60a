/* AdamW: the factors that are the same for all elements of a run, computed once, in double, on the host; the update rule;
 * and where the parameters are. Valid C, C++ and CUDA. */
#ifndef SH_KERNELS_ADAMW_H
#define SH_KERNELS_ADAMW_H

#include "kernels/op.h"

#include <math.h>

struct sh_adamw_factors {
    float grad_scale, beta1, beta2, grad1, grad2, keep, step, root, eps;
};

static inline struct sh_adamw_factors sh_adamw_factors_of(const struct sh_op_scalars *s, bool decay)
{
    struct sh_adamw_factors f;
    f.grad_scale = s->grad_scale;
    f.beta1 = s->beta1;
    f.beta2 = s->beta2;
    f.grad1 = (float)(1 - (double)s->beta1);
    f.grad2 = (float)(1 - (double)s->beta2);
    f.keep = (float)(decay ? 1 - (double)s->lr * (double)s->weight_decay : 1);
    f.step = (float)((double)s->lr / (1 - s->beta1_pow));
    f.root = (float)(1 / (1 - s->beta2_pow));
    f.eps = s->adam_eps;
    return f;
}

/*   g *= grad_scale, m = beta1 m + grad1 g, v = beta2 v + grad2 g g, p = keep p - step m / (sqrt(root v) + eps)
 *
 * keep is an argument so that a GPU has one set of the other factors for runs of both kinds. */
SH_FLOATS void sh_adamw_elem(float *p, float *m, float *v, float grad, const struct sh_adamw_factors *f, float keep)
{
    float g = grad * f->grad_scale;
    *m = f->beta1 * *m + f->grad1 * g;
    *v = f->beta2 * *v + f->grad2 * g * g;
    *p = *p * keep - f->step * *m / (sqrtf(*v * f->root) + f->eps);
}

static inline struct sh_floats sh_adamw_params(const struct sh_op_call *call)
{
    struct sh_floats whole = {(float *)call->out[0].data, NULL, NULL, NULL, NULL, SH_CODE8_LINEAR};
    struct sh_floats halves = {NULL,           (sh_bf16 *)call->out[0].data, (int16_t *)call->out[3].data, NULL, NULL,
                               SH_CODE8_LINEAR};
    return call->out[3].data ? halves : whole;
}

#endif
