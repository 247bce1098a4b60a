/* A run's metrics.jsonl: a line of JSON for each start, step, validation and checkpoint. The same figures also go to
 * TensorBoard and OpenMetrics, if these are asked for. All are written from the table (table.h). */
#include "src/metrics/metrics.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/metrics/table.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A metrics file that cannot be written (a full disk) does not end the training at once: the first failure is kept,
 * later lines are dropped, and the end of the run reports it through sh_metrics_result(). */
struct sh_metrics {
    FILE *file;
    char *path;
    char *failure;            /* of the first line that could not be written, or NULL */
    sh_rc failed;             /* its class */
    struct sh_events *events; /* NULL: not wanted; like the next */
    struct sh_exposition *exposition;
};

/* Appends: a resumed run continues in the file of the first one. */
sh_rc sh_metrics_open(const char *path, struct sh_metrics **out)
{
    FILE *f;

    SH_TRY(sh_open_output(path, "a", &f));
    *out = sh_calloc(1, sizeof **out);
    (*out)->file = f;
    (*out)->path = sh_strdup(path);
    return SH_OK;
}

/* Behind the begin of a line that a killed job has left, the next one goes on in the same line. */
static int recoveries_in(const char *line)
{
    static const char start[] = "{\"event\":\"start\"", from[] = "\"resumed_from\":\"" SH_METRICS_FROM_MEMORY "\"";
    const char *next, *found;
    int n = 0;

    for (const char *at = strstr(line, start); at; at = next) {
        next = strstr(at + 1, start);
        found = strstr(at, from);
        n += found && (!next || found < next);
    }
    return n;
}

int64_t sh_metrics_recoveries(const struct sh_metrics *m)
{
    FILE *in = fopen(m->path, "r");
    char *line = NULL;
    size_t room = 0;
    int64_t n = 0;

    while (in && getline(&line, &room, in) > 0)
        n += recoveries_in(line);
    free(line);
    if (in)
        fclose(in);
    return n;
}

/* NULL is fine. Lines are flushed already. */
void sh_metrics_close(struct sh_metrics *m)
{
    if (!m)
        return;
    fclose(m->file);
    sh_events_close(m->events);
    sh_exposition_close(m->exposition);
    free(m->path);
    free(m->failure);
    free(m);
}

/* The first failure is reported: later ones have the same cause. */
sh_rc sh_metrics_result(const struct sh_metrics *m)
{
    return m && m->failure ? sh_fail(m->failed, "%s", m->failure) : SH_OK;
}

sh_rc sh_metrics_tensorboard(struct sh_metrics *m, const char *folder, int64_t step)
{
    return sh_events_open(folder, step, &m->events);
}

sh_rc sh_metrics_openmetrics(struct sh_metrics *m, const char *path, const struct sh_metrics_labels *labels)
{
    return sh_exposition_open(path, labels, &m->exposition);
}

/* The first failure to write, here or for other programs, is kept for the end of the run. */
static void keep(struct sh_metrics *m, sh_rc rc)
{
    if (rc == SH_OK)
        return;
    if (!m->failure) {
        m->failed = rc;
        m->failure = sh_strdup(sh_error_text());
    }
    sh_error_clear();
}

/* NULL is fine: only rank 0 has metrics. */
void sh_metrics_finish(struct sh_metrics *m)
{
    if (m && m->exposition)
        keep(m, sh_exposition_finish(m->exposition));
}

static sh_rc put(const struct sh_metrics *m, const char *text)
{
    if (!text)
        return sh_fail(SH_E_MEMORY, "out of memory: no room for a line of %s", m->path);
    if (fprintf(m->file, "%s\n", text) < 0 || fflush(m->file) != 0)
        return sh_fail(SH_E_DATA, "write %s: %s", m->path, strerror(errno));
    return SH_OK;
}

/* False: out of memory. */
static bool add(json_t *line, const struct sh_metric *row, const void *event)
{
    json_t *object = row->in ? json_object_get(line, row->in) : line;

    if (!object && json_object_set_new(line, row->in, object = json_object()) != 0)
        return false;
    return json_object_set_new(object, row->key, sh_metric_json(row, event)) == 0;
}

/* The keys that every line of a kind has come first. NULL: out of memory; freed with free(). */
static char *make_line(enum sh_metrics_event kind, const void *event)
{
    json_t *line = json_object();
    char *text = NULL;
    bool fits = true;

    for (int optional = 0; optional < 2; optional++)
        for (int i = 0; i < sh_metric_rows; i++) {
            const struct sh_metric *row = &sh_metric_table[i];

            if (row->key && row->event == kind && (row->given.type != SH_METRIC_NONE) == optional &&
                sh_metric_is_given(row, event))
                fits = fits && add(line, row, event);
        }
    if (fits)
        text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(line);
    return text;
}

/* Flushed line by line: what is in the file is what has happened. After a lost line nothing more is written to it. */
static void write_event(struct sh_metrics *m, enum sh_metrics_event kind, const void *event)
{
    char *text;
    sh_rc rc = SH_OK;

    if (!m)
        return;
    if (!m->failure) {
        text = make_line(kind, event);
        keep(m, put(m, text));
        free(text);
    }
    if (m->events)
        rc = sh_events_write(m->events, kind, event);
    if (rc == SH_OK && m->exposition)
        rc = sh_exposition_put(m->exposition, kind, event);
    keep(m, rc);
}

/* Model FLOPs utilization: achieved over peak FLOP/s of all ranks. 0 if the peak is not known; then it is not
 * printed. */
double sh_mfu(double tokens_per_second, double flops, int ranks, double peak_tflops)
{
    return peak_tflops > 0 && ranks > 0 ? tokens_per_second * flops / (ranks * peak_tflops * 1e12) : 0;
}

void sh_metrics_start(struct sh_metrics *m, const struct sh_start_metrics *s)
{
    write_event(m, SH_METRICS_START, s);
}

void sh_metrics_step(struct sh_metrics *m, const struct sh_step_metrics *s)
{
    write_event(m, SH_METRICS_STEP, s);
}

/* Nats per token times tokens are the nats of the text; divided by ln 2 they are bits, which do not depend on the
 * tokenizer. */
void sh_metrics_validation(struct sh_metrics *m, const struct sh_validation_metrics *v)
{
    struct sh_validation_metrics full = *v;

    full.bits_per_byte = v->loss * (double)v->tokens / log(2.0) / (double)v->bytes;
    write_event(m, SH_METRICS_VALIDATION, &full);
}

/* Two rates: over the whole save, and over the time in which bytes went to the disk. Their ratio tells whether the file
 * system or the rest of the save is the bottleneck. */
void sh_metrics_checkpoint(struct sh_metrics *m, const struct sh_checkpoint_metrics *c)
{
    struct sh_checkpoint_metrics full = *c;

    full.gb_per_second = (double)c->bytes / c->seconds / 1e9;
    full.disk_gb_per_second = (double)c->bytes / c->disk_seconds / 1e9;
    full.disk_share = c->disk_seconds / c->seconds;
    write_event(m, SH_METRICS_CHECKPOINT, &full);
}

void sh_metrics_not_saved(struct sh_metrics *m, const struct sh_not_saved_metrics *n)
{
    write_event(m, SH_METRICS_NOT_SAVED, n);
}

/* The range of samples that the run will not see again: a reader of the losses finds the gap here. */
void sh_metrics_rollback(struct sh_metrics *m, const struct sh_rollback_metrics *r)
{
    write_event(m, SH_METRICS_ROLLBACK, r);
}
