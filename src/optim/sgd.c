/* SGD with momentum, as torch.optim.SGD has it: beta1 is the momentum, there is no dampening, and weight decay is a part of
 * the gradient. */
#include "src/optim/optim.h"

static void scalars(const struct sh_config *cfg, int64_t update, struct sh_op_scalars *s)
{
    (void)update;
    s->beta1 = (float)cfg->optimizer.beta1;
    s->weight_decay = (float)cfg->optimizer.weight_decay;
}

const struct sh_optim sh_optim_sgd = {
    .name = "SGD",
    .op = SH_OP_SGD,
    .n_states = 1,
    .state = {"momentum_buffer"},
    .scalars = scalars,
};
