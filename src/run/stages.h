/* The stages of a pipeline when a run opens: whether their programs fit together, and what each takes. */
#ifndef SH_RUN_STAGES_H
#define SH_RUN_STAGES_H

#include "src/base/err.h"

struct sh_pipe_stages;
struct sh_run;

/* Check that the ranks of each stage have planned the same collectives, that all ranks have dealt the same blocks to the
 * stages, and that the messages of all stages meet and cannot wait for each other for ever. Collective over the job, once
 * r->mesh is open. Errors: SH_E_BUG, with the stage, the micro-step and the operation of a message. */
sh_rc sh_stages_agree(const struct sh_run *r);

/* For each stage the largest arena of its ranks, and what it has chosen to fit its limit; NULL without stages. Collective over the job.
 *   bytes  out  rows of [stages], the first of which has the bytes; freed by the caller */
sh_rc sh_stages_weigh(const struct sh_run *r, double **bytes);

/* The programs of all stages, each with what it has chosen by r->stage_bytes: a rank of other threads would choose otherwise. *out is
 * freed by the caller, whatever is returned; empty without stages. Local. Errors: those of the passes. */
sh_rc sh_stages_build(const struct sh_run *r, struct sh_pipe_stages *out);

/* Log how many blocks each stage has, with those of its chunks added, its arena, and what it recomputes to fit a
 * budget. Local. */
void sh_stages_say(const struct sh_run *r);

#endif
