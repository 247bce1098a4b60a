/* Checkpoints while training goes on: when one is due it is saved, synchronously or in the background, and reported.
 * A save that storage makes fail is named in a warning and a line of the metrics, and training goes on: the checkpoints
 * before are untouched, and the next one that is due is another try. More than checkpoint.max_failures in a row end the
 * job, and so does a state that must be saved and cannot be, at the second try either.
 *
 * All functions are collective, and agreed: all ranks go on or none. */
#ifndef SH_RUN_SAVING_H
#define SH_RUN_SAVING_H

#include "src/optim/optim.h"
#include "src/base/err.h"
#include <stdbool.h>
#include <stdint.h>
#include "src/run/stopping.h"
#include "src/metrics/metrics.h"

struct sh_run;

#define SH_SAVING_SCALE "; loss_scale "

/* clang-format off */
struct sh_saving {
    struct sh_run *r;
    struct sh_guard *guard;        /* its state goes into checkpoints, and it hears of them */
    const struct sh_loss_scale *loss_scale; /* a dynamic one goes with that, behind SH_SAVING_SCALE */
    struct sh_stopping *stopping;  /* hears of what is committed */
    struct sh_metrics *metrics;    /* rank 0 only, else NULL */
    struct sh_progress *progress;
    double seconds;                /* in which training stood still; the caller sets it back */
    double look_seconds;           /* in which the state was looked at before the save; set by the caller */
    int failures;                  /* in a row */
    /* Of the checkpoint begun last. */
    int64_t step;
    bool must, again;              /* it must be saved; this is its second try */
    bool lost;                     /* it failed, and the state was not there to be saved */
};
/* clang-format on */

/* Save where the run stands, after the checkpoint that is being written if there is one.
 *   must  in  no later checkpoint can stand in for this one, as at the end of a run: it is not left out when the one
 *             before is still being written, and tried again when it fails; poll to the end to know how it went
 * Errors: SH_E_DATA (SH_E_MEMORY): it had to be saved and was not, or one failure too many; others as sh_ckpt_save. */
sh_rc sh_saving_save(struct sh_saving *s, bool must);

/* Go on with the checkpoint that is being written, if there is one; with `wait` to its end. Errors: as above. */
sh_rc sh_saving_poll(struct sh_saving *s, bool wait);

#endif
