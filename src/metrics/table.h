/* The table of metrics: a row for each figure of a run, with its name in metrics.jsonl, in TensorBoard and in
 * OpenMetrics. All of these are written from it, and read.c reads metrics.jsonl with it. Inside src/metrics; local. */
#ifndef SH_METRICS_TABLE_H
#define SH_METRICS_TABLE_H

#include "src/metrics/metrics.h"

#include <jansson.h>
#include <stddef.h>

enum sh_metric_type {
    SH_METRIC_NONE,
    SH_METRIC_INT,
    SH_METRIC_WHOLE, /* int64_t */
    SH_METRIC_REAL,
    SH_METRIC_FLAG,
    SH_METRIC_TEXT, /* NULL is null; as a number, whether there is one */
    SH_METRIC_ONE,  /* no field: 1, to count events */
    SH_METRIC_NOW   /* no field: the time */
};

/* A field of the struct of an event. */
struct sh_metric_field {
    enum sh_metric_type type;
    size_t offset;
};

/* clang-format off */
struct sh_metric {
    enum sh_metrics_event event;           /* with which it is reported, and whose struct it is in */
    struct sh_metric_field value;
    struct sh_metric_field given;          /* (optional) the value is left out unless this is above 0, true or a text */
    bool finite;                           /* left out unless it is finite; others are null in JSON, NaN elsewhere */
    const char *in, *key;                  /* metrics.jsonl: (optional) the object around it, and its key; NULL: not there */
    const char *fixed;                     /* (optional) a text instead of a field */
    json_t *(*list)(const void *event);    /* (optional) makes the value instead of a field */
    const char *tag;                       /* TensorBoard; NULL: not there. The first word groups the charts */
    const char *name;                      /* OpenMetrics, without _total; NULL: not there */
    const char *unit;                      /* (optional) with which that name ends */
    const char *help;
    bool counter;                          /* of OpenMetrics: it adds up what this process did; others say where the run is */
    double base;                           /* (optional) the value in the base unit that OpenMetrics requires */
};
/* clang-format on */

/* In the order in which they are written. */
extern const struct sh_metric sh_metric_table[];
extern const int sh_metric_rows;

/* Whether the event has the value; a loss that is not finite is a fact that a chart must show. */
bool sh_metric_is_given(const struct sh_metric *m, const void *event);
double sh_metric_number(const struct sh_metric *m, const void *event);
/* The value for metrics.jsonl; NULL: out of memory. */
json_t *sh_metric_json(const struct sh_metric *m, const void *event);

/* tensorboard.c: one file of events in `folder`, which is created; name and format are TensorBoard's own.
 *   step  in   done before; viewers no longer show events of later steps from an earlier file
 * Errors: SH_E_DATA. Events are flushed one by one: what is in the file is what has happened. */
struct sh_events;
sh_rc sh_events_open(const char *folder, int64_t step, struct sh_events **out);
/* Values that are not finite are written as such. An event without figures, such as a rollback, is not written. */
sh_rc sh_events_write(struct sh_events *e, enum sh_metrics_event kind, const void *event);
void sh_events_close(struct sh_events *e); /* NULL is fine */

/* openmetrics.c: the newest values in a file that a collector reads every few seconds. */
enum { SH_EXPOSITION_SECONDS = 5 };
struct sh_exposition;
/* Replaces `path` at once, so that a path that cannot be written is found before the first step. Errors: SH_E_DATA. */
sh_rc sh_exposition_open(const char *path, const struct sh_metrics_labels *labels, struct sh_exposition **out);
/* Replaces the file, unless it was replaced in the last SH_EXPOSITION_SECONDS. Errors: SH_E_DATA. */
sh_rc sh_exposition_put(struct sh_exposition *e, enum sh_metrics_event kind, const void *event);
sh_rc sh_exposition_finish(struct sh_exposition *e); /* replace it with the last figures */
void sh_exposition_close(struct sh_exposition *e);   /* NULL is fine */

#endif
