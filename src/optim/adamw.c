/* AdamW: Adam with weight decay apart from the gradient (Loshchilov, Hutter, arXiv:1711.05101). */
#include "src/optim/optim.h"

#include <math.h>

/* The powers are computed in double and from the number of the update, not multiplied up from step to step: a resumed
 * run gets the same bits as one that was never stopped. */
static void scalars(const struct sh_config *cfg, int64_t update, struct sh_op_scalars *s)
{
    s->beta1 = (float)cfg->optimizer.beta1;
    s->beta2 = (float)cfg->optimizer.beta2;
    s->adam_eps = (float)cfg->optimizer.eps;
    s->weight_decay = (float)cfg->optimizer.weight_decay;
    s->beta1_pow = pow(cfg->optimizer.beta1, (double)update);
    s->beta2_pow = pow(cfg->optimizer.beta2, (double)update);
}

const struct sh_optim sh_optim_adamw = {
    .name = "AdamW",
    .op = SH_OP_ADAMW,
    .n_states = 2,
    .state = {"exp_avg", "exp_avg_sq"},
    .scalars = scalars,
};
