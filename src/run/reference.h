/* What the reference of preference optimization makes of each answer: the log-probability of its targets, one number
 * each. The reference is the model with which the run begins; its numbers are computed once, before the first step, by
 * the EVAL section, whose operations and shapes are those of a micro-step: the first steps find exactly what they
 * compute themselves. Or it is another model, whose numbers an evaluation has written. Either way they are kept in memory and in a
 * file of the run's folder, from which a resumed run reads them. */
#ifndef SH_RUN_REFERENCE_H
#define SH_RUN_REFERENCE_H

#include "io/data/data.h"
#include "kernels/op.h"
#include "src/metrics/metrics.h"

struct sh_run;
struct sh_feed;

struct sh_reference {
    double *value; /* [documents] by the number of the document in its set; no bit is set if it has none, so 0 is -0 */
    int64_t documents;
    int loss;           /* enum sh_cfg_loss_type */
    bool needed;        /* by the loss; if not, all numbers stay 0 */
    bool labelled;      /* answers are single, with labels */
    bool numbered;      /* the numbers are those of the data, and labels are 1 */
    int32_t *label;     /* [sequences, T] of samples that were read: at the first place of each document, else 0 */
    double *places;     /* [sequences, T] of the samples that were read: at the first place of each document, else 0 */
    int64_t *document;  /* [sequences, T] scratch: which document begins at a place, -1: none */
    double least, most; /* of the values that a head has given to answers since sh_reference_forget() */
};

/* All 0. loss: enum sh_cfg_loss_type. Local. */
struct sh_reference *sh_reference_create(const struct sh_data *d, int loss, int64_t sequences, int seq_len);
void sh_reference_free(struct sh_reference *ref); /* NULL is fine */

/* Fill `places` and `label` for samples [first, first + n). Local. Errors: those of sh_data_beginnings(). */
sh_rc sh_reference_place(struct sh_reference *ref, const struct sh_data *d, int64_t first, int64_t n);

/* Compute the numbers, or take those of objective.reference_path, and write the run's file, or read that if the run goes on;
 * nothing if none is needed. Collective, after the state is there and before the first step. validation: the set is that of
 * validation, with a file and a key of its own.
 * Errors, agreed: SH_E_DATA: a file is missing, damaged, of other data, or without the number of an answer of the rows; the key
 * has changed, and its file has other numbers than those with which the run began. */
sh_rc sh_reference_start(struct sh_run *r, struct sh_feed *f, bool validation);

/* Compute the numbers with a run opened for SH_TO_REFER, and write them to `path`, for a run with objective.reference_path.
 * Collective. Errors, agreed: SH_E_NUMERIC: one is not finite; SH_E_USAGE: the loss has no reference; those of the file. */
sh_rc sh_reference_write(struct sh_run *r, struct sh_feed *f, const char *path);

/* Whether a head scores pairs of answers. */
bool sh_reference_scores(const struct sh_reference *ref);

/* Extremes, unlike sums, are not joined by the program: after each section the host takes those of the answers of this
 * rank's last `micro_steps` micro-steps; a stage before the last has none. A value that is not a number is left out.
 * Nothing if no head scores. Local. */
void sh_reference_forget(struct sh_reference *ref); /* NULL is fine, as below */
void sh_reference_take(struct sh_reference *ref, const struct sh_run *r, int micro_steps);

/* The means over pairs, or over single answers, of PAIR_LOSS's numbers. Local. */
struct sh_pair_metrics sh_reference_metrics(const struct sh_reference *ref, const double sums[SH_PAIR_ALL],
                                            int64_t answers);

#endif
