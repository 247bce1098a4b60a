/* SGD, Lion and Muon, the updates that keep one number per parameter: the factors that are the same for all elements of a
 * run, computed once, in double, on the host; the update rules; and where the parameters are. Valid C, C++ and CUDA. */
#ifndef SH_KERNELS_MOMENTUM_H
#define SH_KERNELS_MOMENTUM_H

#include "kernels/op.h"

#include <math.h>

struct sh_momentum_factors {
    float grad_scale, beta1, beta2, grad1, grad2, decay, keep, lr;
    float momentum, fresh; /* of Muon; fresh is 1 - momentum */
    bool nesterov, cautious;
};

static inline struct sh_momentum_factors sh_momentum_factors_of(const struct sh_op_scalars *s, bool decay)
{
    struct sh_momentum_factors f;
    f.grad_scale = s->grad_scale;
    f.beta1 = s->beta1;
    f.beta2 = s->beta2;
    f.grad1 = (float)(1 - (double)s->beta1);
    f.grad2 = (float)(1 - (double)s->beta2);
    f.decay = decay ? s->weight_decay : 0.0f;
    f.keep = (float)(decay ? 1 - (double)s->lr * (double)s->weight_decay : 1);
    f.lr = s->lr;
    f.momentum = s->momentum;
    f.fresh = (float)(1 - (double)s->momentum);
    f.nesterov = s->nesterov;
    f.cautious = s->cautious_decay;
    return f;
}

/* As in torch.optim.SGD with momentum beta1, no dampening, and the decay added to the gradient:
 *   g = grad_scale g + decay p, m = beta1 m + g, p = p - lr m */
SH_FLOATS void sh_sgd_elem(float *p, float *m, float grad, const struct sh_momentum_factors *f)
{
    *m = f->beta1 * *m + (grad * f->grad_scale + f->decay * *p);
    *p -= f->lr * *m;
}

/* Lion (Chen et al., arXiv:2302.06675, algorithm 2), with decay decoupled from the gradient:
 *   u = sign(beta1 m + (1 - beta1) g), p = (1 - lr decay) p - lr u, m = beta2 m + (1 - beta2) g
 * The sign of 0 is 0, and the sign of a NaN is that NaN. */
SH_FLOATS void sh_lion_elem(float *p, float *m, float grad, const struct sh_momentum_factors *f)
{
    float g = grad * f->grad_scale, u = f->beta1 * *m + f->grad1 * g;
    u = u > 0 ? 1.0f : u < 0 ? -1.0f : u;
    *p = *p * f->keep - f->lr * u;
    *m = f->beta2 * *m + f->grad2 * g;
}

/* The momentum of Muon, before the matrices are made orthogonal: m is a mean of gradients, and the step looks ahead by one
 * gradient with nesterov. */
SH_FLOATS void sh_muon_elem(float *u, float *m, const struct sh_momentum_factors *f)
{
    float g = *u * f->grad_scale;
    *m = f->momentum * *m + f->fresh * g;
    *u = f->nesterov ? f->fresh * g + f->momentum * *m : *m;
}

/* The step of Muon. Cautious decay (Chen et al., arXiv:2510.12402) leaves out the decay of a parameter that the step moves
 * away from 0, or does not move. */
SH_FLOATS void sh_muon_step(float *p, float u, const struct sh_momentum_factors *f)
{
    bool shrinks = (u > 0 && *p > 0) || (u < 0 && *p < 0);
    float keep = f->cautious && !shrinks ? 1.0f : f->keep;
    *p = fmaf(-f->lr, u, *p * keep); /* or a compiler would fuse one product or the other, by the place in a loop */
}

static inline struct sh_floats sh_momentum_params(const struct sh_op_call *call)
{
    struct sh_floats whole = {(float *)call->out[0].data, NULL, NULL, NULL, NULL, SH_CODE8_LINEAR};
    struct sh_floats halves = {NULL,           (sh_bf16 *)call->out[0].data, (int16_t *)call->out[2].data, NULL, NULL,
                               SH_CODE8_LINEAR};
    return call->out[2].data ? halves : whole;
}

#endif
