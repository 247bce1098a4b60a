#include "src/exec/timings.h"

#include "src/base/mem.h"

#include <stdlib.h>

struct span {
    void *begin, *end;
    enum sh_timing kind;
};

/* A ring: spans [oldest, newest) are not read yet. Its events are created once. */
struct sh_timings {
    const struct sh_device *device;
    void *queue;
    struct span *ring;
    int64_t capacity, oldest, newest;
    double seconds[SH_TIMINGS];
};

/* The ring starts empty; grow() doubles it when all spans are in use, so no event is created once a run is in its
 * rhythm. */
struct sh_timings *sh_timings_create(const struct sh_device *device, void *queue)
{
    struct sh_timings *s = sh_calloc(1, sizeof *s);

    *s = (struct sh_timings){.device = device, .queue = queue};
    return s;
}

static struct span *at(struct sh_timings *s, int64_t i)
{
    return &s->ring[i % s->capacity];
}

void sh_timings_destroy(struct sh_timings *s)
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

/* Double the ring; spans in use keep their numbers. */
static void grow(struct sh_timings *s)
{
    int64_t capacity = s->capacity ? 2 * s->capacity : 64;
    struct span *ring = sh_calloc((size_t)capacity, sizeof *ring), *old = s->ring;
    int64_t old_capacity = s->capacity;

    s->ring = ring;
    s->capacity = capacity;
    for (int64_t i = s->oldest; i < s->oldest + capacity; i++)
        *at(s, i) = i < s->oldest + old_capacity
                        ? old[i % old_capacity]
                        : (struct span){.begin = s->device->event_create(true), .end = s->device->event_create(true)};
    free(old);
}

/* Add up the spans that are over, in order. */
static void read_spans(struct sh_timings *s)
{
    while (s->oldest < s->newest && s->device->event_is_done(at(s, s->oldest)->end)) {
        const struct span *span = at(s, s->oldest++);

        s->seconds[span->kind] += (double)s->device->event_span_ns(span->begin, span->end) / 1e9;
    }
}

int64_t sh_timings_begin(struct sh_timings *s, enum sh_timing kind)
{
    if (s->newest - s->oldest == s->capacity)
        grow(s);
    at(s, s->newest)->kind = kind;
    s->device->event_mark(at(s, s->newest)->begin, s->queue);
    return s->newest++;
}

/* `span` is what sh_timings_begin() returned. It stays valid while the ring grows. */
void sh_timings_end(struct sh_timings *s, int64_t span)
{
    s->device->event_mark(at(s, span)->end, s->queue);
}

void sh_timings_take(struct sh_timings *s, double seconds[SH_TIMINGS])
{
    read_spans(s);
    for (int k = 0; k < SH_TIMINGS; k++) {
        seconds[k] = s->seconds[k];
        s->seconds[k] = 0;
    }
}
