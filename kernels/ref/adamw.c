/* AdamW: Adam with decoupled weight decay (Loshchilov, Hutter, arXiv:1711.05101, algorithm 2), in the order of
 * torch.optim.AdamW: p is first shrunk by lr weight_decay, then the step is taken. Only elements of a decay run are
 * parameters; elements between runs are padding and are left as they are. */
#include "kernels/adamw.h"
#include "kernels/ref/ref.h"

#include <math.h>

static void update(const struct sh_op_call *call, const struct sh_decay_run *run, int64_t i)
{
    const struct sh_op_scalars *s = call->scalars;
    const struct sh_operand *m = &call->out[1], *v = &call->out[2];
    struct sh_floats at = sh_floats_at(sh_adamw_params(call), i);
    float p;
    double b1 = (double)s->beta1, b2 = (double)s->beta2, lr = (double)s->lr;
    double g = sh_ref_get(&call->in[0], i) * (double)s->grad_scale;
    double m1 = b1 * sh_ref_get(m, i) + (1 - b1) * g;
    double v1 = b2 * sh_ref_get(v, i) + (1 - b2) * g * g;
    double p1;

    sh_floats_get(at, 1, &p);
    p1 = (double)p * (run->decay ? 1 - lr * (double)s->weight_decay : 1);
    p1 -= lr * (m1 / (1 - s->beta1_pow)) / (sqrt(v1 / (1 - s->beta2_pow)) + (double)s->adam_eps);
    p = (float)p1;
    sh_floats_put(at, 1, &p);
    sh_ref_state_set(call, run, 0, i, m1);
    sh_ref_state_set(call, run, 1, i, v1);
}

/* Elements between runs are padding. */
sh_rc sh_ref_adamw(const struct sh_op_call *call)
{
    for (int r = 0; r < call->attr->runs.count; r++)
        for (int64_t i = call->runs[r].begin; i < call->runs[r].end; i++)
            update(call, &call->runs[r], i);
    return SH_OK;
}
