#include "src/optim/optim.h"

static const struct sh_optim *const optimizers[] = {
#define OPTIM(id, word, name) [SH_OPTIM_##id] = &sh_optim_##name,
#include "src/config/optim.inc"
#undef OPTIM
};

const struct sh_optim *sh_optim_of(int word)
{
    return optimizers[word];
}
