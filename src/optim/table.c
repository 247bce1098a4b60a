#include "src/optim/optim.h"

#include <math.h>

/* Rows come from optim.inc, and so do the words of the key. */
static const struct sh_optim optimizers[] = {
#define OPTIM(id, word, means, keys, ...) [SH_OPTIM_##id] = {__VA_ARGS__},
#include "src/config/optim.inc"
#undef OPTIM
};

const struct sh_optim *sh_optim_of(int word)
{
    return &optimizers[word];
}

/* The powers are computed in double from the number of the update, not multiplied up from step to step: a resumed run
 * gets the same bits as one that was never stopped. */
void sh_optim_scalars(const struct sh_config *cfg, int64_t update, struct sh_op_scalars *s)
{
    s->beta1 = (float)cfg->optimizer.beta1;
    s->beta2 = (float)cfg->optimizer.beta2;
    s->adam_eps = (float)cfg->optimizer.eps;
    s->momentum = (float)cfg->optimizer.momentum;
    s->muon_beta2 = (float)cfg->optimizer.muon_beta2;
    s->nesterov = cfg->optimizer.nesterov;
    s->cautious_decay = cfg->optimizer.cautious_decay;
    s->weight_decay = (float)cfg->optimizer.weight_decay;
    s->beta1_pow = pow(cfg->optimizer.beta1, (double)update);
    s->beta2_pow = pow(cfg->optimizer.beta2, (double)update);
    s->update = (uint64_t)update;
}
