#include "src/optim/optim.h"

static const struct sh_optim *const optimizers[] = {[SH_OPTIM_ADAMW] = &sh_optim_adamw};

const struct sh_optim *sh_optim_of(int word)
{
    return optimizers[word];
}
