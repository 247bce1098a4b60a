#include "src/exec/exec_trace.h"

#include "src/base/mem.h"
#include "src/cost/price.h"
#include "src/metrics/trace_op.h"
#include "src/pass/pass.h"

#include <stdlib.h>

struct sh_exec_trace {
    const struct sh_program *p;
    const struct sh_device *device;
    void *queue;
    struct sh_comm *comm;
    const struct sh_op_call *calls;
    struct sh_trace *out;
    struct sh_trace_place at;
    int64_t *in_use;                    /* [ops] bytes */
    void **begin, **end;                /* [ops] events */
    int64_t busy_until[SH_STREAMS_MAX]; /* of streams of moves: when the last one was over */
};

/* Bytes of the arena in use at each operation. */
static void find_use(struct sh_exec_trace *t)
{
    t->in_use = sh_calloc((size_t)t->p->n_ops + 1, sizeof *t->in_use);
    for (int i = 0; i < t->p->n_sections; i++)
        sh_pass_in_use(t->p, &t->p->sections[i], t->in_use + t->p->sections[i].first_op);
}

/* Two events per operation, made up front, so that tracing adds no allocation to the steps that it measures. */
struct sh_exec_trace *sh_exec_trace_create(const struct sh_program *p, const struct sh_device *device, void *queue,
                                           struct sh_comm *comm, const struct sh_op_call *calls, struct sh_trace *out)
{
    struct sh_exec_trace *t = sh_calloc(1, sizeof *t);

    *t = (struct sh_exec_trace){.p = p,
                                .device = device,
                                .queue = queue,
                                .comm = comm,
                                .calls = calls,
                                .out = out,
                                .at = {.p = p},
                                .begin = sh_calloc((size_t)p->n_ops, sizeof *t->begin),
                                .end = sh_calloc((size_t)p->n_ops, sizeof *t->end)};
    for (int i = 0; i < p->n_ops; i++) {
        t->begin[i] = device->event_create(true);
        t->end[i] = device->event_create(true);
    }
    /* The first traced step starts with an idle queue. Otherwise its first operation would include the work of the step
     * before. */
    device->queue_drain(queue);
    find_use(t);
    sh_trace_program(out, p);
    return t;
}

void sh_exec_trace_destroy(struct sh_exec_trace *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->p->n_ops; i++) {
        t->device->event_destroy(t->begin[i]);
        t->device->event_destroy(t->end[i]);
    }
    free(t->in_use);
    free(t->begin);
    free(t->end);
    free(t);
}

void sh_exec_trace_begin(struct sh_exec_trace *t, int i)
{
    t->device->event_mark(t->begin[i], t->queue);
}

void sh_exec_trace_end(struct sh_exec_trace *t, int i)
{
    t->device->event_mark(t->end[i], t->queue);
}

/* A collective's time is that of the communicator's thread, not of the queue: a collective starts later than it was
 * issued. */
static sh_rc time_collective(struct sh_exec_trace *t, int64_t ticket, struct sh_trace_timed *timed, bool *known)
{
    const struct sh_op *op = &t->p->ops[timed->op];
    struct sh_coll_record r, first;

    /* The record is complete only after the collective; one that was pushed out of the ring since is left out of the
     * trace, like one that had nothing to do. */
    if (ticket)
        SH_TRY(sh_comm_wait(t->comm, ticket));
    *known = sh_comm_record(t->comm, ticket, &r);
    if (!*known)
        return SH_OK;
    if (sh_program_exchanges(op) > 1 && sh_comm_record(t->comm, ticket - sh_program_exchanges(op) + 1, &first))
        r.start_ns = first.start_ns;
    timed->begin_ns = r.start_ns;
    timed->end_ns = r.end_ns;
    timed->bytes = sh_coll_received_by(t->p, sh_trace_mesh(t->out), op);
    timed->ticket = ticket;
    return SH_OK;
}

/* Cost is computed from the call's shapes, so that a viewer can show achieved rates next to the time. */
static void cost_kernel(const struct sh_exec_trace *t, struct sh_trace_timed *timed)
{
    struct sh_op_cost cost = sh_op_cost(&t->calls[timed->op]);

    timed->flops = cost.flops - (t->device->gpu ? 0 : sh_op_copied(&t->calls[timed->op]));
    timed->bytes = cost.bytes;
}

/* For a move only its start and the end of its wait are known. Moves of a row run one after the other, so none begins
 * before the previous one is over. */
static void write_move(struct sh_exec_trace *t, int move, int64_t end)
{
    const struct sh_op *op = &t->p->ops[move];
    int64_t begin = t->device->event_ns(t->begin[move]), *busy = &t->busy_until[op->stream];
    struct sh_trace_timed timed = {.op = move, .end_ns = end, .flops = -1};

    begin = begin > *busy ? begin : *busy;
    timed.begin_ns = begin < end ? begin : end;
    timed.bytes = (double)sh_tensor_bytes(&t->p->tensors[op->in[0]]);
    *busy = end;
    sh_trace_op(t->out, &t->at, &timed);
}

static bool moved(const struct sh_exec_trace *t, const struct sh_section *s, const struct sh_op *wait)
{
    return sh_op_info(t->p->ops[s->first_op + wait->attr.waits_for].kind)->moves;
}

static sh_rc write_op(struct sh_exec_trace *t, const struct sh_section *s, int i, const int64_t *tickets)
{
    const struct sh_op *op = &t->p->ops[i];
    const struct sh_op_info *info = sh_op_info(op->kind);
    /* The end is the beginning plus a device-side interval: two absolute readings would each carry an error of the
     * clocks' match. */
    int64_t begin = t->device->event_ns(t->begin[i]);
    struct sh_trace_timed timed = {
        .op = i, .begin_ns = begin, .end_ns = begin + t->device->event_span_ns(t->begin[i], t->end[i])};
    bool known = true;

    sh_trace_arena(t->out, begin, t->in_use[i]);
    if (info->moves)
        return SH_OK;
    if (info->async)
        SH_TRY(time_collective(t, tickets[i], &timed, &known));
    else if (op->kind == SH_OP_WAIT && moved(t, s, op))
        write_move(t, s->first_op + op->attr.waits_for, timed.end_ns);
    else if (op->kind == SH_OP_WAIT)
        timed.ticket = tickets[s->first_op + op->attr.waits_for];
    else if (!info->marker)
        cost_kernel(t, &timed);
    if (known)
        sh_trace_op(t->out, &t->at, &timed);
    return SH_OK;
}

static void write_section(struct sh_exec_trace *t, int first, int last)
{
    int64_t begin = t->device->event_ns(t->begin[first]);

    sh_trace_section(t->out, &t->at, begin, begin + t->device->event_span_ns(t->begin[first], t->end[last]));
}

/* The queue is drained, so a traced step is slower than others between its sections. */
sh_rc sh_exec_trace_section(struct sh_exec_trace *t, const struct sh_section *s, bool pending, const int64_t *tickets)
{
    int first = SH_NONE, last = SH_NONE;

    t->device->queue_drain(t->queue);
    sh_trace_enter(&t->at, s);
    for (int i = s->first_op; i < s->first_op + s->n_ops; i++) {
        if (!pending && sh_program_carried(s, &t->p->ops[i]))
            continue;
        SH_TRY(write_op(t, s, i, tickets));
        first = first == SH_NONE ? i : first;
        last = i;
    }
    if (first != SH_NONE)
        write_section(t, first, last);
    return SH_OK;
}
