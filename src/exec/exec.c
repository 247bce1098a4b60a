/* The executor from its opening to its end; its sections run in exec_run.c. */
#include "src/exec/exec_state.h"

#include "kernels/rows.h"
#include "src/base/mem.h"

#include <stdlib.h>

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
                                  .others = op->attr.exchange.others,
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
