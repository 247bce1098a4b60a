/* End a run before its last step without losing anything: on a signal, or before the end of the job's time. Each rank
 * adds what it has heard to a sum that every step computes anyway, so a signal to one rank is enough, and all ranks
 * stop after the same step, or batch of a validation. Keeps progress.json, which tells a job script what to do next.
 * Order: open, { step, requests, decide ... saved, validated }, status, close. doc/faults.md is the user's view. */
#ifndef SH_WATCH_STOPPING_H
#define SH_WATCH_STOPPING_H

#include "src/job/job.h"
#include "src/base/err.h"
#include <stdbool.h>
#include <stdint.h>

struct sh_run;
struct sh_run_saved;

enum { SH_STOPPING_REQUESTS = SH_JOB_SIGNALS + 2 };

struct sh_stopping {
    struct sh_job_limit limit;   /* rank 0 decides by it */
    struct sh_job_record record; /* rank 0 */
    char *path;                  /* of progress.json; rank 0, else NULL */
    int64_t saved;               /* step of the newest checkpoint that this process knows; -1: none */
    int64_t step_ns;             /* when the last step began; 0: none has yet */
    double stall;                /* seconds since then that saves and validations took */
    bool asked;                  /* all ranks stop now */
    bool no_validation;          /* a validation would not end before the job does */
    char why[128];
};

/* Call it when the run is sure to start. Local; the caller agrees on the result. Errors: SH_E_USAGE: the job's end in
 * the environment is not a time; SH_E_DATA: progress.json cannot be written. */
sh_rc sh_stopping_open(struct sh_stopping *s, const struct sh_run *r);

/* Whether a signal has come while the run was planned and opened: the load may take minutes, and a load itself looks for
 * signals only on the rank that got one. Collective. Errors: SH_REQUEUE, said. */
sh_rc sh_stopping_before_load(const struct sh_run *r);

/* A step begins: the time since the last one, without saves and validations, is what a step takes. Local. */
void sh_stopping_step(struct sh_stopping *s);

/* Before each step and each batch of a validation: fill in what this rank has heard, 0 or 1 each; sum that over all
 * ranks, then decide by the sums. Local. */
void sh_stopping_requests(struct sh_stopping *s, const struct sh_run *r, double requests[SH_STOPPING_REQUESTS]);
void sh_stopping_decide(struct sh_stopping *s, const struct sh_run *r, const double sums[SH_STOPPING_REQUESTS]);

/* Note that a checkpoint is committed; call it on all ranks. Local. Errors: SH_E_DATA: progress.json cannot be
 * written. */
sh_rc sh_stopping_saved(struct sh_stopping *s, const struct sh_run_saved *saved);

/* Note a validation: of the newest step and whole, or cut off. Local. Errors: as above. */
sh_rc sh_stopping_validated(struct sh_stopping *s, int64_t step, double seconds, bool whole);

/* Whether the start before has left out the validation of the step that this start begins with. Local: rank 0 knows,
 * the others answer false. */
bool sh_stopping_owes_validation(const struct sh_stopping *s);

/* The status that the process ends with: SH_REQUEUE if it was asked to stop, or SH_E_USAGE if the configuration forbids
 * saving, because a new start would then repeat all the work; SH_OK if nobody asked. Collective, agreed. */
sh_rc sh_stopping_status(const struct sh_stopping *s, const struct sh_run *r);

void sh_stopping_close(struct sh_stopping *s, const struct sh_run *r, sh_rc rc); /* record how the run ended. Local */

#endif
