/* The figures of a run for other programs: named numbers. Inside src/metrics; local. */
#ifndef SH_METRICS_VALUES_H
#define SH_METRICS_VALUES_H

#include "src/metrics/metrics.h"

#include <stddef.h>

/* A value and its name, such as "train/loss". */
struct sh_value {
    const char *tag;
    double value;
};

/* tensorboard.c: one file of events in `folder`, which is created; name and format are TensorBoard's own.
 *   step  in   done before; viewers no longer show events of later steps from an earlier file
 * Errors: SH_E_DATA. Events are flushed one by one: what is in the file is what has happened. */
struct sh_events;
sh_rc sh_events_open(const char *folder, int64_t step, struct sh_events **out);
/* Values that are not finite are written as such. */
sh_rc sh_events_write(struct sh_events *e, int64_t step, int n, const struct sh_value *values);
void sh_events_close(struct sh_events *e); /* NULL is fine */

/* openmetrics.c: the newest values in a file that a collector reads every few seconds. */
struct sh_exposition;
/* Replaces `path` at once, so that a path that cannot be written is found before the first step. Errors: SH_E_DATA. */
sh_rc sh_exposition_open(const char *path, const struct sh_metrics_labels *labels, struct sh_exposition **out);
enum sh_exposed {
    SH_EXPOSED_STEPS, /* from here on counters, which never fall while the process runs */
    SH_EXPOSED_TOKENS,
    SH_EXPOSED_SKIPPED,
    SH_EXPOSED_CHECKPOINTS,
    SH_EXPOSED_FAILED_CHECKPOINTS,
    SH_EXPOSED_ROLLBACKS,
    SH_EXPOSED_STEP, /* from here on gauges */
    SH_EXPOSED_STEP_TIMESTAMP,
    SH_EXPOSED_LOSS,
    SH_EXPOSED_GRAD_NORM,
    SH_EXPOSED_LR,
    SH_EXPOSED_LOSS_SCALE,
    SH_EXPOSED_SPEED,
    SH_EXPOSED_MFU,
    SH_EXPOSED_STEP_SECONDS,
    SH_EXPOSED_COMPUTE_SECONDS,
    SH_EXPOSED_COMM_SECONDS,
    SH_EXPOSED_OFFLOAD_SECONDS,
    SH_EXPOSED_OFFLOAD_READ,
    SH_EXPOSED_OFFLOAD_WRITTEN,
    SH_EXPOSED_DATA_SECONDS,
    SH_EXPOSED_RSS_BYTES,
    SH_EXPOSED_ARENA_BYTES,
    SH_EXPOSED_GPU_BYTES,
    SH_EXPOSED_GPU_WATTS,
    SH_EXPOSED_GPU_HERTZ,
    SH_EXPOSED_GPU_CELSIUS,
    SH_EXPOSED_GPUS_HELD,
    SH_EXPOSED_VALIDATION_LOSS,
    SH_EXPOSED_CHECKPOINT_STEP,
    SH_EXPOSED_CHECKPOINT_SECONDS,
    SH_EXPOSED_N
};
void sh_exposition_set(struct sh_exposition *e, enum sh_exposed what, double value);
void sh_exposition_add(struct sh_exposition *e, enum sh_exposed what, double value);
/* Replaces the file, unless it was replaced in the last SH_EXPOSITION_SECONDS and `now` is false. Errors: SH_E_DATA. */
enum { SH_EXPOSITION_SECONDS = 5 };
sh_rc sh_exposition_write(struct sh_exposition *e, bool now);
void sh_exposition_close(struct sh_exposition *e); /* NULL is fine */

/* others.c: report what happens in a run to both; a member that is NULL is not wanted. Errors: SH_E_DATA. */
struct sh_others {
    struct sh_events *events;
    struct sh_exposition *exposition;
};
sh_rc sh_others_step(struct sh_others *o, const struct sh_step_metrics *s);
sh_rc sh_others_validation(struct sh_others *o, int64_t step, const struct sh_validation_metrics *v);
sh_rc sh_others_checkpoint(struct sh_others *o, const struct sh_checkpoint_metrics *c);
sh_rc sh_others_count(struct sh_others *o, enum sh_exposed what);
sh_rc sh_others_finish(struct sh_others *o); /* complete the exposition */
void sh_others_close(struct sh_others *o);

#endif
