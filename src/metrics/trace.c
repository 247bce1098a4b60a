#include "src/metrics/trace.h"

#include "sherd_config.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Format: Trace Event Format, the JSON object form; times in microseconds. Each rank's text ends in a comma; the foot
 * has an event that says nothing new, so that the list does not end in one. */
const char sh_trace_foot[] = "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":0,\"args\":{\"sort_index\":0}}]}\n";

/* Not a time of a trace. */
static const int64_t none = INT64_MIN;

struct event {
    char name[64], detail[80], axis[20];
    const char *cat;
    int row, ranks;
    int64_t begin_ns, end_ns, ticket;
    double flops, bytes; /* negative: not known */
    int64_t arrow_ns;    /* of a wait: where the arrow from its collective ends; none: it is not in the trace */
};

struct row {
    int row;
    char name[32];
};

struct step {
    int64_t step, begin_ns, end_ns;
    double exposed; /* share of its waits */
};

/* The arena from one change to the next. */
struct level {
    int64_t at_ns, bytes;
};

/* When a collective began, by its ticket: where the arrow to its wait starts. */
struct start {
    int64_t ticket, begin_ns;
};

struct sh_trace {
    const struct sh_mesh_shape *mesh;
    char host[64];
    int64_t origin_ns, uncertainty_ns;
    bool has_clock;
    struct event *events;
    int n_events, cap_events, step_from; /* the first event since the last step */
    struct row *rows;
    int n_rows, cap_rows;
    struct step *steps;
    int n_steps, cap_steps;
    struct level *levels;
    int n_levels, cap_levels;
    struct start *starts;
    int n_starts, cap_starts;
    char *text;
    size_t bytes, room;
};

/* Copy what fits, with '?' for characters that need an escape in JSON: the words here are names of operations and
 * hosts. */
static void copy_plain(char *to, size_t size, const char *from)
{
    size_t n = 0;

    for (; from[n] && n + 1 < size; n++)
        to[n] = from[n] < ' ' || from[n] > '~' || from[n] == '"' || from[n] == '\\' ? '?' : from[n];
    to[n] = '\0';
}

/* Nothing is written while steps are timed. */
struct sh_trace *sh_trace_create(const struct sh_mesh_shape *mesh, const char *host)
{
    struct sh_trace *t = sh_calloc(1, sizeof *t);

    t->mesh = mesh;
    copy_plain(t->host, sizeof t->host, host);
    return t;
}

/* NULL is fine. */
void sh_trace_destroy(struct sh_trace *t)
{
    if (!t)
        return;
    free(t->events);
    free(t->rows);
    free(t->steps);
    free(t->levels);
    free(t->starts);
    free(t->text);
    free(t);
}

/* Clocks of nodes differ: the origin is the same moment on all ranks, as well as it could be determined. */
void sh_trace_clock(struct sh_trace *t, int64_t origin_ns, int64_t uncertainty_ns)
{
    t->origin_ns = origin_ns;
    t->uncertainty_ns = uncertainty_ns;
    t->has_clock = true;
}

const struct sh_mesh_shape *sh_trace_mesh(const struct sh_trace *t)
{
    return t->mesh;
}

/* Rows are named once, before the first event. */
void sh_trace_row(struct sh_trace *t, int row, const char *name)
{
    t->rows = sh_grow(t->rows, t->n_rows, &t->cap_rows, sizeof *t->rows);
    t->rows[t->n_rows].row = row;
    copy_plain(t->rows[t->n_rows++].name, sizeof t->rows->name, name);
}

/* Add the start of a collective, which has a ticket and an axis; its wait comes later and looks for it. */
static void add_start(struct sh_trace *t, const struct sh_trace_event *e)
{
    t->starts = sh_grow(t->starts, t->n_starts, &t->cap_starts, sizeof *t->starts);
    t->starts[t->n_starts++] = (struct start){e->ticket, e->begin_ns};
}

/* The arrow ends within the wait. The wait may begin before its collective does, if another collective holds it up, but
 * an arrow must not point back in time. The search begins with the newest: waits are near. */
static int64_t find_arrow(const struct sh_trace *t, const struct sh_trace_event *e)
{
    for (int i = t->n_starts - 1; i >= 0; i--)
        if (t->starts[i].ticket == e->ticket) {
            int64_t begin = t->starts[i].begin_ns;

            return begin < e->begin_ns ? e->begin_ns : begin > e->end_ns ? e->end_ns : begin;
        }
    return none;
}

/* The words are copied: names of a program may be made for one event only. A ticket without an axis is a wait. */
void sh_trace_add(struct sh_trace *t, const struct sh_trace_event *e)
{
    struct event *to;
    bool waits = e->ticket && !e->axis;

    t->events = sh_grow(t->events, t->n_events, &t->cap_events, sizeof *t->events);
    to = &t->events[t->n_events++];
    *to = (struct event){.cat = e->cat,
                         .row = e->row,
                         .ranks = e->ranks,
                         .begin_ns = e->begin_ns,
                         .end_ns = e->end_ns,
                         .ticket = e->ticket,
                         .flops = e->flops,
                         .bytes = e->bytes,
                         .arrow_ns = waits ? find_arrow(t, e) : none};
    copy_plain(to->name, sizeof to->name, e->name);
    copy_plain(to->detail, sizeof to->detail, e->what);
    if (e->axis)
        copy_plain(to->axis, sizeof to->axis, e->axis);
    if (e->ticket && e->axis)
        add_start(t, e);
}

/* Waits of this step alone; their share is the time that nothing hides. */
void sh_trace_step(struct sh_trace *t, int64_t step, int64_t begin_ns, int64_t end_ns)
{
    int64_t waited = 0;

    for (int i = t->step_from; i < t->n_events; i++)
        if (t->events[i].ticket && !t->events[i].axis[0])
            waited += t->events[i].end_ns - t->events[i].begin_ns;
    t->step_from = t->n_events;
    t->steps = sh_grow(t->steps, t->n_steps, &t->cap_steps, sizeof *t->steps);
    t->steps[t->n_steps++] =
        (struct step){step, begin_ns, end_ns, end_ns > begin_ns ? (double)waited / (double)(end_ns - begin_ns) : 0};
}

/* Only changes: most operations leave the level as it is. */
void sh_trace_arena(struct sh_trace *t, int64_t at_ns, int64_t bytes)
{
    if (t->n_levels && t->levels[t->n_levels - 1].bytes == bytes)
        return;
    t->levels = sh_grow(t->levels, t->n_levels, &t->cap_levels, sizeof *t->levels);
    t->levels[t->n_levels++] = (struct level){at_ns, bytes};
}

static void add(struct sh_trace *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* 512 bytes are more than any line needs: names and hosts have at most 80 characters. So one check before printing is
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

/* From the common origin, so that ranks of several nodes lie on one axis. */
static double us(const struct sh_trace *t, int64_t ns)
{
    return (double)(ns - t->origin_ns) / 1e3;
}

/* Readers of JSON have 64 bits for integers. */
static long long whole(double v)
{
    return v < 0x1p62 ? (long long)v : 1LL << 62;
}

/* 2^40 tickets per rank: numbers of arrows must be unique in the whole file, and below 2^53, so that every reader has
 * them exactly. */
static long long arrow(const struct sh_trace *t, const struct event *e)
{
    return ((long long)t->mesh->rank << 40) + e->ticket;
}

static void add_arrows(struct sh_trace *t, const struct event *e)
{
    int64_t at = e->axis[0] ? e->begin_ns : e->arrow_ns;

    if (!e->ticket || at == none)
        return;
    add(t, "{\"ph\":\"%s,\"name\":\"wait\",\"cat\":\"comm\",\"id\":%lld,\"pid\":%d,\"tid\":%d,\"ts\":%.3f},\n",
        e->axis[0] ? "s\"" : "f\",\"bp\":\"e\"", arrow(t, e), t->mesh->rank, e->row, us(t, at));
}

/* pid is the rank and tid the row: viewers group by pid, so each rank gets its own block of rows. */
static void add_event(struct sh_trace *t, const struct event *e)
{
    int64_t took = e->end_ns - e->begin_ns;

    add(t,
        "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
        "\"args\":{\"what\":\"%s\"",
        e->name, e->cat, t->mesh->rank, e->row, us(t, e->begin_ns), (double)took / 1e3, e->detail);
    if (e->axis[0])
        add(t, ",\"axis\":\"%s\",\"ranks\":%d", e->axis, e->ranks);
    if (e->axis[0] && took > 0)
        add(t, ",\"gb_per_s\":%.6g", e->bytes / (double)took);
    if (e->flops >= 0)
        add(t, ",\"flops\":%lld", whole(e->flops));
    if (e->bytes >= 0)
        add(t, ",\"bytes\":%lld", whole(e->bytes));
    add(t, "}},\n");
    add_arrows(t, e);
}

static void add_step(struct sh_trace *t, const struct step *s)
{
    int rank = t->mesh->rank;

    add(t,
        "{\"ph\":\"X\",\"name\":\"step %lld\",\"cat\":\"step\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
        "\"args\":{\"step\":%lld,\"exposed_share\":%.6g}},\n",
        (long long)s->step, rank, SH_TRACE_STEPS, us(t, s->begin_ns), (double)(s->end_ns - s->begin_ns) / 1e3,
        (long long)s->step, s->exposed);
    add(t, "{\"ph\":\"C\",\"name\":\"exposed share\",\"pid\":%d,\"ts\":%.3f,\"args\":{\"share\":%.6g}},\n", rank,
        us(t, s->begin_ns), s->exposed);
}

static void add_clock(struct sh_trace *t)
{
    if (t->has_clock)
        add(t, ",\"clock_origin_ns\":%lld,\"clock_uncertainty_us\":%.3f", (long long)t->origin_ns,
            (double)t->uncertainty_ns / 1e3);
}

/* The rows in their order, the steps on top. */
static void add_names(struct sh_trace *t)
{
    int rank = t->mesh->rank;

    add(t, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d (%s)\"", rank, rank,
        t->host);
    add_clock(t);
    add(t, "}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}},\n", rank,
        rank);
    for (int i = 0; i < t->n_rows; i++) {
        int row = t->rows[i].row;

        add(t, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n", rank, row,
            t->rows[i].name);
        add(t, "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}},\n",
            rank, row, row == SH_TRACE_STEPS ? -1 : row);
    }
}

/* Steps come before the sections in them: if two events begin together, viewers take the first as the outer one. */
const char *sh_trace_text(struct sh_trace *t, int64_t *bytes)
{
    t->bytes = 0;
    add_names(t);
    for (int i = 0; i < t->n_steps; i++)
        add_step(t, &t->steps[i]);
    for (int i = 0; i < t->n_events; i++)
        add_event(t, &t->events[i]);
    for (int i = 0; i < t->n_levels; i++)
        add(t, "{\"ph\":\"C\",\"name\":\"arena in use\",\"pid\":%d,\"ts\":%.3f,\"args\":{\"bytes\":%lld}},\n",
            t->mesh->rank, us(t, t->levels[i].at_ns), (long long)t->levels[i].bytes);
    *bytes = (int64_t)t->bytes;
    return t->text;
}

/* "predicted_for" marks a trace that was predicted, not measured on a machine. */
char *sh_trace_head(const struct sh_trace_about *about)
{
    char machine[64];

    copy_plain(machine, sizeof machine, about->machine ? about->machine : "");
    return sh_strfmt(
        "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"version\":\"%s\",\"config\":\"%s\",\"ranks\":\"%d\"%s%s%s},"
        "\"traceEvents\":[\n",
        PACKAGE_VERSION, about->config, about->ranks, machine[0] ? ",\"predicted_for\":\"" : "", machine,
        machine[0] ? "\"" : "");
}
