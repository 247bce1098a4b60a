/* The newest figures of a run as a file of OpenMetrics text, for a collector of files such as node_exporter's.
 * Source: the OpenMetrics 1.0 specification; names of metrics end in their unit, counters in _total. */
#include "src/metrics/table.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/time.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a row of the table. `known`, not NAN, marks the values that exist: a loss that is NaN is reported as NaN. */
struct sample {
    double value; /* of a counter, 0 at first */
    bool known;   /* counters are, from the start */
};

struct sh_exposition {
    char *path, *labels;
    struct sample *samples; /* [sh_metric_rows] */
    int64_t written_ns;
};

/* Write a label in quotes; three characters are escaped. */
static void write_label(FILE *out, const char *name, const char *text)
{
    fprintf(out, "%s=\"", name);
    for (; *text; text++)
        if (*text == '\n')
            fputs("\\n", out);
        else
            fprintf(out, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    fputs("\"", out);
}

/* NULL: out of memory; freed with free(). */
static char *make_labels(const struct sh_metrics_labels *l)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    if (!out)
        return NULL;
    write_label(out, "job", l->job);
    fputc(',', out);
    write_label(out, "run", l->run);
    fputc(',', out);
    write_label(out, "host", l->host);
    fprintf(out, ",rank=\"%d\"", l->rank);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* Write numbers that are not finite by their names. */
static void write_number(FILE *out, double v)
{
    if (isnan(v))
        fputs("NaN", out);
    else if (isinf(v))
        fputs(v > 0 ? "+Inf" : "-Inf", out);
    else
        fprintf(out, "%.17g", v);
}

/* TYPE, UNIT and HELP before each value, in the order that the format requires. */
static void write_row(FILE *out, const struct sh_metric *row, const char *labels, double value)
{
    fprintf(out, "# TYPE %s %s\n", row->name, row->counter ? "counter" : "gauge");
    if (row->unit)
        fprintf(out, "# UNIT %s %s\n", row->name, row->unit);
    fprintf(out, "# HELP %s %s\n", row->name, row->help);
    fprintf(out, "%s%s{%s} ", row->name, row->counter ? "_total" : "", labels);
    write_number(out, value);
    fputc('\n', out);
}

/* Counters first. Replaced atomically: a collector never reads half a file. */
sh_rc sh_exposition_finish(struct sh_exposition *e)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    sh_rc rc;

    e->written_ns = sh_now_ns();
    if (!out)
        return sh_fail(SH_E_MEMORY, "%s: %s", e->path, strerror(errno));
    for (int gauges = 0; gauges < 2; gauges++)
        for (int i = 0; i < sh_metric_rows; i++)
            if (e->samples[i].known && sh_metric_table[i].counter != gauges)
                write_row(out, &sh_metric_table[i], e->labels, e->samples[i].value);
    fputs("# EOF\n", out);
    if (fclose(out) != 0)
        rc = sh_fail(SH_E_MEMORY, "out of memory: no room for %s", e->path);
    else
        rc = sh_write_file_atomic(e->path, text, n);
    free(text);
    return rc;
}

/* Written once at the start with counters at 0, so that a rate over the first minutes is right. */
sh_rc sh_exposition_open(const char *path, const struct sh_metrics_labels *labels, struct sh_exposition **out)
{
    char *text = make_labels(labels);
    struct sh_exposition *e;
    sh_rc rc;

    if (!text)
        return sh_fail(SH_E_MEMORY, "out of memory: no room for the labels of %s", path);
    e = sh_calloc(1, sizeof *e);
    *e = (struct sh_exposition){
        .path = sh_strdup(path), .labels = text, .samples = sh_calloc((size_t)sh_metric_rows, sizeof *e->samples)};
    for (int i = 0; i < sh_metric_rows; i++)
        e->samples[i].known = sh_metric_table[i].counter;
    rc = sh_exposition_finish(e);
    if (rc == SH_OK)
        *out = e;
    else
        sh_exposition_close(e);
    return rc;
}

/* A start has a count of earlier processes, which must not seem to begin at 0 again: it is written at once. */
sh_rc sh_exposition_put(struct sh_exposition *e, enum sh_metrics_event kind, const void *event)
{
    for (int i = 0; i < sh_metric_rows; i++) {
        const struct sh_metric *row = &sh_metric_table[i];
        struct sample *s = &e->samples[i];
        double v;

        if (!row->name || row->event != kind || !sh_metric_is_given(row, event))
            continue;
        v = sh_metric_number(row, event) * (row->base > 0 ? row->base : 1);
        *s = (struct sample){.value = row->counter ? s->value + v : v, .known = true};
    }
    if (kind != SH_METRICS_START && sh_now_ns() - e->written_ns < SH_EXPOSITION_SECONDS * INT64_C(1000000000))
        return SH_OK;
    return sh_exposition_finish(e);
}

void sh_exposition_close(struct sh_exposition *e)
{
    if (!e)
        return;
    free(e->path);
    free(e->labels);
    free(e->samples);
    free(e);
}
