/* A predicted step in words and numbers. Local. */
#ifndef SH_PREDICT_SAY_H
#define SH_PREDICT_SAY_H

#include "src/base/string/str.h"
#include "src/cost/step.h"
#include "src/tools/predict/fail.h"

#include <stdio.h>

/* Facts about a job, in addition to the time of its step. */
struct sh_predict_job {
    int64_t tokens; /* per step, over all ranks */
    int ranks;
    double flops_causal, flops_full; /* per token, forward and backward, without recomputation */
    double save_seconds;             /* that a save stops training; 0: not known */
    double save_steps;               /* from one save to the next in this run; 0: it saves none */
    double near_steps;               /* from one near checkpoint to the next; 0: there are none */
    double near_copy, near_load;     /* seconds of a copy, with its way to another node; of a load from memory */
    double near_silence;             /* seconds until a lost node is known; 0: there are no copies on other nodes */
};

/* A few digits, in the unit that reads best; returns text. */
const char *sh_predict_seconds(double seconds, char text[SH_STR_SHORT]);

/* Tokens per second over all ranks, and utilization of the peak of the machine. */
double sh_predict_tokens_per_second(const struct sh_predict_job *job, const struct sh_cost_step *step);
double sh_predict_mfu(const struct sh_predict_job *job, const struct sh_cost_step *step, const struct sh_machine *m,
                      enum sh_dtype act, double flops);

/* Print the answer in four lines: the time of a step and its tokens/s, MFU, `memory`, and what limits the step. */
sh_rc sh_predict_say_answer(const struct sh_cost_request *r, const struct sh_predict_job *job,
                            const struct sh_cost_step *step, const char *memory, FILE *out);

/* Print the prediction: the step, its table of three columns, what limits it, what a faster part would gain, and
 * failures and cost if the machine gives them. */
sh_rc sh_predict_say(const struct sh_cost_request *r, const struct sh_predict_job *job, const struct sh_cost_step *step,
                     FILE *out);

/* The failures of the whole job on that machine; a start from memory after one; the share of the time that goes forward:
 * with the near checkpoints of the job if it copies them to other nodes, else with the best interval of saves, and 1 if
 * failures are not known. */
struct sh_predict_failures sh_predict_failures_of(const struct sh_machine *m, const struct sh_predict_job *job);
struct sh_predict_recovery sh_predict_recovery_of(const struct sh_machine *m, const struct sh_predict_job *job,
                                                  double step_seconds);
double sh_predict_job_goodput(const struct sh_machine *m, const struct sh_predict_job *job, double step_seconds);

/* What it takes to train on `tokens` tokens, failures included. text: "182 d 3 h, 4.47 M device-hours", and with a
 * price ", cost 11.2 M"; returns text. */
struct sh_predict_spent {
    double seconds, device_hours;
};
enum { SH_PREDICT_SPENT_TEXT = 128 };
struct sh_predict_spent sh_predict_spend(const struct sh_machine *m, const struct sh_predict_job *job,
                                         double tokens_per_second, double tokens);
const char *sh_predict_spent_text(const struct sh_machine *m, const struct sh_predict_spent *spent,
                                  char text[SH_PREDICT_SPENT_TEXT]);

#endif
