#include "src/run/spans.h"

#include "src/base/mem.h"

#include <stdlib.h>

struct span {
    void *begin, *end;
    enum sh_span kind;
};

/* A ring: spans [oldest, newest) are not read yet. Its events are made once. */
struct sh_spans {
    const struct sh_device *device;
    void *queue;
    struct span *ring;
    int64_t capacity, oldest, newest;
    double seconds[SH_SPANS];
};

/* Room for the ring is doubled when all are in use, so that no event is created once a run is in its rhythm. */
struct sh_spans *sh_spans_create(const struct sh_device *device, void *queue)
{
    struct sh_spans *s = sh_calloc(1, sizeof *s);

    *s = (struct sh_spans){.device = device, .queue = queue};
    return s;
}

static struct span *at(struct sh_spans *s, int64_t i)
{
    return &s->ring[i % s->capacity];
}

void sh_spans_destroy(struct sh_spans *s)
{
    if (!s)
        return;
    for (int64_t i = 0; i < s->capacity; i++) {
        s->device->event_destroy(s->ring[i].begin);
        s->device->event_destroy(s->ring[i].end);
    }
    free(s->ring);
    free(s);
}

/* Twice the room; what is in use keeps its number. */
static void grow(struct sh_spans *s)
{
    int64_t capacity = s->capacity ? 2 * s->capacity : 64;
    struct span *ring = sh_calloc((size_t)capacity, sizeof *ring), *old = s->ring;
    int64_t old_capacity = s->capacity;

    s->ring = ring;
    s->capacity = capacity;
    for (int64_t i = s->oldest; i < s->oldest + capacity; i++)
        *at(s, i) = i < s->oldest + old_capacity ? old[i % old_capacity]
                                                 : (struct span){.begin = s->device->event_create(true),
                                                                 .end = s->device->event_create(true)};
    free(old);
}

/* Add up what is over, in order. */
static void read_spans(struct sh_spans *s)
{
    while (s->oldest < s->newest && s->device->event_is_done(at(s, s->oldest)->end)) {
        const struct span *span = at(s, s->oldest++);

        s->seconds[span->kind] += (double)s->device->event_span_ns(span->begin, span->end) / 1e9;
    }
}

int64_t sh_spans_begin(struct sh_spans *s, enum sh_span kind)
{
    if (s->newest - s->oldest == s->capacity)
        grow(s);
    at(s, s->newest)->kind = kind;
    s->device->event_mark(at(s, s->newest)->begin, s->queue);
    return s->newest++;
}

/* `span` is what sh_spans_begin() returned. It stays valid while the ring grows. */
void sh_spans_end(struct sh_spans *s, int64_t span)
{
    s->device->event_mark(at(s, span)->end, s->queue);
}

void sh_spans_take(struct sh_spans *s, double seconds[SH_SPANS])
{
    read_spans(s);
    for (int k = 0; k < SH_SPANS; k++) {
        seconds[k] = s->seconds[k];
        s->seconds[k] = 0;
    }
}
