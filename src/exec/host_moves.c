#include "src/exec/host_moves.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct sh_host_moves {
    const struct sh_program *p;
    const struct sh_device *device;
    const struct sh_bases *at;
    void *queue;                 /* of the operations */
    void *moves[SH_STREAMS_MAX]; /* queue of each stream; NULL: the stream moves nothing */
    void *begin;                 /* event: what the operations had done when a move was started */
    void **done;                 /* [ops] events of moves, else NULL */
    int64_t in_bytes, out_bytes;
};

/* Homes of hundreds of GB are cleared by all threads, so that each thread then has its pages near. */
enum { CLEARED_BYTES = 4 << 20 };

static void clear(char *at, int64_t bytes)
{
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < bytes; i += CLEARED_BYTES)
        memset(at + i, 0, (size_t)(bytes - i < CLEARED_BYTES ? bytes - i : CLEARED_BYTES));
}

static void clear_homes(const struct sh_host_moves *m)
{
    for (int i = 0; i < m->p->n_slices; i++) {
        const struct sh_tensor *home = &m->p->tensors[m->p->slices[i].home];

        clear(m->at->tier[home->tier] + home->offset_bytes, sh_tensor_bytes(home));
    }
}

/* Padding is zero; only updates write it, and they keep it zero. */
static void clear_parameters(const struct sh_host_moves *m)
{
    for (int i = 0; i < m->p->n_units; i++) {
        const struct sh_tensor *home = &m->p->tensors[m->p->units[i].compute];

        if (m->p->tiers[home->tier].kind == SH_TIER_HOST)
            clear(m->at->tier[home->tier] + home->offset_bytes, sh_tensor_bytes(home));
    }
}

struct sh_host_moves *sh_host_moves_open(const struct sh_program *p, const struct sh_device *device,
                                         const struct sh_bases *at, void *queue)
{
    struct sh_host_moves *m = sh_calloc(1, sizeof *m);

    *m = (struct sh_host_moves){.p = p, .device = device, .at = at, .queue = queue};
    m->begin = device->event_create(false);
    clear_parameters(m);
    m->done = sh_calloc((size_t)p->n_ops + 1, sizeof *m->done);
    for (int i = 0; i < p->n_ops; i++)
        if (sh_op_info(p->ops[i].kind)->moves)
            m->done[i] = device->event_create(false);
    for (int i = 0; i < p->n_streams; i++)
        if (p->streams[i].runs == SH_RUNS_MOVES)
            m->moves[i] = device->queue_create(false);
    clear_homes(m);
    return m;
}

void sh_host_moves_close(struct sh_host_moves *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->p->n_streams; i++)
        if (m->p->streams[i].runs == SH_RUNS_MOVES) {
            m->device->queue_drain(m->moves[i]);
            m->device->queue_destroy(m->moves[i]);
        }
    for (int i = 0; i < m->p->n_ops; i++)
        m->device->event_destroy(m->done[i]);
    m->device->event_destroy(m->begin);
    free(m->done);
    free(m);
}

static char *address(const struct sh_host_moves *m, int tensor)
{
    const struct sh_tensor *t = &m->p->tensors[tensor];

    return m->at->tier[t->tier] + t->offset_bytes;
}

/* The move waits, because the operations may still read what a fetch overwrites, or write what an eviction takes. */
void sh_host_moves_start(struct sh_host_moves *m, int i)
{
    const struct sh_op *op = &m->p->ops[i];
    int64_t bytes = sh_tensor_bytes(&m->p->tensors[op->in[0]]);
    void *moves = m->moves[op->stream];

    *(op->kind == SH_OP_FETCH ? &m->in_bytes : &m->out_bytes) += bytes;
    m->device->event_mark(m->begin, m->queue);
    m->device->queue_after(moves, m->begin);
    m->device->copy(moves, address(m, op->out[0]), address(m, op->in[0]), bytes);
    m->device->event_mark(m->done[i], moves);
}

void sh_host_moves_join(struct sh_host_moves *m, int i)
{
    m->device->queue_after(m->queue, m->done[i]);
}

void sh_host_moves_take(struct sh_host_moves *m, int64_t *in_bytes, int64_t *out_bytes)
{
    *in_bytes = m->in_bytes;
    *out_bytes = m->out_bytes;
    m->in_bytes = m->out_bytes = 0;
}

void sh_host_moves_forget(struct sh_host_moves *m)
{
    m->device->queue_drain(m->queue);
    clear_homes(m);
}
