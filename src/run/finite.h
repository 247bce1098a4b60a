/* Whether the state of a run can be saved as a good one. A finite loss says so of the parameters before an update; only
 * the state itself says it of those behind it. */
#ifndef SH_RUN_FINITE_H
#define SH_RUN_FINITE_H

#include "src/base/err.h"

struct sh_run;

/* Look for NaN and infinity in parameters and optimizer state. Collective, agreed. Errors: SH_E_NUMERIC naming unit and
 * state. Cost: what is saved is read once more, at the speed of memory. */
sh_rc sh_run_check_finite(struct sh_run *r);

#endif
