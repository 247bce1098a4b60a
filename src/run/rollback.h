/* Going back inside a running job, when a spike shows that the data or the numbers of the last steps did harm. */
#ifndef SH_RUN_ROLLBACK_H
#define SH_RUN_ROLLBACK_H

#include "src/base/err.h"
#include <stdint.h>

struct sh_run;

/* Load what a new start of this job would load: the newest checkpoint that is valid, without one what the run began
 * from. Step, tokens and updates are those of that moment again; r->samples stays, so that all samples from *first on
 * to it are never used: those of the steps that are undone, the bad one included. The same on every mesh and in every
 * repetition. No checkpoint may be under way. Collective, agreed. Errors: as of starting: SH_E_DATA.
 * Source: Chowdhery et al., PaLM, arXiv:2204.02311, section 5.1. */
sh_rc sh_rollback(struct sh_run *r, int64_t *first);

#endif
