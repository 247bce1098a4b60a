/* Checkpoints while training goes on: when one is due it is saved, in front of the training or behind it, and told of.
 * All functions are collective, and agreed. */
#ifndef SH_RUN_SAVING_H
#define SH_RUN_SAVING_H

#include "src/optim/optim.h"
#include "src/run/run.h"
#include "src/watch/watch.h"

struct sh_saving {
    struct sh_run *r;
    const struct sh_guard *guard;  /* its state goes into checkpoints */
    struct sh_metrics *metrics;    /* rank 0 only, else NULL */
    struct sh_progress *progress;
    double seconds;                /* in which training stood still; the caller sets it back */
};

/* Save where the run stands, after the checkpoint that is being written if there is one. */
sh_rc sh_saving_save(struct sh_saving *s);

/* Go on with the checkpoint that is being written, if there is one; with `wait` to its end. */
sh_rc sh_saving_poll(struct sh_saving *s, bool wait);

#endif
