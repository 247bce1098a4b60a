/* Which parameters have numbers of their own. Pure, local. */
#ifndef SH_OPTIM_GROUPS_H
#define SH_OPTIM_GROUPS_H

#include "src/program/program.h"

/* Give each trained saved tensor the first group of the text (src/config/read/groups.h) whose pattern is found in its
 * name, and add the numbers of the groups to the program. Errors: SH_E_USAGE: a pattern that is found in none. */
sh_rc sh_groups_assign(struct sh_program *p, const char *text);

#endif
