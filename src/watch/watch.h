/* Seeing a run: metrics for machines, a line for people, a trace for a viewer. Each is written by one rank unless said;
 * all functions are local, and a file that cannot be written is an error of the run (SH_E_DATA), not a silent loss. */
#ifndef SH_WATCH_WATCH_H
#define SH_WATCH_WATCH_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Where the time of a step went, in seconds; what is left of `step` is host work between the sections. */
struct sh_step_time {
    double step, compute, exposed_comm, data, checkpoint, checks;
};

/* How evenly the ranks work: seconds a step without waiting, as means since the last time they were gathered. */
struct sh_pace_metrics {
    double least, median, most;
    int slowest;             /* rank */
    const char *node;        /* that it is on; NULL: nothing was gathered */
};

struct sh_step_metrics {
    int64_t step;            /* steps done, this one included */
    double loss, grad_norm, lr;
    const char *skipped;     /* NULL, or why the update was skipped */
    int64_t tokens;          /* target tokens of this step over all ranks */
    int64_t tokens_seen;     /* since the start of training */
    double tokens_per_second;
    double flops_causal, flops_full; /* per token, forward and backward; attention counted as half or whole square */
    struct sh_step_time time;
    int64_t arena_bytes;     /* planned and allocated, of one rank */
    int64_t peak_rss_bytes;  /* largest over the ranks */
    int64_t gpu_used_bytes;  /* of a GPU, by all that run on it, largest over the ranks; 0: none is used */
    struct sh_pace_metrics pace;
};

struct sh_rollback_metrics {
    int64_t from, to;        /* steps */
    int64_t first, last;     /* samples of the run that are left out for good */
};

struct sh_checkpoint_metrics {
    int64_t step;            /* that it holds */
    const char *path;
    int64_t bytes;
    double seconds;          /* from the snapshot to the commit */
    double stall;            /* of them, those in which training stood still */
    double disk_seconds;     /* of them, those of writing the data and of fsync */
};

/* With what a process begins. */
struct sh_start_metrics {
    int64_t step;                /* done before it */
    const char *resumed_from;    /* a checkpoint, NULL */
    const char *parameters_from; /* one of which only the parameters were taken, NULL; both NULL: initial values */
    int ranks, replicate, shard;
};

/* metrics.jsonl: one object a line. Opened for appending, so that a resumed run goes on in the same file. A line that
 * cannot be written is kept as a failure, told by sh_metrics_result() when the ranks next agree. NULL, as on ranks that
 * do not write: nothing. */
struct sh_metrics;
sh_rc sh_metrics_open(const char *path, struct sh_metrics **out);
void sh_metrics_start(struct sh_metrics *m, const struct sh_start_metrics *s);
void sh_metrics_step(struct sh_metrics *m, const struct sh_step_metrics *s);
void sh_metrics_validation(struct sh_metrics *m, int64_t step, double loss, int64_t tokens, double seconds);
void sh_metrics_checkpoint(struct sh_metrics *m, const struct sh_checkpoint_metrics *c);
void sh_metrics_rollback(struct sh_metrics *m, const struct sh_rollback_metrics *r);
/* failures: in a row, this one included */
void sh_metrics_not_saved(struct sh_metrics *m, int64_t step, int failures, const char *reason);
sh_rc sh_metrics_result(const struct sh_metrics *m);
void sh_metrics_close(struct sh_metrics *m);

/* One line on standard error: on a terminal it is written over, elsewhere printed every log_freq steps. */
struct sh_progress {
    bool terminal;           /* write over the last line */
    bool open;               /* such a line is on the screen */
    int64_t total, log_freq;
};
void sh_progress_init(struct sh_progress *p, bool allowed, int64_t total, int64_t log_freq);
void sh_progress_step(struct sh_progress *p, const struct sh_step_metrics *s);
void sh_progress_break(struct sh_progress *p); /* before any other line is printed */

/* Chrome trace event file: opens in Perfetto and chrome://tracing. A process a rank, a row a stream. Each rank collects
 * its events; sh_trace_text() gives them as text, and the caller joins the ranks' texts between head and foot. */
struct sh_trace;
struct sh_trace *sh_trace_create(int rank, const char *host);
void sh_trace_destroy(struct sh_trace *t);
/* name (63 characters) and detail (79) are copied, cut where longer, with '?' for what JSON would have to escape.
 * row: 0, 1, ... with its name given once by sh_trace_row. */
void sh_trace_row(struct sh_trace *t, int row, const char *name);
void sh_trace_event(struct sh_trace *t, int row, const char *name, const char *detail, int64_t begin_ns,
                    int64_t end_ns);
/* What the newest event had to do at least: arithmetic operations and bytes of memory, for its "args". */
void sh_trace_cost(struct sh_trace *t, double flops, double bytes);
const char *sh_trace_text(struct sh_trace *t, int64_t origin_ns, int64_t *bytes);
extern const char sh_trace_head[], sh_trace_foot[];

#endif
