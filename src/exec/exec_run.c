/* How the executor runs a section: operations in their order, collectives and moves alongside them. */
#include "src/exec/exec_state.h"

/* Each sequence is an exchange of its own, with a ticket of its own, which follow each other. Those of a stream are complete
 * in their order; the last one's ticket is kept. */
static sh_rc start_sequences(struct sh_exec *e, const struct sh_op *op, struct sh_coll coll, int64_t *ticket)
{
    int64_t bytes = coll.count * sh_comm_group_size(e->comm, coll.group) * sh_dtype_bytes(coll.dtype);

    for (int s = 0; s < sh_program_exchanges(op); s++) {
        SH_TRY(sh_comm_start(e->comm, &coll, ticket));
        coll.send = (const char *)coll.send + bytes;
        coll.recv = (char *)coll.recv + bytes;
    }
    return SH_OK;
}

/* Start collective i and keep its ticket, by which later operations of the section wait for it. */
static sh_rc start(struct sh_exec *e, const struct sh_section *s, int i)
{
    const struct sh_op *op = &e->p->ops[i];
    const struct sh_op_call *call = &e->calls[i];
    struct sh_coll coll = {.kind = op->kind,
                           .stream = op->stream,
                           .group = op->attr.group,
                           .dtype = e->p->tensors[sh_program_result(op)].dtype,
                           .send = call->in[0].data,
                           .recv = call->out[0].data,
                           .count = sh_program_part_elems(e->p, op, sh_comm_group_size(e->comm, op->attr.group)),
                           .parts = e->parts[i].rows || e->parts[i].cuts ? &e->parts[i] : NULL,
                           .queue = e->queue,
                           .label = e->labels[i]};

    if (sh_program_is_message(op))
        coll.peer = sh_comm_place(e->comm, op->attr.group) + op->attr.link.peer;
    /* Positions in `after` and `waits_for` count from the section's first operation, tickets from the program's. */
    if (op->attr.after != SH_NONE)
        coll.after = e->tickets[s->first_op + op->attr.after];
    if (sh_program_exchanges(op) > 1)
        return start_sequences(e, op, coll, &e->tickets[i]);
    return sh_comm_start(e->comm, &coll, &e->tickets[i]);
}

static sh_rc start_move(struct sh_exec *e, int i)
{
    if (!e->host)
        return sh_moves_start(e->moves, &e->p->ops[i], &e->tickets[i]);
    sh_host_moves_start(e->host, i);
    return SH_OK;
}

/* For a file the host waits; otherwise a GPU's queue does. */
static sh_rc wait_for_move(struct sh_exec *e, int move)
{
    sh_rc rc = SH_OK;

    if (e->host)
        sh_host_moves_join(e->host, move);
    else
        rc = sh_moves_wait(e->moves, e->tickets[move]);
    return rc == SH_OK ? rc : sh_fail_prefix(rc, "step %lld, %s: ", (long long)e->step, e->labels[move]);
}

/* What comes back through memory of the host does so for each ticket. */
static sh_rc join_all(struct sh_exec *e, const struct sh_op *op, int64_t last)
{
    for (int64_t ticket = last - sh_program_exchanges(op) + 1; ticket <= last; ticket++)
        SH_TRY(sh_comm_join(e->comm, ticket, e->queue));
    return SH_OK;
}

/* Two ways to wait. A GPU's queue is made to wait for the collective, and the host continues; without a queue the host
 * waits. */
static sh_rc wait(struct sh_exec *e, const struct sh_section *s, int i)
{
    int waited = s->first_op + e->p->ops[i].attr.waits_for;
    int64_t ticket = e->tickets[waited];

    if (sh_op_info(e->p->ops[waited].kind)->moves)
        return wait_for_move(e, waited);
    return e->queue ? join_all(e, &e->p->ops[waited], ticket) : sh_comm_wait(e->comm, ticket);
}

/* On a device the failure may be that of an earlier operation. */
static sh_rc run_kernel(struct sh_exec *e, int i)
{
    sh_rc rc = e->device->run(&e->calls[i], e->labels[i]);

    sh_counts_note(e->counts, i);
    return rc == SH_OK || !e->queue || e->sync ? rc : sh_fail_prefix(rc, "enqueuing %s: ", e->labels[i]);
}

static sh_rc run_op(struct sh_exec *e, const struct sh_section *s, int i)
{
    const struct sh_op_info *info = sh_op_info(e->p->ops[i].kind);

    if (sh_counts_idle(e->counts, i)) {
        e->tickets[i] = 0;
        return SH_OK;
    }
    if (e->p->streams[e->p->ops[i].stream].runs == SH_RUNS_COLLECTIVES)
        return start(e, s, i);
    if (info->moves)
        return start_move(e, i);
    if (e->p->ops[i].kind == SH_OP_WAIT)
        return wait(e, s, i);
    return info->marker ? SH_OK : run_kernel(e, i);
}

/* An operation that fails on a device shows at some later call, unless the host waits for it. */
static sh_rc run_and_check(struct sh_exec *e, const struct sh_section *s, int i)
{
    sh_rc rc = run_op(e, s, i);

    if (rc == SH_OK && e->sync)
        rc = e->device->queue_check(e->queue);
    return rc == SH_OK || !e->sync ? rc : sh_fail_prefix(rc, "step %lld, %s: ", (long long)e->step, e->labels[i]);
}

/* Operations of an update that is carried into the section are left out if no update is pending. */
static bool runs_now(const struct sh_exec *e, const struct sh_section *s, int i)
{
    return e->pending || !sh_program_carried(s, &e->p->ops[i]);
}

/* Whether a section changes the state: UPDATE does, INIT changes what is derived from it, and so does the first
 * micro-step if an update is carried into it. */
static bool changes_state(const struct sh_exec *e, const struct sh_section *s)
{
    bool first = s->kind == SH_SECTION_FIRST || s->kind == SH_SECTION_ONLY;

    return s->kind == SH_SECTION_INIT || s->kind == SH_SECTION_UPDATE || (first && e->pending);
}

/* Slices that the host has looked at lie where the section will write, so they go to their homes first; and slices that
 * it fetches must have been written. While an update is pending, no other section would find the parameters that it
 * expects. */
static sh_rc make_ready(struct sh_exec *e, const struct sh_section *s)
{
    sh_rc rc;

    if (e->pending && (s->kind == SH_SECTION_INIT || !changes_state(e, s)))
        return sh_fail(SH_E_BUG, "%s: an update is pending", sh_section_name(s->kind));
    if (!e->moves)
        return SH_OK;
    rc = sh_moves_settle(e->moves);
    if (rc == SH_OK && changes_state(e, s))
        rc = sh_moves_fill(e->moves);
    return rc == SH_OK ? rc : sh_fail_prefix(rc, "step %lld, %s: ", (long long)e->step, sh_section_name(s->kind));
}

static void call_looks(const struct sh_exec *e, int op, bool done)
{
    for (int i = 0; i < SH_EXEC_LOOKS; i++)
        if (e->looks[i].look)
            e->looks[i].look(e->looks[i].arg, op, done);
}

static sh_rc run_ops(struct sh_exec *e, const struct sh_section *s)
{
    for (int i = s->first_op; i < s->first_op + s->n_ops; i++) {
        if (!runs_now(e, s, i))
            continue;
        call_looks(e, i, false);
        sh_exec_watch_begin(e->watch, e->step, i);
        SH_TRY(run_and_check(e, s, i));
        sh_exec_watch_end(e->watch, i);
        call_looks(e, i, true);
    }
    return sh_exec_watch_leave(e->watch, e->pending, e->tickets);
}

/* Errors end the job here: the other ranks are in the same section and wait in collectives that this rank would not
 * join. */
void sh_exec_run_section(struct sh_exec *e, const struct sh_section *s)
{
    sh_rc rc = make_ready(e, s);

    if (rc != SH_OK)
        sh_stop(rc);
    sh_exec_watch_enter(e->watch, s);
    /* Such sections overwrite the state that a snapshot may still be read from. All other sections only read it. */
    if (changes_state(e, s))
        e->device->queue_after(e->queue, e->copied);
    rc = run_ops(e, s);
    if (rc != SH_OK)
        sh_stop(rc);
    e->pending = false;
}

void sh_exec_run(struct sh_exec *e, enum sh_section_kind kind)
{
    sh_exec_run_section(e, sh_program_section(e->p, kind));
}

void sh_exec_update(struct sh_exec *e, bool now)
{
    if (e->pending)
        sh_stop(sh_fail(SH_E_BUG, "an update while the one before it is pending"));
    e->pending = sh_program_carries(e->p);
    if (now || !e->pending)
        sh_exec_run(e, SH_SECTION_UPDATE);
}

void sh_exec_settle(struct sh_exec *e)
{
    if (e->pending)
        sh_exec_run(e, SH_SECTION_UPDATE);
}

bool sh_exec_is_pending(const struct sh_exec *e)
{
    return e->pending;
}
