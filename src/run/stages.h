/* The stages of a pipeline when a run opens: whether their programs fit together. */
#ifndef SH_RUN_STAGES_H
#define SH_RUN_STAGES_H

#include "src/base/err.h"

struct sh_run;

/* Check that the ranks of each stage have planned the same collectives, and that the messages of all stages meet and cannot
 * wait for each other for ever. Collective over the job, once r->mesh is open.
 * Errors: SH_E_BUG, with the stage, the micro-step and the operation of a message. */
sh_rc sh_stages_agree(const struct sh_run *r);

#endif
