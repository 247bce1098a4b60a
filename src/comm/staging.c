/* Collectives whose operands lie on a GPU: their events; and for MPI, which Sherd never gives device memory, the copies
 * to pinned host memory and back. Buffers are kept and reused, so that none is allocated after the first step. */
#include "src/base/mem.h"
#include "src/comm/backend.h"
#include "src/comm/parts.h"

#include <stdlib.h>

struct sh_stage {
    struct sh_stage *next;
    char *memory;
    int64_t bytes;
    bool lent;
    void *used; /* event: the copy back is done */
    /* The copy back: */
    void *to;
    const char *from;
    int64_t back_bytes;
};

/* Events for SH_COMM_ON_DEVICE concurrent collectives, created once; `begin` and `done` can be timed. */
void sh_comm_device_open(struct sh_comm *c)
{
    const struct sh_device *device = c->opt.device;

    if (!device || !device->gpu)
        return;
    c->copies = device->queue_create(true);
    c->events = sh_calloc(SH_COMM_ON_DEVICE, sizeof *c->events);
    for (int i = 0; i < SH_COMM_ON_DEVICE; i++)
        c->events[i] = (struct sh_comm_events){.ready = device->event_create(false),
                                               .begin = device->event_create(true),
                                               .done = device->event_create(true)};
}

static void free_stages(struct sh_comm *c)
{
    for (struct sh_stage *s = c->stages, *next; s; s = next) {
        next = s->next;
        c->opt.device->event_wait(s->used);
        c->opt.device->event_destroy(s->used);
        c->opt.device->host_destroy(s->memory, s->bytes);
        free(s);
    }
}

void sh_comm_device_close(struct sh_comm *c)
{
    const struct sh_device *device = c->opt.device;

    if (!c->events)
        return;
    free_stages(c);
    for (int i = 0; i < SH_COMM_ON_DEVICE; i++) {
        device->event_destroy(c->events[i].ready);
        device->event_destroy(c->events[i].begin);
        device->event_destroy(c->events[i].done);
    }
    device->queue_destroy(c->copies);
    free(c->events);
}

/* Allocate pinned memory, which later only collectives of this size or smaller can use. */
static sh_rc make_stage(struct sh_comm *c, int64_t bytes, struct sh_stage **out)
{
    char *memory;

    SH_TRY(c->opt.device->host_create(bytes, &memory));
    *out = sh_calloc(1, sizeof **out);
    **out = (struct sh_stage){
        .next = c->stages, .memory = memory, .bytes = bytes, .used = c->opt.device->event_create(false)};
    c->stages = *out;
    return SH_OK;
}

/* The smallest stage that is free and large enough. */
static sh_rc lend_stage(struct sh_comm *c, int64_t bytes, struct sh_stage **out)
{
    struct sh_stage *best = NULL;

    for (struct sh_stage *s = c->stages; s; s = s->next)
        if (!s->lent && s->bytes >= bytes && (!best || s->bytes < best->bytes) && c->opt.device->event_is_done(s->used))
            best = s;
    if (!best)
        SH_TRY(make_stage(c, bytes, &best));
    best->lent = true;
    *out = best;
    return SH_OK;
}

/* What a collective reads, and where it puts its result, as stretches of the buffer. */
struct stretches {
    int64_t all, in, in_bytes, out, out_bytes;
};

/* The buffers keep their size whatever the parts are now, so that they are found again. Parts are copied by themselves:
 * see copy_parts(). */
static struct stretches stretches_of_exchange(const struct sh_coll *coll, int64_t size)
{
    int64_t all = size * coll->count, elem = sh_dtype_bytes(coll->dtype);
    int64_t send = (coll->parts ? coll->parts->send_room : all) * elem;
    int64_t recv = (coll->parts ? coll->parts->recv_room : all) * elem;

    return (struct stretches){.all = send + recv, .out = send};
}

static struct stretches stretches_of(const struct sh_comm *c, const struct sh_coll *coll)
{
    int64_t size = sh_group_size(&c->mesh->shape, coll->group), index = sh_group_index(&c->mesh->shape, coll->group);
    int64_t part = coll->count * sh_dtype_bytes(coll->dtype);

    switch (coll->kind) {
    case SH_OP_ALL_GATHER: /* in place, so that the backend sees the same whatever the operands were */
        return (struct stretches){.all = size * part, .in = index * part, .in_bytes = part, .out_bytes = size * part};
    case SH_OP_REDUCE_SCATTER:
        return (struct stretches){
            .all = (size + 1) * part, .in_bytes = size * part, .out = size * part, .out_bytes = part};
    case SH_OP_ALL_TO_ALL: return stretches_of_exchange(coll, size);
    case SH_OP_SEND: return (struct stretches){.all = part, .in_bytes = part};
    case SH_OP_RECEIVE: return (struct stretches){.all = part, .out_bytes = part};
    default: return (struct stretches){.all = part, .in_bytes = part, .out_bytes = part};
    }
}

/* Copy the parts of an ALL_TO_ALL, those of send or of recv, each to the same place of another buffer: what lies between
 * them may be other rows, which another collective is about to write. The parts fit: the start has looked at them.
 * Neighbours travel in one piece. */
static void copy_parts(const struct sh_comm *c, const struct sh_coll *coll, bool sent, void *queue, void *to,
                       const void *from)
{
    int size = sh_group_size(&c->mesh->shape, coll->group), index = sh_group_index(&c->mesh->shape, coll->group);
    struct sh_part_extent *part = sh_calloc((size_t)size, 2 * sizeof *part), *p = sent ? part : part + size;
    int64_t elem = sh_dtype_bytes(coll->dtype);
    bool same = sent && coll->parts && coll->parts->sharers; /* what each of several gets */
    sh_rc rc = sh_part_find(coll, size, index, part, part + size);

    for (int i = 0, next; i < size && rc == SH_OK; i = next) {
        int64_t begin = p[i].begin, n = p[i].n;

        for (next = i + 1; next < size && p[next].begin == begin + n; next++)
            n += p[next].n;
        if (same && n)
            next = size;
        if (n)
            c->opt.device->copy(queue, (char *)to + begin * elem, (const char *)from + begin * elem, n * elem);
    }
    free(part);
}

/* Copy from the device to a stage, in the queue of copies. The collective's operands are then those of the stage, so
 * that the mpi backend sees only host memory. */
sh_rc sh_stage_out(struct sh_comm *c, struct sh_comm_item *item)
{
    const struct sh_device *device = c->opt.device;
    struct sh_coll *coll = &item->coll;
    struct stretches at = stretches_of(c, coll);
    struct sh_stage *s;

    if (coll->after) /* the result of that collective is an operand, and must be on the device */
        SH_TRY(sh_stage_back(c, coll->after, coll->queue));
    SH_TRY(lend_stage(c, at.all ? at.all : 1, &s));
    s->to = coll->recv;
    s->from = s->memory + at.out;
    s->back_bytes = at.out_bytes;
    device->event_mark(item->events->ready, coll->queue);
    device->queue_after(c->copies, item->events->ready);
    if (coll->kind == SH_OP_ALL_TO_ALL)
        copy_parts(c, coll, true, c->copies, s->memory + at.in, coll->send);
    else
        device->copy(c->copies, s->memory + at.in, coll->kind == SH_OP_ALL_REDUCE ? coll->recv : coll->send,
                     at.in_bytes);
    device->event_mark(item->events->begin, c->copies);
    coll->send = s->memory + at.in;
    coll->recv = s->memory + at.out;
    item->stage = s;
    return SH_OK;
}

/* Wait for the collective and queue the copy back; the stage is free when that is done. */
sh_rc sh_stage_back(struct sh_comm *c, int64_t ticket, void *queue)
{
    struct sh_comm_item *item = sh_comm_item(c, ticket);
    struct sh_stage *s = item->stage;

    SH_TRY(sh_comm_wait(c, ticket));
    SH_REQUIRE(item->record.ticket == ticket);
    if (!s) /* another collective has already needed it */
        return SH_OK;
    c->opt.device->event_wait(item->events->begin); /* long done; the queue of copies no longer uses the buffer */
    if (item->coll.kind == SH_OP_ALL_TO_ALL)
        copy_parts(c, &item->coll, false, queue, s->to, s->from);
    else
        c->opt.device->copy(queue, s->to, s->from, s->back_bytes);
    c->opt.device->event_mark(s->used, queue);
    s->lent = false;
    item->stage = NULL;
    return SH_OK;
}
