/* What the files of a training run share. One run per process; only sh_run_train() is called from elsewhere. */
#ifndef SH_RUN_TRAIN_H
#define SH_RUN_TRAIN_H

#include "src/config/read/batches.h"
#include "src/model/model.h"
#include "src/run/feed.h"
#include "src/run/measure/norms.h"
#include "src/run/save/rollback.h"
#include "src/run/save/saving.h"
#include "src/run/watch/fingerprint.h"
#include "src/run/watch/replay.h"
#include "src/run/watch/routers.h"
#include "src/run/watch/stopping.h"
#include "src/run/watch/stragglers.h"
#include "src/run/watch/tracing.h"

struct sh_train {
    struct sh_run *r;
    struct sh_feed feed, validation;
    struct sh_lr lr;
    struct sh_guard guard;
    struct sh_loss_scale loss_scale;
    struct sh_metrics *metrics; /* rank 0 only, else NULL */
    struct sh_progress progress;
    struct sh_tracing tracing;
    struct sh_fingerprint fingerprint;
    struct sh_norms norms;
    struct sh_stopping stopping;
    struct sh_stragglers stragglers;
    struct sh_routers routers;
    struct sh_replay replay;
    bool undo;        /* the step just done was bad, and the run must go back */
    int64_t compared; /* step after which the replicas were found equal */
    struct sh_model_flops flops;
    struct sh_saving saving;
    struct sh_batches lengths; /* of sequences, by the step; no phases: as the program has them */
    struct sh_batches batches; /* sequences of all steps */
    int64_t global_batch;      /* and of this one */
    int64_t targets;           /* of the step over all ranks, only those that count */
    int64_t counted;           /* what the objective divides by: targets, pairs, or single answers; or what targets
                                           weigh, in units of 2^-24 */
    int64_t own_units;         /* what this rank's targets weigh, likewise */
    int64_t own_targets, read_targets;  /* the same for this rank, as counted before the step and as read in it */
    double data_seconds, check_seconds; /* since the last step's metrics */
    int64_t last_step_ns;               /* when the last step ended; 0: none has */
    int64_t rss, gpu_used;              /* bytes, largest over the ranks */
    char *hosts;                        /* [world][SH_METRICS_HOST] names; rank 0 only, else NULL */
    int cores;                          /* that the ranks of this node together may run on */
};

/* Fill t from the configuration of t->r; opens nothing. */
void sh_train_set_up(struct sh_train *t);

/* Open the token files. Not collective: the ranks have yet to agree. */
sh_rc sh_train_open_data(struct sh_train *t);

/* Fill t->hosts and t->cores. Collective. */
sh_rc sh_train_gather_nodes(struct sh_train *t);

/* Open metrics and the record of the run, and write config.yaml. Call it only when the run is sure to start, because a
 * refused run must leave no trace in the folder. Not collective: the ranks have yet to agree. */
sh_rc sh_train_open_outputs(struct sh_train *t);

/* One training step and its line of metrics; collective. Afterwards t->stopping.asked says that the step was not begun,
 * t->undo that the run has to go back. */
sh_rc sh_train_step(struct sh_train *t);

/* Run the first micro-step of the step just done again, on this rank and on others. Collective, agreed. Errors:
 * SH_E_REPLICA. */
sh_rc sh_train_replay(struct sh_train *t);

/* Ask all ranks between two steps whether to stop, as each step does: sets t->stopping.asked. Collective. */
sh_rc sh_train_ask(struct sh_train *t);

/* For the line about a signal: the run is in this step, and saves after it. Local. */
void sh_train_say_doing(const struct sh_train *t, int64_t step);

/* Whether something is due after a step that stays: a comparison of replicas, a validation, a save; sh_train_looks():
 * whether any of these, norms, a claim, a replay, or the end of the run, looks at the state that the step leaves. Local, the same on all
 * ranks. */
bool sh_train_compares(const struct sh_train *t, int64_t step);
bool sh_train_validates(const struct sh_train *t, int64_t step);
bool sh_train_saves(const struct sh_train *t, int64_t step);
bool sh_train_looks(const struct sh_train *t, int64_t step);

/* Whether something is due after this step: every `interval` steps (never if 0), and after the last. */
static inline bool sh_train_due(int64_t step, int64_t interval, int64_t last)
{
    return step == last || (interval > 0 && step % interval == 0);
}

#endif
