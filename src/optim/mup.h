/* Widths of one family of models that want the same rates (maximal update parametrization, Yang et al.,
 * arXiv:2203.03466). A model is `width` times as wide as the base model, and parameters differ from those of a model
 * without by factors of their roles:
 *
 *                            initial values    rate        eps         weight decay
 *   matrices of blocks       1 / sqrt(width)   1 / width   1 / width   width
 *   output matrix            1 / width         1 / width   1           width
 *   all other parameters     1                 1           1           1
 *
 * Rate times decay stays. What Muon updates has the factor of initial values only. Pure, local. */
#ifndef SH_OPTIM_MUP_H
#define SH_OPTIM_MUP_H

#include "src/optim/optim.h"
#include "src/program/program.h"

/* Multiply the initial values of trained saved tensors, and give them numbers: those of their group, or of the run, times
 * the factors. Comes after sh_groups_assign().
 *   muon  matrices of blocks are Muon's, unless their group says adamw */
void sh_mup_assign(struct sh_program *p, const struct sh_mup *mup, bool muon);

#endif
