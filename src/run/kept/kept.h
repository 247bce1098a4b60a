/* Near checkpoints of a run: copies of the state in memory that a keeper holds (src/near/keep.h), so that a start after
 * a rank's death loses a step instead of an interval. doc/survive.md is the user's view.
 *
 * A generation is what all ranks have copied after one step. It is safe once the sum of the next step says that all ranks
 * have it; the slot of the newest safe one is never written. Order: arrive, open, load, take, { forget | due, write ...
 * share, decide }, close. */
#ifndef SH_KEPT_KEPT_H
#define SH_KEPT_KEPT_H

#include "io/checkpoint/checkpoint.h"

struct sh_kept;
struct sh_run;
struct sh_topology;

/* Reach the keeper, and be present there: from here on this process ends with class 5 when another rank of its node dies.
 * First of all that a run does, since ranks of an earlier start, which the keeper ends, may hold memory that this one
 * needs. r->kept stays NULL if checkpoint.near_interval is 0. Collective, agreed. Errors: SH_E_USAGE: ranks of a node
 * have different keepers; SH_E_COMM: there is none, or one has ended as the ranks came to it. */
sh_rc sh_kept_arrive(struct sh_run *r, const struct sh_topology *at);

/* Know the own slots and the partner. Collective, agreed. Errors: SH_E_USAGE: nodes have different numbers of ranks. */
sh_rc sh_kept_open(struct sh_run *r);

/* Load the newest generation of a step after `step` that is covered and whole, whatever mesh it is from. Each one that
 * is passed over costs a line. *loaded: whether there was one; then the meta data are the caller's. Collective, agreed. */
sh_rc sh_kept_load(struct sh_run *r, int64_t step, struct sh_ckpt_meta *meta, bool *loaded);

/* After the state was loaded: have slots, and empty all that are not of its generation. Collective, agreed. Errors:
 * SH_E_MEMORY: the keeper cannot reserve them. */
sh_rc sh_kept_take(struct sh_run *r);

/* Empty all slots: the run goes back to a file. Collective. */
void sh_kept_forget(struct sh_run *r);

/* Numbers of this rank are wrong, those of checkpoints up to step `good` are not: the job's script leaves its node out. Local. */
void sh_kept_accuse(const struct sh_run *r, int64_t good);

/* Whether a generation is due after this step. Local, the same on all ranks. */
bool sh_kept_due(const struct sh_run *r, int64_t step);

/* Copy the state into a slot; no update may be pending. Collective when a process or a rollback does it first. */
sh_rc sh_kept_write(struct sh_run *r, const char *guard);

/* What this rank adds to the sum of a step: 1 if it has the newest generation; and what follows from the sum. Local. */
double sh_kept_share(const struct sh_run *r);
void sh_kept_decide(struct sh_run *r, double sum);

/* Seconds that copies took since the last call. Local. */
double sh_kept_take_seconds(struct sh_run *r);

/* What this process began with, if that was a generation: seconds from its end to the load; < 0: it was none. Local. */
double sh_kept_seconds_down(const struct sh_run *r);

/* The ranks leave in order. Local. */
void sh_kept_close(struct sh_run *r);

#endif
