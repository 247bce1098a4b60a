/* A predicted step in words and numbers. Local. */
#ifndef SH_COST_SAY_H
#define SH_COST_SAY_H

#include "src/cost/fail.h"
#include "src/cost/step.h"

#include <stdio.h>

/* What is asked of a step beside its time. */
struct sh_cost_job {
    int64_t tokens; /* of a step, over all ranks */
    int ranks;
    double flops_causal, flops_full; /* per token, forward and backward, without recomputation */
    double save_seconds;             /* that a save stops the training; 0: not known */
    double save_steps;               /* from one save to the next, as the run would do it; 0: it saves none */
};

/* Per token and second of all ranks, and utilization of the machine's peak. */
double sh_cost_tokens_per_second(const struct sh_cost_job *job, const struct sh_cost_step *step);
double sh_cost_mfu(const struct sh_cost_job *job, const struct sh_cost_step *step, const struct sh_machine *m,
                   enum sh_dtype act, double flops);

/* The table of scale: the step, its three columns, what limits it, what a faster part would bring, failures and cost where
 * the machine knows them. */
sh_rc sh_cost_say(const struct sh_cost_request *r, const struct sh_cost_job *job, const struct sh_cost_step *step,
                  FILE *out);

/* Failures of the whole job on that machine. */
struct sh_cost_failures sh_cost_failures_of(const struct sh_machine *m, const struct sh_cost_job *job);

#endif
