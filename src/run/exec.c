#include "src/run/exec.h"

#include "src/base/mem.h"
#include "src/base/time.h"

#include <stdio.h>
#include <stdlib.h>

enum { LABEL = 64 };

struct sh_exec {
    const struct sh_program *p;
    const struct sh_device *device;
    struct sh_comm *comm;
    char *arena;
    struct sh_op_call *calls; /* [ops] */
    int64_t *tickets;         /* [ops] of collectives under way or done */
    char (*labels)[LABEL];    /* [ops] "backward layers.3 linear_bwd_x" */
    struct sh_op_scalars scalars;
    int64_t step, compute_ns, wait_ns;
    struct sh_trace *trace;
};

static void make_label(const struct sh_program *p, const struct sh_op *op, char label[LABEL])
{
    const char *kind = sh_op_info(op->kind)->name, *phase = sh_phase_name(op->phase);

    if (op->unit != SH_NONE)
        snprintf(label, LABEL, "%s %.30s %s", phase, p->units[op->unit].name, kind);
    else if (op->block != SH_NONE)
        snprintf(label, LABEL, "%s layers.%d %s", phase, op->block, kind);
    else
        snprintf(label, LABEL, "%s %s", phase, kind);
}

static void share_segment(const struct sh_exec *e)
{
    const struct sh_segment *w = &e->p->segment;
    char *base = e->arena + e->p->own_bytes;
    struct sh_comm_segment segment = {.base = base,
                                    .peers = base + sh_segment_peer_at(w, 0),
                                    .peer_bytes = w->peer_bytes,
                                    .ranks = w->ranks,
                                    .rank = w->rank};

    sh_comm_set_segment(e->comm, &segment);
}

sh_rc sh_exec_create(const struct sh_program *p, const struct sh_device *device, struct sh_comm *comm, int segment_fd,
                     struct sh_exec **out)
{
    struct sh_exec *e;
    char *arena;

    SH_TRY(device->arena_create(p->own_bytes, sh_segment_bytes(&p->segment), segment_fd, &arena));
    e = sh_calloc(1, sizeof *e);
    *e = (struct sh_exec){.p = p,
                          .device = device,
                          .comm = comm,
                          .arena = arena,
                          .calls = sh_calloc((size_t)p->n_ops, sizeof *e->calls),
                          .tickets = sh_calloc((size_t)p->n_ops, sizeof *e->tickets),
                          .labels = sh_calloc((size_t)p->n_ops, sizeof *e->labels)};
    for (int i = 0; i < p->n_ops; i++) {
        sh_program_call(p, &p->ops[i], arena, &e->calls[i]);
        e->calls[i].scalars = &e->scalars;
        make_label(p, &p->ops[i], e->labels[i]);
    }
    if (p->segment.ranks)
        share_segment(e);
    *out = e;
    return SH_OK;
}

void sh_exec_destroy(struct sh_exec *e)
{
    if (!e)
        return;
    e->device->arena_destroy(e->arena, e->p->own_bytes + sh_segment_bytes(&e->p->segment));
    free(e->calls);
    free(e->tickets);
    free(e->labels);
    free(e);
}

/* Elements of one rank's part: what it gives to a gather, or gets from a scatter. */
static int64_t part_elems(const struct sh_exec *e, const struct sh_op *op)
{
    int t = op->kind == SH_OP_ALL_GATHER ? op->in[0] : op->out[0];

    return sh_tensor_elems(&e->p->tensors[t]);
}

static sh_rc start(struct sh_exec *e, const struct sh_section *s, int i)
{
    const struct sh_op *op = &e->p->ops[i];
    const struct sh_op_call *call = &e->calls[i];
    struct sh_coll coll = {.kind = op->kind,
                           .stream = op->stream,
                           .axis = (enum sh_axis)op->attr.axis,
                           .dtype = call->out[0].dtype,
                           .send = call->in[0].data,
                           .recv = call->out[0].data,
                           .count = part_elems(e, op),
                           .label = e->labels[i]};

    if (op->attr.after != SH_NONE)
        coll.after = e->tickets[s->first_op + op->attr.after];
    return sh_comm_start(e->comm, &coll, &e->tickets[i]);
}

static void trace_collective(struct sh_exec *e, int i)
{
    struct sh_coll_record r;
    char detail[LABEL];

    if (!sh_comm_record(e->comm, e->tickets[i], &r))
        return;
    snprintf(detail, sizeof detail, "%s axis, %lld bytes a rank", sh_axis_name(r.axis), (long long)r.bytes);
    sh_trace_event(e->trace, e->p->ops[i].stream, e->labels[i], detail, r.start_ns, r.end_ns);
}

static sh_rc wait(struct sh_exec *e, const struct sh_section *s, int i)
{
    int collective = s->first_op + e->p->ops[i].attr.waits_for;
    int64_t begin = sh_now_ns(), end;

    SH_TRY(sh_comm_wait(e->comm, e->tickets[collective]));
    end = sh_now_ns();
    e->wait_ns += end - begin;
    if (e->trace) {
        trace_collective(e, collective);
        sh_trace_event(e->trace, SH_STREAMS, "wait", e->labels[collective], begin, end);
    }
    return SH_OK;
}

static sh_rc compute(struct sh_exec *e, int i)
{
    int64_t begin = sh_now_ns(), end;

    SH_TRY(e->device->kernels->run[e->p->ops[i].kind](&e->calls[i]));
    end = sh_now_ns();
    e->compute_ns += end - begin;
    if (e->trace)
        sh_trace_event(e->trace, SH_STREAM_COMPUTE, e->labels[i], e->p->tensors[e->p->ops[i].out[0]].name, begin, end);
    return SH_OK;
}

static sh_rc run_op(struct sh_exec *e, const struct sh_section *s, int i)
{
    const struct sh_op_info *info = sh_op_info(e->p->ops[i].kind);

    sh_comm_note(e->comm, e->step, e->labels[i]);
    if (info->comm)
        return start(e, s, i);
    if (e->p->ops[i].kind == SH_OP_WAIT)
        return wait(e, s, i);
    return info->marker ? SH_OK : compute(e, i);
}

void sh_exec_run_section(struct sh_exec *e, const struct sh_section *s)
{
    for (int i = 0; i < s->n_ops; i++) {
        sh_rc rc = run_op(e, s, s->first_op + i);

        if (rc != SH_OK)
            sh_stop(rc);
    }
}

void sh_exec_run(struct sh_exec *e, enum sh_section_kind kind)
{
    sh_exec_run_section(e, sh_program_section(e->p, kind));
}

struct sh_op_scalars *sh_exec_scalars(struct sh_exec *e)
{
    return &e->scalars;
}

void *sh_exec_data(struct sh_exec *e, int tensor)
{
    return e->arena + e->p->tensors[tensor].offset_bytes;
}

void sh_exec_put(struct sh_exec *e, int tensor, const void *host)
{
    e->device->put(sh_exec_data(e, tensor), host, sh_tensor_bytes(&e->p->tensors[tensor]));
}

void sh_exec_get(struct sh_exec *e, int tensor, void *host)
{
    e->device->get(host, sh_exec_data(e, tensor), sh_tensor_bytes(&e->p->tensors[tensor]));
}

void sh_exec_set_step(struct sh_exec *e, int64_t step)
{
    e->step = step;
}

void sh_exec_set_trace(struct sh_exec *e, struct sh_trace *t)
{
    e->trace = t;
    for (int i = 0; t && i < SH_STREAMS; i++)
        sh_trace_row(t, i, sh_stream_name((enum sh_stream)i));
    if (t)
        sh_trace_row(t, SH_STREAMS, "exposed communication");
}

struct sh_exec_time sh_exec_take_time(struct sh_exec *e)
{
    struct sh_exec_time t = {.compute = (double)e->compute_ns / 1e9, .exposed_comm = (double)e->wait_ns / 1e9};

    e->compute_ns = e->wait_ns = 0;
    return t;
}
