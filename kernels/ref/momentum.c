/* SGD with momentum, in the order of torch.optim.SGD, and Lion (Chen et al., arXiv:2302.06675, algorithm 2). Only
 * elements of a decay run are parameters; elements between runs are padding and are left as they are. */
#include "kernels/momentum.h"
#include "kernels/ref/ref.h"

typedef void rule(const struct sh_op_scalars *s, bool decay, double *p, double *m, double g);

/* As in torch.optim.SGD: decay is part of the gradient here, unlike in AdamW and Lion. */
static void sgd(const struct sh_op_scalars *s, bool decay, double *p, double *m, double g)
{
    if (decay)
        g += (double)s->weight_decay * *p;
    *m = (double)s->beta1 * *m + g;
    *p -= (double)s->lr * *m;
}

/* The step has the same size for all elements: only the sign of u counts. If u is 0 or NaN, u itself is used. */
static void lion(const struct sh_op_scalars *s, bool decay, double *p, double *m, double g)
{
    double b1 = (double)s->beta1, b2 = (double)s->beta2, u = b1 * *m + (1 - b1) * g;

    u = u > 0 ? 1 : u < 0 ? -1 : u;
    if (decay)
        *p *= 1 - (double)s->lr * (double)s->weight_decay;
    *p -= (double)s->lr * u;
    *m = b2 * *m + (1 - b2) * g;
}

/* Computed in double and rounded once. */
static void update(const struct sh_op_call *call, const struct sh_decay_run *run, rule *by, int64_t i)
{
    struct sh_floats at = sh_floats_at(sh_momentum_params(call), i);
    double m = sh_ref_get(&call->out[1], i), p;
    float p1;

    sh_floats_get(at, 1, &p1);
    p = (double)p1;
    by(call->scalars, run->decay, &p, &m, sh_ref_get(&call->in[0], i) * (double)call->scalars->grad_scale);
    p1 = (float)p;
    sh_floats_put(at, 1, &p1);
    sh_ref_state_set(call, run, 0, i, m);
}

/* Elements between runs are left alone, so padding stays 0. */
static sh_rc update_runs(const struct sh_op_call *call, rule *by)
{
    for (int r = 0; r < call->attr->runs.count; r++)
        for (int64_t i = call->runs[r].begin; i < call->runs[r].end; i++)
            update(call, &call->runs[r], by, i);
    return SH_OK;
}

sh_rc sh_ref_sgd(const struct sh_op_call *call)
{
    return update_runs(call, sgd);
}

sh_rc sh_ref_lion(const struct sh_op_call *call)
{
    return update_runs(call, lion);
}
