/* Checkpoints during training: one that is due is saved, synchronously or in the background, and reported. If a save
 * fails because of storage, a warning and a line of the metrics say so, and training continues: earlier checkpoints are
 * untouched, and the next one that is due is another try. More than checkpoint.max_failures failures in a row end the
 * job, and so does a state that must be saved and fails at the second try too.
 *
 * All functions are collective, and agreed: either all ranks continue or none does. */
#ifndef SH_SAVE_SAVING_H
#define SH_SAVE_SAVING_H

#include "src/optim/optim.h"
#include "src/base/err.h"
#include <stdbool.h>
#include <stdint.h>
#include "src/metrics/metrics.h"
#include "src/run/watch/stopping.h"

struct sh_run;

/* clang-format off */
struct sh_saving {
    struct sh_run *r;
    struct sh_guard *guard;        /* its state goes into checkpoints, and it is told of them */
    const struct sh_loss_scale *loss_scale; /* a dynamic one is stored with that, after SH_GUARD_SCALE */
    struct sh_stopping *stopping;  /* is told of committed checkpoints */
    struct sh_metrics *metrics;    /* rank 0 only, else NULL */
    struct sh_progress *progress;
    double seconds;                /* that training stood still; the caller resets it */
    double look_seconds;           /* spent on checking the state before the save; set by the caller */
    int failures;                  /* in a row */
    /* The checkpoint that was started last. */
    int64_t step;
    bool must, again;              /* it must be saved; this is its second try */
    bool lost;                     /* it failed because the state itself was lost */
};
/* clang-format on */

/* Save the current state of the run, after the checkpoint that is being written, if there is one.
 *   must  in  no later checkpoint can stand in for this one, as at the end of a run: it is not skipped while the one
 *             before is still being written, and it is tried again if it fails; poll to the end to learn the outcome
 * Errors: SH_E_DATA (SH_E_MEMORY): it had to be saved and was not, or there was one failure too many; others as for
 * sh_ckpt_save. */
sh_rc sh_saving_save(struct sh_saving *s, bool must);

/* The text of guard and loss scale as a checkpoint of this step has it. Local. */
enum { SH_SAVING_GUARD = 256 };
void sh_saving_guard(const struct sh_saving *s, char text[SH_SAVING_GUARD]);

/* Continue the checkpoint that is being written, if there is one; with `wait`, to its end. Errors: as above. */
sh_rc sh_saving_poll(struct sh_saving *s, bool wait);

#endif
