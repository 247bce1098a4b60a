/* Updates of optimizers whose states are in codes of eight bits (src/base/number/code8.h), which only whole blocks of 64
 * elements can read and write. */
#ifndef SH_OPTIM_CODED_H
#define SH_OPTIM_CODED_H

#include "kernels/cpu/optim/update.h"

/* As sh_cpu_update(), with states [b,68] u8. A block may be of several runs. Elements in no run are left alone, but for a
 * state whose block gets another scale: that is stored to nearest. */
void sh_cpu_update_coded(const struct sh_op_call *call, int n_states, sh_cpu_rule *rule, const void *const factors[2]);

#endif
