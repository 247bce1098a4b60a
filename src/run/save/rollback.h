/* Go back to a checkpoint within a running job, when a spike shows that the data or the numbers of the last steps did
 * harm. */
#ifndef SH_SAVE_ROLLBACK_H
#define SH_SAVE_ROLLBACK_H

#include "src/base/err.h"
#include <stdint.h>

struct sh_run;

/* Load what a new start of this job would load: the newest valid checkpoint, or if there is none, what the run began
 * from. Step, tokens and updates return to their values of that moment. r->samples stays where it is, so the samples
 * from *first up to it, those of the undone steps including the bad one, are left out for good. The result is the same
 * on every mesh and in every repetition. No checkpoint may be under way. Collective, agreed. Errors: as when starting:
 * SH_E_DATA.
 * Source: Chowdhery et al., PaLM, arXiv:2204.02311, section 5.1. */
sh_rc sh_rollback(struct sh_run *r, int64_t *first);

#endif
