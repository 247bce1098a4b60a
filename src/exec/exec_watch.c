#include "src/exec/exec_watch.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct span {
    void *begin, *end;
    enum sh_exec_timing kind;
};

/* A ring: spans [oldest, newest) are not read yet. Its events are created once. */
struct sh_exec_watch {
    const struct sh_program *p;
    const struct sh_device *device;
    void *queue;
    struct sh_comm *comm;
    char (*labels)[SH_EXEC_LABEL]; /* [ops] */
    struct span *ring;
    int64_t capacity, oldest, newest;
    const struct sh_section *section;
    int64_t whole, wait; /* the spans that are open; SH_NONE: no wait */
    double seconds[SH_EXEC_TIMINGS];
    struct sh_exec_trace *trace;
};

/* The ring starts empty; grow() doubles it when all spans are in use, so no event is created once a run is in its
 * rhythm. */
struct sh_exec_watch *sh_exec_watch_open(const struct sh_program *p, const struct sh_device *device, void *queue,
                                         struct sh_comm *comm, char (*labels)[SH_EXEC_LABEL])
{
    struct sh_exec_watch *w = sh_calloc(1, sizeof *w);

    *w = (struct sh_exec_watch){.p = p, .device = device, .queue = queue, .comm = comm, .labels = labels};
    return w;
}

static struct span *at(struct sh_exec_watch *w, int64_t i)
{
    return &w->ring[i % w->capacity];
}

void sh_exec_watch_close(struct sh_exec_watch *w)
{
    if (!w)
        return;
    sh_exec_trace_destroy(w->trace);
    for (int64_t i = 0; i < w->capacity; i++) {
        w->device->event_destroy(w->ring[i].begin);
        w->device->event_destroy(w->ring[i].end);
    }
    free(w->ring);
    free(w);
}

void sh_exec_watch_set_trace(struct sh_exec_watch *w, struct sh_exec_trace *trace)
{
    sh_exec_trace_destroy(w->trace);
    w->trace = trace;
}

/* Double the ring; spans in use keep their numbers. */
static void grow(struct sh_exec_watch *w)
{
    int64_t capacity = w->capacity ? 2 * w->capacity : 64;
    struct span *ring = sh_calloc((size_t)capacity, sizeof *ring), *old = w->ring;
    int64_t old_capacity = w->capacity;

    w->ring = ring;
    w->capacity = capacity;
    for (int64_t i = w->oldest; i < w->oldest + capacity; i++)
        *at(w, i) = i < w->oldest + old_capacity
                        ? old[i % old_capacity]
                        : (struct span){.begin = w->device->event_create(true), .end = w->device->event_create(true)};
    free(old);
}

/* Add up the spans that are over, in order. */
static void read_spans(struct sh_exec_watch *w)
{
    while (w->oldest < w->newest && w->device->event_is_done(at(w, w->oldest)->end)) {
        const struct span *span = at(w, w->oldest++);

        w->seconds[span->kind] += (double)w->device->event_span_ns(span->begin, span->end) / 1e9;
    }
}

static int64_t begin(struct sh_exec_watch *w, enum sh_exec_timing kind)
{
    if (w->newest - w->oldest == w->capacity)
        grow(w);
    at(w, w->newest)->kind = kind;
    w->device->event_mark(at(w, w->newest)->begin, w->queue);
    return w->newest++;
}

/* `span` is what begin() returned. It stays valid while the ring grows. */
static void end(struct sh_exec_watch *w, int64_t span)
{
    w->device->event_mark(at(w, span)->end, w->queue);
}

void sh_exec_watch_enter(struct sh_exec_watch *w, const struct sh_section *s)
{
    w->section = s;
    w->whole = begin(w, SH_EXEC_TIMING_SECTION);
}

/* Only waits count; all other time of a section is computation. */
static int64_t begin_wait(struct sh_exec_watch *w, const struct sh_op *op)
{
    if (op->kind != SH_OP_WAIT)
        return SH_NONE;
    op = &w->p->ops[w->section->first_op + op->attr.waits_for];
    return begin(w, sh_op_info(op->kind)->moves ? SH_EXEC_TIMING_MOVE : SH_EXEC_TIMING_WAIT);
}

/* The operation is noted before it starts: when a rank hangs, the report names the operation that it is in. */
void sh_exec_watch_begin(struct sh_exec_watch *w, int64_t step, int i)
{
    if (w->trace)
        sh_exec_trace_begin(w->trace, i);
    sh_comm_note(w->comm, step, w->labels[i]);
    w->wait = begin_wait(w, &w->p->ops[i]);
}

void sh_exec_watch_end(struct sh_exec_watch *w, int i)
{
    if (w->wait != SH_NONE)
        end(w, w->wait);
    if (w->trace)
        sh_exec_trace_end(w->trace, i);
}

/* The trace reads its events now, when it may drain the queue without hiding overlap that it measures. */
sh_rc sh_exec_watch_leave(struct sh_exec_watch *w, bool pending, const int64_t *tickets)
{
    if (w->trace)
        SH_TRY(sh_exec_trace_section(w->trace, w->section, pending, tickets));
    end(w, w->whole);
    return SH_OK;
}

void sh_exec_watch_take(struct sh_exec_watch *w, double seconds[SH_EXEC_TIMINGS])
{
    read_spans(w);
    memcpy(seconds, w->seconds, sizeof w->seconds);
    memset(w->seconds, 0, sizeof w->seconds);
}
