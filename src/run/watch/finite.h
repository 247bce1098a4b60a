/* Check whether the state of a run is fit to be saved. A finite loss vouches for the parameters before an update; those
 * after it have to be checked themselves. */
#ifndef SH_WATCH_FINITE_H
#define SH_WATCH_FINITE_H

#include "src/base/err.h"

struct sh_run;

/* Look for NaN and infinity in parameters and optimizer state. Collective, agreed. Errors: SH_E_NUMERIC, naming unit
 * and state. Cost: everything that is saved is read once more, at memory speed. */
sh_rc sh_run_check_finite(struct sh_run *r);

#endif
