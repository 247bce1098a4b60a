#include "src/exec/exec_trace.h"

#include "src/base/mem.h"

#include <stdio.h>
#include <stdlib.h>

struct sh_exec_trace {
    const struct sh_program *p;
    const struct sh_device *device;
    void *queue;
    struct sh_comm *comm;
    const struct sh_op_call *calls;
    char (*labels)[SH_EXEC_LABEL];
    struct sh_trace *out;
    void **begin, **end;                /* [ops] events */
    int64_t busy_until[SH_STREAMS_MAX]; /* of streams of moves: when the last one was over */
};

/* Rows of the trace are the streams, and one of what is waited for. */
static void name_rows(const struct sh_program *p, struct sh_trace *t)
{
    for (int i = 0; i < p->n_streams; i++)
        sh_trace_row(t, i, p->streams[i].name);
    sh_trace_row(t, p->n_streams, "exposed communication");
    if (sh_program_file_tier(p) != SH_NONE)
        sh_trace_row(t, p->n_streams + 1, "exposed offload");
}

/* Two events an operation, made up front, so that tracing adds no allocation to the steps that it measures. NULL in all
 * other functions here means that nothing is traced. */
struct sh_exec_trace *sh_exec_trace_create(const struct sh_program *p, const struct sh_device *device, void *queue,
                                           struct sh_comm *comm, const struct sh_op_call *calls,
                                           char (*labels)[SH_EXEC_LABEL], struct sh_trace *out)
{
    struct sh_exec_trace *t = sh_calloc(1, sizeof *t);

    *t = (struct sh_exec_trace){.p = p,
                                .device = device,
                                .queue = queue,
                                .comm = comm,
                                .calls = calls,
                                .labels = labels,
                                .out = out,
                                .begin = sh_calloc((size_t)p->n_ops, sizeof *t->begin),
                                .end = sh_calloc((size_t)p->n_ops, sizeof *t->end)};
    for (int i = 0; i < p->n_ops; i++) {
        t->begin[i] = device->event_create(true);
        t->end[i] = device->event_create(true);
    }
    /* The first traced step starts with an idle queue. Else its first operation would include the work of the step
     * before. */
    device->queue_drain(queue);
    name_rows(p, out);
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
    free(t->begin);
    free(t->end);
    free(t);
}

void sh_exec_trace_begin(struct sh_exec_trace *t, int i)
{
    if (t)
        t->device->event_mark(t->begin[i], t->queue);
}

void sh_exec_trace_end(struct sh_exec_trace *t, int i)
{
    if (t)
        t->device->event_mark(t->end[i], t->queue);
}

/* A collective's time is that of the communicator's thread, not of the queue: it starts later than it was issued. */
static sh_rc write_collective(struct sh_exec_trace *t, int i, int64_t ticket)
{
    struct sh_coll_record r;
    char detail[SH_EXEC_LABEL];

    /* The record is complete only after the collective; one that was pushed out of the ring since is left out of the
     * trace. */
    SH_TRY(sh_comm_wait(t->comm, ticket));
    if (!sh_comm_record(t->comm, ticket, &r))
        return SH_OK;
    snprintf(detail, sizeof detail, "%s axis, %lld bytes a rank", sh_comm_group_name(t->comm, r.group),
             (long long)r.bytes);
    sh_trace_event(t->out, t->p->ops[i].stream, t->labels[i], detail, r.start_ns, r.end_ns);
    return SH_OK;
}

/* The first output: the gradient of an embedding may have but its second. */
static const char *name_result(const struct sh_program *p, const struct sh_op *op)
{
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE)
            return p->tensors[op->out[k]].name;
    return "";
}

/* Cost is computed from the call's shapes, so that a viewer can show achieved rates beside the time. */
static void write_kernel(struct sh_exec_trace *t, int i, int64_t begin, int64_t end)
{
    struct sh_op_cost cost = sh_op_cost(&t->calls[i]);

    sh_trace_event(t->out, SH_STREAM_COMPUTE, t->labels[i], name_result(t->p, &t->p->ops[i]), begin, end);
    sh_trace_cost(t->out, cost.flops, cost.bytes);
}

/* Of a move only its start and the end of its wait are known. They go one after the other, so none begins before the one
 * before it on the same row is over. */
static void write_move(struct sh_exec_trace *t, int move, int64_t wait_begin, int64_t wait_end)
{
    const struct sh_op *op = &t->p->ops[move];
    int64_t begin = t->device->event_ns(t->begin[move]), *busy = &t->busy_until[op->stream];
    char detail[SH_EXEC_LABEL];

    begin = begin > *busy ? begin : *busy;
    begin = begin < wait_end ? begin : wait_end;
    *busy = wait_end;
    snprintf(detail, sizeof detail, "%lld bytes", (long long)sh_tensor_bytes(&t->p->tensors[op->in[0]]));
    sh_trace_event(t->out, op->stream, t->labels[move], detail, begin, wait_end);
    sh_trace_event(t->out, t->p->n_streams + 1, "wait", t->labels[move], wait_begin, wait_end);
}

static sh_rc write_op(struct sh_exec_trace *t, const struct sh_section *s, int i, const int64_t *tickets)
{
    const struct sh_op *op = &t->p->ops[i];
    const struct sh_op_info *info = sh_op_info(op->kind);
    /* The end is the begin plus a device-side interval: two absolute readings would each carry an error of the clocks'
     * match. */
    int64_t begin = t->device->event_ns(t->begin[i]), end = begin + t->device->event_span_ns(t->begin[i], t->end[i]);

    if (info->async)
        return write_collective(t, i, tickets[i]);
    if (op->kind == SH_OP_WAIT && sh_op_info(t->p->ops[s->first_op + op->attr.waits_for].kind)->moves)
        write_move(t, s->first_op + op->attr.waits_for, begin, end);
    else if (op->kind == SH_OP_WAIT)
        /* On a row of its own, below the streams: a wait says how much of a collective the computation did not hide. */
        sh_trace_event(t->out, t->p->n_streams, "wait", t->labels[s->first_op + op->attr.waits_for], begin, end);
    else if (!info->marker && !info->moves)
        write_kernel(t, i, begin, end);
    return SH_OK;
}

/* NULL: not traced. The queue is drained, so a traced step is slower than others between its sections. */
sh_rc sh_exec_trace_section(struct sh_exec_trace *t, const struct sh_section *s, const int64_t *tickets)
{
    if (!t)
        return SH_OK;
    t->device->queue_drain(t->queue);
    for (int i = s->first_op; i < s->first_op + s->n_ops; i++)
        SH_TRY(write_op(t, s, i, tickets));
    return SH_OK;
}
