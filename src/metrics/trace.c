#include "src/metrics/metrics.h"

#include "src/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Format: Trace Event Format, the JSON object form; times in microseconds. Each rank's text ends in a comma; the foot
 * has an event that says nothing new, so that the list does not. */
const char sh_trace_head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
const char sh_trace_foot[] = "{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":0,\"args\":{\"labels\":\"sherd\"}}]}\n";

struct event {
    char name[64], detail[80];
    int row;
    int64_t begin_ns, end_ns;
    double flops, bytes; /* negative: not told */
};

struct row {
    int row;
    char name[32];
};

struct sh_trace {
    int rank;
    char host[64];
    struct event *events;
    int n_events, cap_events;
    struct row *rows;
    int n_rows, cap_rows;
    char *text;
    size_t bytes, room;
};

/* Copy what fits, with '?' for what would need an escape in JSON: the words here are names of operations and hosts. */
static void copy_plain(char *to, size_t size, const char *from)
{
    size_t n = 0;

    for (; from[n] && n + 1 < size; n++)
        to[n] = from[n] < ' ' || from[n] > '~' || from[n] == '"' || from[n] == '\\' ? '?' : from[n];
    to[n] = '\0';
}

/* Local. Each rank keeps its own events in memory; nothing is written while steps are timed. */
struct sh_trace *sh_trace_create(int rank, const char *host)
{
    struct sh_trace *t = sh_calloc(1, sizeof *t);

    t->rank = rank;
    copy_plain(t->host, sizeof t->host, host);
    return t;
}

void sh_trace_destroy(struct sh_trace *t)
{
    if (!t)
        return;
    free(t->events);
    free(t->rows);
    free(t->text);
    free(t);
}

void sh_trace_row(struct sh_trace *t, int row, const char *name)
{
    t->rows = sh_grow(t->rows, t->n_rows, &t->cap_rows, sizeof *t->rows);
    t->rows[t->n_rows].row = row;
    copy_plain(t->rows[t->n_rows++].name, sizeof t->rows->name, name);
}

/* Strings are copied. Times are sh_now_ns(). */
void sh_trace_event(struct sh_trace *t, int row, const char *name, const char *detail, int64_t begin_ns, int64_t end_ns)
{
    struct event *e;

    t->events = sh_grow(t->events, t->n_events, &t->cap_events, sizeof *t->events);
    e = &t->events[t->n_events++];
    *e = (struct event){.row = row, .begin_ns = begin_ns, .end_ns = end_ns, .flops = -1};
    copy_plain(e->name, sizeof e->name, name);
    copy_plain(e->detail, sizeof e->detail, detail);
}

/* For the event that was added last; flops < 0 marks events without a cost, such as waits. */
void sh_trace_cost(struct sh_trace *t, double flops, double bytes)
{
    struct event *e = &t->events[t->n_events - 1];

    e->flops = flops;
    e->bytes = bytes;
}

static void add(struct sh_trace *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* 512 bytes are more than any line needs: names and hosts have at most 80 characters. So one check before the print is
 * enough. */
static void add(struct sh_trace *t, const char *fmt, ...)
{
    va_list ap;

    if (t->room - t->bytes < 512) {
        t->room = t->room ? 2 * t->room : 1 << 16;
        t->text = sh_realloc(t->text, t->room, 1);
    }
    va_start(ap, fmt);
    t->bytes += (size_t)vsnprintf(t->text + t->bytes, t->room - t->bytes, fmt, ap);
    va_end(ap);
}

/* pid is the rank and tid the row: viewers group by pid, so each rank gets a block of rows of its own. */
static void add_event(struct sh_trace *t, const struct event *e, int64_t origin_ns)
{
    add(t, "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"what\":\"%s\"",
        e->name, t->rank, e->row, (double)(e->begin_ns - origin_ns) / 1e3, (double)(e->end_ns - e->begin_ns) / 1e3,
        e->detail);
    if (e->flops >= 0)
        add(t, ",\"flops\":%.6g,\"bytes\":%.6g", e->flops, e->bytes);
    add(t, "}},\n");
}

/* origin_ns is the same moment on every rank, in this rank's clock: what is parallel in the job is parallel in the
 * viewer. The text belongs to `t` until the next call or its end. */
const char *sh_trace_text(struct sh_trace *t, int64_t origin_ns, int64_t *bytes)
{
    t->bytes = 0;
    add(t, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d (%s)\"}},\n", t->rank,
        t->rank, t->host);
    for (int i = 0; i < t->n_rows; i++) {
        add(t, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n", t->rank,
            t->rows[i].row, t->rows[i].name);
        add(t, "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}},\n",
            t->rank, t->rows[i].row, t->rows[i].row);
    }
    for (int i = 0; i < t->n_events; i++)
        add_event(t, &t->events[i], origin_ns);
    *bytes = (int64_t)t->bytes;
    return t->text;
}
