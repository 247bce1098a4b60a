/* Which parameters have numbers of their own. Pure, local. */
#ifndef SH_OPTIM_GROUPS_H
#define SH_OPTIM_GROUPS_H

#include "src/optim/optim.h"
#include "src/program/program.h"

/* Give each trained saved tensor the first group of the text (src/config/read/groups.h) whose pattern is found in its
 * name, and add the numbers of the groups to the program.
 *   by  the run's optimizer; NULL: do not check that it reads the numbers
 * Errors: SH_E_USAGE: a pattern that is found in none, muon for no matrix, numbers that are not read. */
sh_rc sh_groups_assign(struct sh_program *p, const struct sh_optim *by, const char *text);

/* Leave out of such a text the groups that no trained tensor gets, as those of blocks that a smaller model lacks. */
void sh_groups_trim(struct sh_program *p, char *text);

#endif
