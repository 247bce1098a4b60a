/* Norms of parts of a model at log steps: metrics.norms. Rows are saved tensors, or blocks: all tensors whose names are
 * equal up to a layer's number. Squares are summed without rounding (src/base/number/exact.h), so neither the mesh nor
 * the strategy shows in a norm, as long as no tensor is cut otherwise.
 *
 * Cost, at log steps only: the gradients are read once and the parameters twice, on a GPU through its host; a rank's
 * part of the parameters is kept in the host's memory over the update, four bytes an element; and one reduction. */
#ifndef SH_MEASURE_NORMS_H
#define SH_MEASURE_NORMS_H

#include "src/metrics/metrics.h"
#include "src/run/measure/largest.h"

struct sh_run;

struct sh_norms {
    int rows;                 /* 0: none were measured yet */
    int *row_of;              /* [saved tensors] */
    const char **name;        /* [rows], owned */
    struct sh_exact *squares; /* [3][rows]: of gradients, parameters, updates; of this rank */
    double *norm;             /* [3][rows] of all ranks */
    float **before;           /* [units] what this rank writes of the parameters, as it was; inside a step only */
    float *piece;             /* inside a step only */
    double scale, seconds;
    struct sh_largest largest;
};

/* Refuse what cannot be measured. Local. Errors: SH_E_USAGE. */
sh_rc sh_norms_check(const struct sh_run *r);

/* Whether they are measured in the step that makes `step`. Local, the same on all ranks. */
bool sh_norms_due(const struct sh_run *r, int64_t step);

/* Before the update of such a step, whose micro-steps lie between begin and end of `largest`, and after it; in between
 * nothing else may come. With an update left out, those of updates are 0. After: collective.
 *   scale  loss scale that the gradients were computed with
 *   out    lent until the next step */
void sh_norms_before_update(struct sh_norms *n, struct sh_run *r, double scale);
sh_rc sh_norms_after_update(struct sh_norms *n, struct sh_run *r, struct sh_norm_metrics *out);

void sh_norms_close(struct sh_norms *n); /* local */

#endif
