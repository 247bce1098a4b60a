/* Lion: a step of one size, whose sign is that of a mean of gradients (Chen et al., arXiv:2302.06675, algorithm 2). */
#include "src/optim/optim.h"

static void scalars(const struct sh_config *cfg, int64_t update, struct sh_op_scalars *s)
{
    (void)update;
    s->beta1 = (float)cfg->optimizer.beta1;
    s->beta2 = (float)cfg->optimizer.beta2;
    s->weight_decay = (float)cfg->optimizer.weight_decay;
}

const struct sh_optim sh_optim_lion = {
    .name = "Lion",
    .op = SH_OP_LION,
    .n_states = 1,
    .state = {"exp_avg"},
    .scalars = scalars,
};
