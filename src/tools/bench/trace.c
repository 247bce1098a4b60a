/* Reads the trace that training has written and adds up its events in rows, one for each kind of operation: events that
 * differ only in the layer share a row. Only rank 0 counts; the file has microseconds. */
#include "src/tools/bench/trace.h"

#include "io/json/json.h"
#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/program/program.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t most_bytes = (size_t)1 << 30;

struct reader {
    int waits, steps;
    const struct sh_bench_peaks *peaks;
    struct sh_bench_list *list;
    int first;  /* first row of this reader */
    int *row;   /* [events] of the list; SH_NONE: no row */
    int *count; /* [list.n] events of a row over all steps */
    int *seen;  /* [list.n] events of a row before the current one */
};

/* Turns "forward layers.3 linear" into "forward layers linear". */
static void forget_layer(const char *label, char *out, size_t bytes)
{
    size_t n = 0;

    while (*label && n + 1 < bytes)
        if (label[0] == '.' && isdigit((unsigned char)label[1]))
            for (label++; isdigit((unsigned char)*label); label++)
                ;
        else
            out[n++] = *label++;
    out[n] = '\0';
}

/* Whether the event belongs to the compute stream or is a wait; collectives that nobody waits for cost nothing. */
static bool name_of(json_t *event, int waits, char *name, size_t bytes)
{
    const char *label = json_string_value(json_object_get(event, "name")),
               *phase = json_string_value(json_object_get(event, "ph"));
    json_int_t row = json_integer_value(json_object_get(event, "tid"));
    json_t *args = json_object_get(event, "args");
    const char *what = json_string_value(json_object_get(args, "what"));
    char plain[128];

    if (!label || !phase || strcmp(phase, "X") || !what || json_integer_value(json_object_get(event, "pid")) != 0)
        return false;
    if (row == SH_STREAM_COMPUTE) {
        forget_layer(label, plain, sizeof plain);
        snprintf(name, bytes, "%s, %.4g MFLOP", plain, json_number_value(json_object_get(args, "flops")) / 1e6);
    } else if (row == waits) {
        forget_layer(what, plain, sizeof plain);
        snprintf(name, bytes, "wait for %s", plain);
    }
    return row == SH_STREAM_COMPUTE || row == waits;
}

/* Only rows of this reader count: the list may hold others with the same name. */
static int row_of(struct reader *r, const char *name)
{
    for (int i = r->first; i < r->list->n; i++)
        if (!strcmp(r->list->rows[i].name, name))
            return i;
    r->count = sh_realloc(r->count, (size_t)r->list->n + 1, sizeof *r->count);
    r->count[r->list->n] = 0;
    return sh_bench_add(r->list, "%s", name);
}

/* First pass: counts the events of each row, which later tells the step of an event. */
static void count_events(struct reader *r, json_t *events)
{
    char name[256];

    r->row = sh_calloc(json_array_size(events) + 1, sizeof *r->row);
    for (size_t i = 0; i < json_array_size(events); i++) {
        bool counts = name_of(json_array_get(events, i), r->waits, name, sizeof name);

        r->row[i] = counts ? row_of(r, name) : SH_NONE;
        if (r->row[i] != SH_NONE)
            r->count[r->row[i]]++;
    }
}

/* Every step has the same operations in the same order. */
static void add_event(struct reader *r, json_t *event, int row)
{
    struct sh_bench_times *t = &r->list->times[row];
    json_t *args = json_object_get(event, "args");
    double flops = json_number_value(json_object_get(args, "flops")),
           bytes = json_number_value(json_object_get(args, "bytes"));
    double at_products = flops / r->peaks->flops_per_second, at_copies = bytes / r->peaks->bytes_per_second;
    /* The k-th of c events of a row over s steps belongs to step k * s / c. Example: of 8 events in 2 steps, numbers 0
     * to 3 belong to step 0. */
    int step = (int)((int64_t)r->seen[row]++ * r->steps / r->count[row]);

    t->seconds[step] += json_number_value(json_object_get(event, "dur")) / 1e6;
    /* Work is the same in every step, so it is counted once. */
    if (step > 0)
        return;
    t->flops += flops;
    t->bytes += (int64_t)bytes;
    t->floor_seconds += at_products > at_copies ? at_products : at_copies;
}

/* Two passes; row[] remembers the results of the first. */
static sh_rc read_events(struct reader *r, json_t *events, const char *path)
{
    count_events(r, events);
    if (r->list->n == r->first)
        return sh_fail(SH_E_DATA, "%s: no operations in the trace", path);
    r->seen = sh_calloc((size_t)r->list->n, sizeof *r->seen);
    for (size_t i = 0; i < json_array_size(events); i++)
        if (r->row[i] != SH_NONE)
            add_event(r, json_array_get(events, i), r->row[i]);
    return SH_OK;
}

sh_rc sh_bench_trace_read(const char *path, int waits, int steps, const struct sh_bench_peaks *peaks,
                          struct sh_bench_list *out)
{
    struct reader r = {.waits = waits, .steps = steps, .peaks = peaks, .list = out, .first = out->n};
    json_error_t error;
    json_t *all;
    char *text;
    size_t bytes;
    sh_rc rc;

    SH_TRY(sh_read_file(path, most_bytes, &text, &bytes));
    all = sh_json_decode(text, bytes, 0, &error);
    free(text);
    if (!all)
        return sh_fail(SH_E_DATA, "%s:%d: %s", path, error.line, error.text);
    rc = read_events(&r, json_is_array(all) ? all : json_object_get(all, "traceEvents"), path);
    json_decref(all);
    free(r.row);
    free(r.count);
    free(r.seen);
    return rc;
}
