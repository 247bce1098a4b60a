#include "src/optim/optim.h"

static const struct sh_optim *const optimizers[] = {
    [SH_OPTIM_ADAMW] = &sh_optim_adamw, [SH_OPTIM_SGD] = &sh_optim_sgd, [SH_OPTIM_LION] = &sh_optim_lion};

const struct sh_optim *sh_optim_of(int word)
{
    return optimizers[word];
}
