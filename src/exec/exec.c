#include "src/exec/exec.h"

#include "kernels/rows.h"
#include "src/base/mem.h"
#include "src/exec/counts.h"
#include "src/exec/host_moves.h"
#include "src/exec/moves.h"
#include "src/exec/exec_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sh_exec {
    const struct sh_program *p;
    const struct sh_device *device;
    struct sh_comm *comm;
    struct sh_bases at;         /* the tiers */
    struct sh_moves *moves;     /* of the file tier; NULL: there is none */
    struct sh_host_moves *host; /* of the host tier; NULL: the program moves nothing there */
    char *extra;                /* pinned memory that sh_exec_host() lends */
    int64_t extra_bytes;
    void *queue, *copies;          /* queues of the operations, and of copies alongside them */
    void *before_copies, *copied;  /* events */
    struct sh_op_call *calls;      /* [ops] */
    struct sh_coll_parts *parts;   /* [ops] of exchanges of counted rows, or by cuts */
    struct sh_counts *counts;      /* of those rows, as the host knows them; NULL: it reads the tensors */
    int64_t *tickets;              /* [ops] of collectives and moves under way or done; 0: had nothing to do */
    char (*labels)[SH_EXEC_LABEL]; /* [ops] "backward layers.3 linear_bwd_x" */
    struct sh_op_scalars scalars;
    struct sh_op_scalars update_scalars; /* of updates, which may come a step later */
    bool pending;                        /* an update was put off */
    int64_t step;
    struct sh_exec_watch *watch;
    bool sync; /* wait after each operation */
    struct {
        void (*look)(void *arg, int op, bool done); /* NULL: nobody looks */
        void *arg;
    } looks[SH_EXEC_LOOKS];
};

/* Two queues, so that a snapshot travels to the host alongside the operations. Two events order them: copies begin when
 * the state is complete (before_copies), and the update waits until they are done (copied). */
static void make_queues(struct sh_exec *e)
{
    e->queue = e->device->queue_create(false);
    e->copies = e->device->queue_create(false);
    e->before_copies = e->device->event_create(false);
    e->copied = e->device->event_create(false);
    if (e->device->gpu && sh_program_moves(e->p))
        e->host = sh_host_moves_open(e->p, e->device, &e->at, e->queue);
}

/* Cuts of replicas that share the matrices of other ranks. */
static int runs_before(const struct sh_op *op)
{
    return op->attr.exchange.sharers ? op->attr.exchange.run * (op->attr.exchange.sharers + 1) : 0;
}

/* Where the whole is cut is known. */
static struct sh_coll_parts parts_by_cuts(const struct sh_program *p, const struct sh_op *op)
{
    return (struct sh_coll_parts){.cuts = sh_program_cuts(p, op) + runs_before(op),
                                  .sharers = op->attr.exchange.sharers,
                                  .back = op->attr.exchange.back,
                                  .send_room = sh_tensor_elems(&p->tensors[op->in[0]]),
                                  .recv_room = sh_tensor_elems(&p->tensors[op->out[0]])};
}

/* How many rows each rank has for each, and where, is the result of an operation; where it will lie is known. */
static struct sh_coll_parts parts_of(const struct sh_program *p, const struct sh_op *op, const struct sh_op_call *call)
{
    const struct sh_operand *parts = &call->in[1];
    const int32_t *rows = parts->data;

    return (struct sh_coll_parts){.rows = rows,
                                  .at = rows + parts->dim[1] * parts->dim[2],
                                  .back = op->attr.exchange.back,
                                  .row_elems = op->attr.exchange.row_elems,
                                  .send_room = sh_tensor_elems(&p->tensors[op->in[0]]),
                                  .recv_room = sh_tensor_elems(&p->tensors[op->out[0]])};
}

/* Addresses do not change once the tiers are open, so each operation's arguments are resolved here and not in each
 * step. */
static sh_rc make_calls(struct sh_exec *e)
{
    const struct sh_program *p = e->p;

    e->calls = sh_calloc((size_t)p->n_ops, sizeof *e->calls);
    e->parts = sh_calloc((size_t)p->n_ops, sizeof *e->parts);
    e->tickets = sh_calloc((size_t)p->n_ops, sizeof *e->tickets);
    e->labels = sh_calloc((size_t)p->n_ops, sizeof *e->labels);
    for (int i = 0; i < p->n_ops; i++) {
        sh_program_call(p, &p->ops[i], &e->at, &e->calls[i]);
        e->calls[i].scalars = p->ops[i].phase == SH_PHASE_UPDATE ? &e->update_scalars : &e->scalars;
        e->calls[i].queue = e->queue;
        sh_program_label(p, &p->ops[i], e->labels[i]);
    }
    e->watch = sh_exec_watch_open(p, e->device, e->queue, e->comm, e->labels);
    SH_TRY(sh_counts_open(p, e->device, e->queue, e->calls, &e->counts));
    for (int i = 0; i < p->n_ops; i++)
        if (sh_program_counts_rows(&p->ops[i]))
            e->parts[i] = parts_of(p, &p->ops[i], &e->calls[i]);
        else if (sh_program_cuts(p, &p->ops[i]))
            e->parts[i] = parts_by_cuts(p, &p->ops[i]);
    return SH_OK;
}

static sh_rc check_parts(const struct sh_exec *e, int i)
{
    const struct sh_op_call *call = &e->calls[i];
    int64_t ranks;

    if (!sh_program_counts_rows(&e->p->ops[i]))
        return SH_OK;
    ranks = sh_comm_group_size(e->comm, call->attr->group);
    if (call->in[1].dim[1] != ranks)
        return sh_fail(SH_E_BUG, "%s: parts of %lld ranks in a group of %lld", e->labels[i],
                       (long long)call->in[1].dim[1], (long long)ranks);
    return SH_OK;
}

/* Prepare before the first step, so that it is as fast as the others, and an operation that cannot run is reported
 * before anything runs. */
static sh_rc prepare_calls(const struct sh_exec *e)
{
    const struct sh_kernel_table *kernels = e->device->kernels;

    for (int i = 0; i < e->p->n_ops; i++)
        SH_TRY(check_parts(e, i));
    for (int i = 0; i < e->p->n_ops && kernels->prepare; i++) {
        sh_rc rc = kernels->run[e->calls[i].kind] ? sh_rows_run(kernels->prepare, &e->calls[i]) : SH_OK;

        if (rc != SH_OK)
            return sh_fail_prefix(rc, "%s: ", e->labels[i]);
    }
    return SH_OK;
}

/* The segment lies at the end of the device tier: the rank's own bytes first, then those that all ranks of the node
 * see. */
static void share_segment(const struct sh_exec *e)
{
    const struct sh_segment *w = &e->p->segment;
    char *base = e->at.tier[0] + e->p->own_bytes;
    struct sh_comm_segment segment = {.base = base,
                                      .peers = base + sh_program_segment_peer_at(w, 0),
                                      .peer_bytes = w->peer_bytes,
                                      .ranks = w->ranks,
                                      .rank = w->rank};

    sh_comm_set_segment(e->comm, &segment);
}

/* Memory of one tier, or its file. Only the device tier holds the shared segment; an empty tier gets nothing. */
static sh_rc open_tier(struct sh_exec *e, int i, int segment_fd, const struct sh_exec_file *file)
{
    const struct sh_tier *tier = &e->p->tiers[i];

    if (tier->kind == SH_TIER_DEVICE)
        return e->device->arena_create(tier->bytes, sh_program_segment_bytes(&e->p->segment), segment_fd,
                                       &e->at.tier[i]);
    if (!tier->bytes)
        return SH_OK;
    if (tier->kind == SH_TIER_HOST)
        return e->device->host_create(tier->bytes, &e->at.tier[i]);
    SH_REQUIRE(!e->device->gpu);
    return sh_moves_open(e->p, e->at.tier[0], file->folder, file->verify, &e->moves);
}

static void close_tiers(struct sh_exec *e)
{
    sh_moves_close(e->moves);
    for (int i = 0; i < e->p->n_tiers; i++) {
        const struct sh_tier *tier = &e->p->tiers[i];

        if (e->at.tier[i] && tier->kind == SH_TIER_DEVICE)
            e->device->arena_destroy(e->at.tier[i], tier->bytes + sh_program_segment_bytes(&e->p->segment));
        else if (e->at.tier[i])
            e->device->host_destroy(e->at.tier[i], tier->bytes);
    }
}

/* Local. On failure everything that was opened is closed again and *out is untouched. The caller keeps the program, the
 * device and the communicator, which must outlive the executor. */
sh_rc sh_exec_create(const struct sh_program *p, const struct sh_device *device, struct sh_comm *comm, int segment_fd,
                     const struct sh_exec_file *file, struct sh_exec **out)
{
    struct sh_exec *e = sh_calloc(1, sizeof *e);
    sh_rc rc = SH_OK;

    *e = (struct sh_exec){.p = p, .device = device, .comm = comm};
    for (int i = 0; i < p->n_tiers && rc == SH_OK; i++)
        rc = open_tier(e, i, segment_fd, file);
    if (rc != SH_OK) {
        /* Nothing but tiers exists here yet, so sh_exec_destroy(), which drains queues, would be wrong. */
        close_tiers(e);
        free(e);
        return rc;
    }
    make_queues(e);
    rc = make_calls(e);
    if (rc == SH_OK)
        rc = prepare_calls(e);
    if (rc != SH_OK) {
        sh_exec_destroy(e);
        return rc;
    }
    if (p->segment.ranks)
        share_segment(e);
    *out = e;
    return SH_OK;
}

/* Queues are drained first: an operation under way still reads the memory that is freed below. */
void sh_exec_destroy(struct sh_exec *e)
{
    if (!e)
        return;
    e->device->queue_drain(e->queue);
    e->device->queue_drain(e->copies);
    sh_host_moves_close(e->host);
    sh_counts_close(e->counts);
    sh_exec_watch_close(e->watch);
    e->device->event_destroy(e->before_copies);
    e->device->event_destroy(e->copied);
    e->device->queue_destroy(e->queue);
    e->device->queue_destroy(e->copies);
    close_tiers(e);
    if (e->extra)
        e->device->host_destroy(e->extra, e->extra_bytes);
    free(e->calls);
    free(e->parts);
    free(e->tickets);
    free(e->labels);
    free(e);
}

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

void *sh_exec_queue(struct sh_exec *e)
{
    return e->queue;
}

struct sh_op_scalars *sh_exec_scalars(struct sh_exec *e)
{
    return &e->scalars;
}

struct sh_op_scalars *sh_exec_update_scalars(struct sh_exec *e)
{
    return &e->update_scalars;
}

/* No caller can continue with an address that is invalid. */
void *sh_exec_data(struct sh_exec *e, int tensor)
{
    const struct sh_tensor *t = &e->p->tensors[tensor < 0 ? 0 : tensor];

    if (tensor < 0 || !e->at.tier[t->tier])
        sh_stop(sh_fail(SH_E_BUG, "%s has no address: it lies in no memory", tensor < 0 ? "no tensor" : t->name));
    return e->at.tier[t->tier] + t->offset_bytes;
}

void sh_exec_put(struct sh_exec *e, enum sh_port port, const void *host)
{
    int tensor = e->p->port[port];

    if (tensor != SH_NONE)
        sh_exec_put_at(e, sh_exec_data(e, tensor), host, sh_tensor_bytes(&e->p->tensors[tensor]));
}

/* Waits for the queue, so what is returned is the result of all operations before. */
void sh_exec_get(struct sh_exec *e, enum sh_port port, void *host)
{
    int tensor = e->p->port[port];

    sh_exec_get_at(e, host, sh_exec_data(e, tensor), sh_tensor_bytes(&e->p->tensors[tensor]));
}

sh_rc sh_exec_lend(struct sh_exec *e, int slice, bool change, char **extent)
{
    if (!e->host)
        return sh_moves_lend(e->moves, slice, change, extent);
    *extent = sh_exec_data(e, e->p->slices[slice].home);
    return SH_OK;
}

void sh_exec_give_back(struct sh_exec *e)
{
    if (e->moves)
        sh_moves_give_back(e->moves);
}

void sh_exec_forget_slices(struct sh_exec *e)
{
    e->pending = false;
    if (e->moves)
        sh_moves_forget(e->moves);
    if (e->host) {
        e->device->queue_drain(e->copies);
        sh_host_moves_forget(e->host);
    }
}

/* Whether an address is in the host tier, which the host itself reads and writes once the queue is drained. */
static bool is_home(const struct sh_exec *e, const void *at)
{
    int host = e->host ? sh_program_host_tier(e->p) : SH_NONE;
    const char *begin = host == SH_NONE ? NULL : e->at.tier[host];

    if (!begin || (const char *)at < begin || (const char *)at >= begin + e->p->tiers[host].bytes)
        return false;
    e->device->queue_drain(e->queue);
    return true;
}

/* The bytes of `host` may be reused on return. */
void sh_exec_put_at(struct sh_exec *e, void *device, const void *host, int64_t bytes)
{
    if (is_home(e, device))
        memcpy(device, host, (size_t)bytes);
    else
        e->device->put(e->queue, device, host, bytes);
}

void sh_exec_get_at(struct sh_exec *e, void *host, const void *device, int64_t bytes)
{
    if (is_home(e, device))
        memcpy(host, device, (size_t)bytes);
    else
        e->device->get(e->queue, host, device, bytes);
}

/* Halves are split and joined, and blocks packed, coded and back, in pieces that stay in the cache but are large enough
 * for a GPU's transfer to the host. */
enum { PIECE = 32768 };
_Static_assert(PIECE % SH_NF4_ELEMS == 0 && PIECE % SH_CODE8_ELEMS == 0, "whole blocks");

/* Room for at most PIECE elements, laid out like `like`, in `memory`, which has 4 bytes for each. */
static struct sh_floats room_like(struct sh_floats like, void *memory, int64_t n)
{
    if (like.packed)
        return (struct sh_floats){.packed = memory};
    if (like.coded)
        return (struct sh_floats){.coded = memory, .law = like.law};
    return sh_floats_in(memory, n, true);
}

/* A float32 in two halves is a bfloat16 and the 16 bits that remain (sh_floats_put()). The state of a unit with a
 * remainder is stored in this way, and everybody outside sees floats. */
void sh_exec_put_floats(struct sh_exec *e, struct sh_floats device, const float *host, int64_t n)
{
    void *memory;

    if (device.whole) {
        sh_exec_put_at(e, device.whole, host, n * (int64_t)sizeof *host);
        return;
    }
    memory = sh_calloc(PIECE, sizeof *host);
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t here = n - at < PIECE ? n - at : PIECE;
        struct sh_floats to = sh_floats_at(device, at), room = room_like(device, memory, here);

        sh_floats_put(room, here, host + at);
        for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(to, i); i++)
            sh_exec_put_at(e, sh_floats_array(to, i), sh_floats_array(room, i), sh_floats_bytes(to, here));
    }
    free(memory);
}

/* The inverse of sh_exec_put_floats(). */
void sh_exec_get_floats(struct sh_exec *e, float *host, struct sh_floats device, int64_t n)
{
    void *memory;

    if (device.whole) {
        sh_exec_get_at(e, host, device.whole, n * (int64_t)sizeof *host);
        return;
    }
    memory = sh_calloc(PIECE, sizeof *host);
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t here = n - at < PIECE ? n - at : PIECE;
        struct sh_floats from = sh_floats_at(device, at), room = room_like(device, memory, here);

        for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(from, i); i++)
            sh_exec_get_at(e, sh_floats_array(room, i), sh_floats_array(from, i), sh_floats_bytes(from, here));
        room.low = from.low ? room.low : NULL;
        sh_floats_get(room, here, host + at);
    }
    free(memory);
}

/* Element i of a parameter has the same value on any mesh: it depends on key and index only, so `first` is the index of
 * the first element here. */
void sh_exec_fill_normal(struct sh_exec *e, struct sh_floats device, uint64_t key, struct sh_rng_runs runs, float std)
{
    sh_rc rc = e->device->kernels->fill_normal(key, &runs, std, device, e->queue);

    if (rc != SH_OK)
        sh_stop(rc);
}

/* From here to sh_exec_copies_end() copies and sums go to the second queue. It starts when the operations given so far
 * are done; later operations run alongside it. */
void sh_exec_copies_begin(struct sh_exec *e)
{
    e->device->event_mark(e->before_copies, e->queue);
    e->device->queue_after(e->copies, e->before_copies);
}

void sh_exec_copy(struct sh_exec *e, void *host, const void *device, int64_t bytes)
{
    e->device->copy(e->copies, host, device, bytes);
}

void sh_exec_widen(struct sh_exec *e, float *host, struct sh_floats device, int64_t n)
{
    sh_rc rc = e->device->kernels->widen(device, n, host, e->copies);

    if (rc != SH_OK)
        sh_stop(rc);
}

/* On the queue of copies: it reads the same state as they do and must end before the update. */
void sh_exec_mixsum(struct sh_exec *e, struct sh_floats device, int64_t first, int64_t n, uint64_t place,
                    uint64_t *sums)
{
    sh_rc rc = e->device->kernels->mixsum(device, first, n, place, sums, e->copies);

    if (rc != SH_OK)
        sh_stop(rc);
}

/* Pinned memory of at least that many bytes, owned by the executor and valid until a larger request. Ask for it while
 * no copy is under way, so that the old one can be freed at once. */
void *sh_exec_host(struct sh_exec *e, int64_t bytes)
{
    sh_rc rc = SH_OK;

    if (bytes <= e->extra_bytes)
        return e->extra;
    if (e->extra)
        e->device->host_destroy(e->extra, e->extra_bytes);
    e->extra_bytes = bytes;
    rc = e->device->host_create(bytes, &e->extra);
    if (rc != SH_OK)
        sh_stop(rc);
    return e->extra;
}

void sh_exec_copies_end(struct sh_exec *e)
{
    e->device->event_mark(e->copied, e->copies);
}

/* The host waits. The device's operations wait at the next update or init section instead. */
void sh_exec_copies_wait(struct sh_exec *e)
{
    e->device->event_wait(e->copied);
}

void sh_exec_set_look(struct sh_exec *e, enum sh_exec_looks who, void (*look)(void *arg, int op, bool done), void *arg)
{
    e->looks[who].look = look;
    e->looks[who].arg = arg;
}

const struct sh_op_call *sh_exec_call(const struct sh_exec *e, int op)
{
    return &e->calls[op];
}

void sh_exec_set_step(struct sh_exec *e, int64_t step)
{
    e->step = step;
}

/* Only a device that can report errors per operation has something to synchronize; on a CPU each operation is done when
 * it returns. */
void sh_exec_set_sync(struct sh_exec *e, bool sync)
{
    e->sync = sync && e->device->queue_check;
}

void sh_exec_set_trace(struct sh_exec *e, struct sh_trace *t)
{
    sh_exec_watch_set_trace(e->watch, t ? sh_exec_trace_create(e->p, e->device, e->queue, e->comm, e->calls, t) : NULL);
}

/* Time since the last call, in spans that are over by now; spans still under way count at the next call. */
struct sh_exec_time sh_exec_take_time(struct sh_exec *e)
{
    struct sh_exec_time time = {0};
    double seconds[SH_EXEC_TIMINGS];

    sh_exec_watch_take(e->watch, seconds);
    time.compute = seconds[SH_EXEC_TIMING_SECTION] - seconds[SH_EXEC_TIMING_WAIT] - seconds[SH_EXEC_TIMING_MOVE];
    time.exposed_comm = seconds[SH_EXEC_TIMING_WAIT];
    time.exposed_offload = seconds[SH_EXEC_TIMING_MOVE];
    if (e->moves)
        sh_moves_take(e->moves, &time.read_bytes, &time.written_bytes);
    if (e->host)
        sh_host_moves_take(e->host, &time.read_bytes, &time.written_bytes);
    return time;
}
