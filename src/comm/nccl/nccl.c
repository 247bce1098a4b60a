/* The nccl backend: collectives from GPU to GPU.
 *
 * There is a communicator for everything that runs at the same time: gathers, reductions and sums over replicas, since
 * one communicator runs one collective at a time. All are split from one communicator of the world, and each stream has
 * a queue, with priority over that of the computation. The caller's thread launches; the mpi backend beneath runs
 * collectives on host memory, and its progress thread watches all of them: events tell it when a collective has started
 * and when it is done, so that stall reports and the flight recorder are the same.
 *
 * Sums are ncclSum of fp32, fp64 or bf16 (most of NCCL's algorithms then round each addition); never ncclAvg, whose 1/N
 * is rounded to the type.
 * Communicators block: otherwise NCCL makes a thread for each collective, and asking for the state of one changes it.
 * The caller notes when it enters NCCL; the progress thread, which owns MPI meanwhile, watches the time and NCCL's own
 * errors, and is never in a communicator together with the caller.
 * A job that fails is taken down by MPI_Abort, which ends the processes and with them the kernels that wait;
 * communicators are not aborted first, because that is only safe while no other thread is inside NCCL. */
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/comm/nccl/nccl_load.h"
#include "src/comm/nccl/nccl_uses.h"
#include "src/comm/parts.h"
#include "src/comm/mpi/progress.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define SAY_AFTER_NS ((int64_t)10e9)

/* clang-format off */
struct nccl {
    ncclComm_t world;
    struct used {
        int stream;
        sh_group group;
        ncclComm_t comm; /* a group of several ranks; some groups share one */
    } *used;
    struct made {
        ncclComm_t comm;
        int stream;
        sh_group group;
        char name[32 + SH_GROUP_NAME]; /* NCCL keeps the pointer */
    } *made;                           /* each communicator once */
    int n_used, n_made;
    void *queue[SH_STREAMS_MAX];
    struct sh_part_extent *to, *from; /* [world] the parts of an ALL_TO_ALL, while it is enqueued */
};
/* clang-format on */

static struct nccl state; /* one job, one mesh */

/* Tells the progress thread how long the caller has been in NCCL. */
static struct {
    pthread_mutex_t lock;     /* one thread at a time may be in a communicator */
    _Atomic int64_t since_ns; /* 0: not in NCCL */
    _Atomic(const char *) what;
    int64_t said_ns; /* since_ns of the stay that was logged */
} stay = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* For the report: what the caller is doing in NCCL, and since when. */
static void begin_stay(const char *what)
{
    atomic_store(&stay.what, what);
    atomic_store(&stay.since_ns, sh_now_ns());
}

static void end_stay(void)
{
    atomic_store(&stay.since_ns, 0);
}

static void enter(const char *what)
{
    pthread_mutex_lock(&stay.lock);
    begin_stay(what);
}

static void leave(void)
{
    end_stay();
    pthread_mutex_unlock(&stay.lock);
}

static sh_rc nccl_failed(const char *what, ncclResult_t rc, ncclComm_t comm)
{
    return sh_fail(SH_E_COMM, "NCCL: %s: %s (%s)", what, sh_nccl.ncclGetErrorString(rc),
                   sh_nccl.ncclGetLastError(comm));
}

/* Peers may be inside the same call, and wait there for ever. */
static void must(const struct sh_comm *c, ncclResult_t rc, const char *what, ncclComm_t comm)
{
    if (rc != ncclSuccess)
        sh_mpi_fail(c->backend, nccl_failed(what, rc, comm));
}

/* `blocking`: a call returns when it is done, so the stay shows how long it took. */
static void configure(const struct sh_comm *c, const char *name, ncclConfig_t *config)
{
    *config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
    config->blocking = 1;
    config->commName = name;
    if (c->opt.nccl_max_ctas)
        config->maxCTAs = c->opt.nccl_max_ctas;
}

/* NCCL refuses two ranks of one host on one GPU. Each then poses as a separate host, and all talk through the loopback
 * device, with few blocks, since those of all ranks must fit on the GPU together. NCCL reads this at its first use. */
static void pose_as_hosts(const struct sh_comm *c)
{
    static const char *const variables[][2] = {
        {"NCCL_NET", "Socket"},       {"NCCL_IB_DISABLE", "1"},
        {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_P2P_DISABLE", "1"},
        {"NCCL_SHM_DISABLE", "1"},    {"NCCL_MNNVL_ENABLE", "0"},
        {"NCCL_NVLS_ENABLE", "0"},    {"NCCL_MAX_CTAS", "4"},
        {"NCCL_PROTO", "Simple"},     {"NCCL_MULTI_RANK_GPU_ENABLE", "1"}, /* 2.30 and later */
    };
    char id[32];

    snprintf(id, sizeof id, "rank%d", c->mesh->rank);
    setenv("NCCL_HOSTID", id, 0);
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        setenv(variables[i][0], variables[i][1], 0);
}

/* Collective. Rank 0's id is sent by MPI; then MPI is lent to the progress thread, which watches while NCCL connects.
 */
static sh_rc make_world(struct sh_comm *c)
{
    static const char *const what = "connecting all ranks";
    ncclConfig_t config;
    ncclUniqueId id;
    ncclResult_t rc = ncclSuccess;

    configure(c, "sherd world", &config);
    enter("ncclGetUniqueId");
    if (c->mesh->rank == 0)
        rc = sh_nccl.ncclGetUniqueId(&id);
    leave();
    SH_TRY(sh_agree(rc == ncclSuccess ? SH_OK : nccl_failed("ncclGetUniqueId", rc, NULL)));
    SH_TRY(sh_mesh_bcast(&id, sizeof id, 0));
    sh_mpi_lend(c->backend);
    enter(what);
    rc = sh_nccl.ncclCommInitRankConfig(&state.world, c->mesh->world, id, c->mesh->rank, &config);
    leave();
    must(c, rc, what, state.world);
    return SH_OK;
}

/* Groups of different axes have the same ranks if the axes in which they differ have size 1. */
static bool same_ranks(const struct sh_mesh_shape *m, sh_group a, sh_group b)
{
    int size = sh_group_size(m, a), same = 0;

    if (sh_group_size(m, b) != size)
        return false;
    while (same < size && sh_group_member(m, a, same) == sh_group_member(m, b, same))
        same++;
    return same == size;
}

/* On one stream, groups of the same ranks share a communicator. */
static ncclComm_t find_made(const struct sh_comm *c, int stream, sh_group group)
{
    for (int i = 0; i < state.n_made; i++)
        if (state.made[i].stream == stream && same_ranks(&c->mesh->shape, state.made[i].group, group))
            return state.made[i].comm;
    return NULL;
}

/* Collective over the world: each rank names the group that it belongs to by that group's first member. The name must
 * outlive the communicator. */
static ncclComm_t make_comm(struct sh_comm *c, int stream, sh_group group)
{
    const struct sh_mesh_shape *m = &c->mesh->shape;
    struct made *made = &state.made[state.n_made];
    char name[SH_GROUP_NAME];
    ncclConfig_t config;
    ncclResult_t rc;

    snprintf(made->name, sizeof made->name, "sherd %s %s", c->opt.streams[stream].name, sh_group_name(m, group, name));
    configure(c, made->name, &config);
    made->stream = stream;
    made->group = group;
    enter(made->name);
    rc = sh_nccl.ncclCommSplit(state.world, sh_group_member(m, group, 0), sh_group_index(m, group), &made->comm,
                               &config);
    state.n_made += rc == ncclSuccess;
    leave();
    must(c, rc, made->name, state.world);
    return made->comm;
}

/* A group of one rank needs no communicator; its collectives are copies. */
static void add_use(struct sh_comm *c, int stream, sh_group group)
{
    struct used u = {.stream = stream, .group = group};

    if (sh_group_size(&c->mesh->shape, group) == 1)
        return;
    u.comm = find_made(c, stream, group);
    if (!u.comm)
        u.comm = make_comm(c, stream, group);
    state.used[state.n_used++] = u;
}

/* Collective. Stages have different programs, and splitting is collective over all of them: so each makes what any of
 * them needs.
 *   wanted  out  [SH_GROUPS * SH_STREAMS_MAX] 1 for a group and a stream that carries its collectives, else 0 */
static sh_rc agree_on_uses(const struct sh_comm *c, double *wanted)
{
    for (int g = 0; g < c->opt.n_groups; g++)
        for (int s = 0; s < c->opt.n_streams; s++)
            if (c->opt.groups[g].streams >> s & 1)
                wanted[c->opt.groups[g].axes * SH_STREAMS_MAX + (unsigned)s] = 1;
    return sh_mesh_max(wanted, SH_GROUPS * SH_STREAMS_MAX);
}

/* In the same order on all ranks, since splitting is collective. */
static void make_comms(struct sh_comm *c, const double *wanted)
{
    size_t n = 1;

    for (int i = 0; i < SH_GROUPS * SH_STREAMS_MAX; i++)
        n += wanted[i] > 0;
    state.used = sh_calloc(n, sizeof *state.used);
    state.made = sh_calloc(n, sizeof *state.made);
    state.to = sh_calloc((size_t)c->mesh->world, sizeof *state.to);
    state.from = sh_calloc((size_t)c->mesh->world, sizeof *state.from);
    for (int i = 0; i < SH_GROUPS * SH_STREAMS_MAX; i++)
        if (wanted[i] > 0)
            add_use(c, i % SH_STREAMS_MAX, (sh_group)i / SH_STREAMS_MAX);
}

/* NULL: the group has one rank. */
static ncclComm_t find_comm(const struct sh_coll *coll)
{
    for (int i = 0; i < state.n_used; i++)
        if (state.used[i].stream == coll->stream && state.used[i].group == coll->group)
            return state.used[i].comm;
    return NULL;
}

static sh_rc find_parts(const struct sh_comm *c, const struct sh_coll *coll);
static ncclResult_t enqueue(const struct sh_comm *c, const struct sh_coll *coll, ncclComm_t comm, void *queue);

/* Run a collective on a communicator, and wait for it. memory: room for the parts of all ranks of the group, which are
 * sent from there and received there. */
static void use_once(struct sh_comm *c, const struct made *made, const struct sh_coll *use, char *memory)
{
    int64_t part = use->count * sh_dtype_bytes(use->dtype);
    char *mine = memory + sh_group_index(&c->mesh->shape, made->group) * part;
    struct sh_coll coll = *use;
    void *queue = state.queue[made->stream], *done = c->events[0].done;
    ncclResult_t rc;

    coll.send = use->kind == SH_OP_ALL_GATHER ? mine : memory;
    coll.recv = use->kind == SH_OP_REDUCE_SCATTER ? mine : memory;
    if (use->kind == SH_OP_ALL_TO_ALL) /* not in place */
        coll.recv = memory + sh_group_size(&c->mesh->shape, made->group) * part;
    if (find_parts(c, &coll) != SH_OK)
        sh_mpi_fail(c->backend, SH_E_BUG);
    enter(made->name);
    rc = enqueue(c, &coll, made->comm, queue);
    leave();
    must(c, rc, made->name, made->comm);
    c->opt.device->event_mark(done, queue);
    begin_stay(made->name);
    while (!c->opt.device->event_is_done(done))
        sched_yield();
    end_stay();
}

/* One element, for a communicator of which the caller does not say what it will run. */
static struct sh_coll least_use(const struct made *made)
{
    enum sh_op_kind kind = made->stream == SH_STREAM_GATHER   ? SH_OP_ALL_GATHER
                           : made->stream == SH_STREAM_REDUCE ? SH_OP_REDUCE_SCATTER
                                                              : SH_OP_ALL_REDUCE;

    return (struct sh_coll){.kind = kind, .dtype = SH_F32, .count = 1};
}

static void use_made(struct sh_comm *c, const struct made *made, const struct sh_coll *uses, int n, char *memory)
{
    struct sh_coll least = least_use(made);
    bool used = made->group == c->mesh->shape.pipeline; /* which carries messages only, and only between neighbours */

    for (int i = 0; i < n; i++)
        if (uses[i].count && find_comm(&uses[i]) == made->comm) {
            use_once(c, made, &uses[i], memory);
            used = true;
        }
    if (!used)
        use_once(c, made, &least, memory);
}

/* Of all ranks' parts of the largest collective. */
static int64_t use_bytes(const struct sh_comm *c, const struct sh_coll *uses, int n)
{
    int64_t most = c->mesh->world * sh_dtype_bytes(SH_F32); /* of least_use() */

    for (int i = 0; i < n; i++) {
        int64_t bytes = sh_group_size(&c->mesh->shape, uses[i].group) * uses[i].count * sh_dtype_bytes(uses[i].dtype);

        bytes *= uses[i].kind == SH_OP_ALL_TO_ALL ? 2 : 1;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* NCCL connects, and takes its memory, when a communicator first uses an algorithm, which it chooses by the kind and
 * the size of a collective (2.22 and newer). So each one of the program runs here: a failure is one of the start, and
 * an arena that no longer fits is refused before the first step. The memory is no more than the arena will take, and
 * free again before that. */
static sh_rc use_all_once(struct sh_comm *c)
{
    struct sh_coll *uses;
    int n = sh_nccl_uses(c->opt.program, &c->mesh->shape, &uses);
    int64_t bytes = use_bytes(c, uses, n);
    char *memory = NULL;
    sh_rc rc = sh_agree(c->opt.device->arena_create(bytes, 0, -1, &memory));

    if (rc == SH_OK) {
        sh_mpi_lend(c->backend);
        for (int i = 0; i < state.n_made; i++)
            use_made(c, &state.made[i], uses, n, memory);
    }
    if (memory)
        c->opt.device->arena_destroy(memory, bytes);
    free(uses);
    return rc;
}

/* Collective. MPI is lent to the progress thread from then on. */
static sh_rc connect_groups(struct sh_comm *c)
{
    double *wanted = sh_calloc(SH_GROUPS * SH_STREAMS_MAX, sizeof *wanted);
    sh_rc rc = agree_on_uses(c, wanted);

    sh_mpi_lend(c->backend);
    if (rc == SH_OK)
        rc = make_world(c);
    if (rc == SH_OK)
        make_comms(c, wanted);
    free(wanted);
    return rc;
}

/* Collective. MPI is lent to the progress thread meanwhile, and taken back at the end. */
static sh_rc connect(struct sh_comm *c)
{
    int64_t begin = sh_now_ns(), used = c->opt.device->used_bytes();
    char before[SH_STR_SHORT], after[SH_STR_SHORT];
    int version;

    for (int s = 0; s < c->opt.n_streams; s++)
        if (c->opt.streams[s].runs == SH_RUNS_COLLECTIVES)
            state.queue[s] = c->opt.device->queue_create(true);
    SH_TRY(connect_groups(c));
    SH_TRY(use_all_once(c));
    sh_mesh_own_mpi(); /* MPI belonged to the caller before */
    SH_TRY(sh_nccl_version(&version));
    sh_log_info("NCCL %d.%d.%d connects %d ranks (%d communicators, %.1f s; in use on the GPU: %s before, %s after)",
                version / 10000, version / 100 % 100, version % 100, c->mesh->world, state.n_made + 1,
                sh_seconds_since(begin), sh_str_bytes(used, before), sh_str_bytes(c->opt.device->used_bytes(), after));
    return SH_OK;
}

static void destroy_queues(const struct sh_comm *c)
{
    for (int s = 0; s < c->opt.n_streams; s++)
        if (state.queue[s])
            c->opt.device->queue_destroy(state.queue[s]);
}

/* With an older driver NCCL keeps the order of its calls by letting one end before the next begins, so that two stages
 * could wait for each other's messages. */
static sh_rc check_driver(const struct sh_comm *c)
{
    enum { OLDEST = 12030 };
    int version = 0;

    if (sh_group_size(&c->mesh->shape, c->mesh->shape.pipeline) == 1 ||
        (cudaDriverGetVersion(&version) == cudaSuccess && version >= OLDEST))
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "parallelism.pipeline_parallel_degree: NCCL runs messages of stages side by side with a driver for "
                   "CUDA 12.3 or newer, and this one is for %d.%d; update it, or give comm.backend=mpi",
                   version / 1000, version % 1000 / 10);
}

/* The mpi backend is created first: its thread watches NCCL from the first call on. */
static sh_rc create(struct sh_comm *c)
{
    sh_rc rc;

    if (c->opt.share_gpu) /* before there is another thread: it could crash reading the environment meanwhile */
        pose_as_hosts(c);
    state = (struct nccl){0};
    SH_TRY(sh_agree(check_driver(c)));
    SH_TRY(sh_comm_mpi.create(c));
    rc = connect(c);
    if (rc == SH_OK)
        return SH_OK;
    destroy_queues(c);
    sh_comm_mpi.destroy(c); /* its thread uses c */
    return rc;
}

/* Finalize lets the peers finish what is under way; only then may the communicator be freed. */
static void destroy_comm(const struct sh_comm *c, ncclComm_t comm)
{
    static const char *const what = "closing a communicator";
    ncclResult_t rc;

    enter(what);
    rc = sh_nccl.ncclCommFinalize(comm);
    leave();
    must(c, rc, what, comm);
    enter(what);
    rc = sh_nccl.ncclCommDestroy(comm);
    leave();
    must(c, rc, what, NULL);
}

/* The progress thread must stop querying the communicators before they are closed; a count of 0 tells it to. */
static void destroy(struct sh_comm *c)
{
    int n = state.n_made;

    sh_mpi_lend(c->backend);
    enter("closing");
    state.n_made = 0; /* the progress thread no longer sees them */
    leave();
    for (int i = 0; i < n; i++)
        destroy_comm(c, state.made[i].comm);
    destroy_comm(c, state.world);
    destroy_queues(c);
    sh_comm_mpi.destroy(c); /* its thread reads what is freed next */
    free(state.used);
    free(state.made);
    free(state.to);
    free(state.from);
}

/* Before the caller is in NCCL: parts that do not fit are an error of Sherd's. */
static sh_rc find_parts(const struct sh_comm *c, const struct sh_coll *coll)
{
    const struct sh_mesh_shape *m = &c->mesh->shape;

    if (coll->kind != SH_OP_ALL_TO_ALL)
        return SH_OK;
    return sh_part_find(coll, sh_group_size(m, coll->group), sh_group_index(m, coll->group), state.to, state.from);
}

/* One group of sends and receives, by distance and with the rank itself; empty parts are left out on both sides. NCCL
 * has a call of its own for this only since 2.28, and for equal parts. */
static ncclResult_t exchange(const struct sh_comm *c, const struct sh_coll *coll, ncclComm_t comm, void *queue)
{
    int size = sh_group_size(&c->mesh->shape, coll->group), rank = sh_group_index(&c->mesh->shape, coll->group);
    int64_t elem = sh_dtype_bytes(coll->dtype);
    ncclResult_t rc = sh_nccl.ncclGroupStart(), end;

    if (rc != ncclSuccess)
        return rc;
    for (int d = 0; d < size && rc == ncclSuccess; d++) {
        int ahead = (rank + d) % size, behind = (rank - d + size) % size;
        struct sh_part_extent out = state.to[ahead], in = state.from[behind];

        if (out.n)
            rc = sh_nccl.ncclSend((const char *)coll->send + out.begin * elem, (size_t)(out.n * elem), ncclUint8, ahead,
                                  comm, queue);
        if (in.n && rc == ncclSuccess)
            rc = sh_nccl.ncclRecv((char *)coll->recv + in.begin * elem, (size_t)(in.n * elem), ncclUint8, behind, comm,
                                  queue);
    }
    end = sh_nccl.ncclGroupEnd();
    return rc == ncclSuccess ? end : rc;
}

/* The part of one of the two ranks that a message has. */
static ncclResult_t pass(const struct sh_coll *coll, ncclComm_t comm, void *queue)
{
    size_t bytes = (size_t)(coll->count * sh_dtype_bytes(coll->dtype));

    return coll->kind == SH_OP_SEND ? sh_nccl.ncclSend(coll->send, bytes, ncclUint8, coll->peer, comm, queue)
                                    : sh_nccl.ncclRecv(coll->recv, bytes, ncclUint8, coll->peer, comm, queue);
}

/* Only enqueues. There are no sums over int types. */
static ncclResult_t enqueue(const struct sh_comm *c, const struct sh_coll *coll, ncclComm_t comm, void *queue)
{
    static const ncclDataType_t types[SH_DTYPES] = {
        [SH_F32] = ncclFloat32, [SH_BF16] = ncclBfloat16, [SH_F64] = ncclFloat64,
        [SH_I32] = ncclInt32,   [SH_I64] = ncclInt64,     [SH_I16] = ncclBfloat16, /* gathered only: equal width */
        [SH_U8] = ncclUint8};
    size_t n = (size_t)coll->count;

    switch (coll->kind) {
    case SH_OP_ALL_GATHER: return sh_nccl.ncclAllGather(coll->send, coll->recv, n, types[coll->dtype], comm, queue);
    case SH_OP_REDUCE_SCATTER:
        return sh_nccl.ncclReduceScatter(coll->send, coll->recv, n, types[coll->dtype], ncclSum, comm, queue);
    case SH_OP_ALL_TO_ALL: return exchange(c, coll, comm, queue);
    case SH_OP_SEND:
    case SH_OP_RECEIVE: return pass(coll, comm, queue);
    default: return sh_nccl.ncclAllReduce(coll->recv, coll->recv, n, types[coll->dtype], ncclSum, comm, queue);
    }
}

/* A ticket older than the ring of events is complete, since its events have gone to a newer one. */
static void wait_for(struct sh_comm *c, int64_t ticket, void *queue)
{
    if (ticket > c->newest - SH_COMM_ON_DEVICE) /* else it was complete before its events were given away */
        c->opt.device->queue_after(queue, c->events[ticket % SH_COMM_ON_DEVICE].done);
}

/* The stream's queue waits for the operands; the caller's queue continues. The events let the progress thread see start
 * and end without NCCL. */
static sh_rc launch(struct sh_comm *c, struct sh_comm_item *item)
{
    const struct sh_device *device = c->opt.device;
    const struct sh_coll *coll = &item->coll;
    void *queue = state.queue[coll->stream];
    ncclComm_t comm = find_comm(coll);
    ncclResult_t rc;

    SH_REQUIRE(queue && (comm || sh_group_size(&c->mesh->shape, coll->group) == 1));
    if (comm)
        SH_TRY(find_parts(c, coll));
    device->event_mark(item->events->ready, coll->queue);
    device->queue_after(queue, item->events->ready);
    if (coll->after)
        wait_for(c, coll->after, queue);
    device->event_mark(item->events->begin, queue);
    if (comm && coll->count) {
        enter(coll->label);
        rc = enqueue(c, coll, comm, queue);
        leave();
        must(c, rc, coll->label, comm);
    } else {
        SH_TRY(sh_comm_run_alone(c, coll, queue));
    }
    device->event_mark(item->events->done, queue);
    return SH_OK;
}

static sh_rc join(struct sh_comm *c, int64_t ticket, void *queue)
{
    wait_for(c, ticket, queue);
    return SH_OK;
}

static void start(struct sh_comm *c, int64_t ticket)
{
    sh_comm_mpi.start(c, ticket);
}

/* Called by the progress thread: has the caller been in NCCL for too long, or long enough for a line in the log? */
static sh_rc look_at_stay(const struct sh_comm *c)
{
    int64_t since = atomic_load(&stay.since_ns), waited = since ? sh_now_ns() - since : 0;
    const char *what = atomic_load(&stay.what);

    if (c->opt.timeout_seconds > 0 && waited > (int64_t)(c->opt.timeout_seconds * 1e9))
        return sh_fail(SH_E_COMM,
                       "NCCL: %s is not complete after %g s (comm.train_timeout_seconds); NCCL_DEBUG=INFO shows "
                       "what it is doing",
                       what, c->opt.timeout_seconds);
    if (waited > SAY_AFTER_NS && since != stay.said_ns) {
        sh_log_info("NCCL: %s is taking its time ...", what);
        stay.said_ns = since;
    }
    return SH_OK;
}

static sh_rc ask(const struct made *made)
{
    ncclResult_t its = ncclSuccess, rc = sh_nccl.ncclCommGetAsyncError(made->comm, &its);

    if (rc != ncclSuccess)
        return nccl_failed("asking a communicator for its state", rc, made->comm);
    return its == ncclSuccess || its == ncclInProgress ? SH_OK : nccl_failed(made->name, its, made->comm);
}

/* A peer or the network failed; anything that waits for it would wait for ever. While the caller is inside, only its
 * time counts. */
static sh_rc look(struct sh_comm *c)
{
    sh_rc rc = look_at_stay(c);

    if (rc != SH_OK || pthread_mutex_trylock(&stay.lock) != 0)
        return rc;
    for (int i = 0; i < state.n_made && rc == SH_OK; i++)
        rc = ask(&state.made[i]);
    pthread_mutex_unlock(&stay.lock);
    return rc;
}

const struct sh_comm_ops sh_comm_nccl = {
    .name = "nccl",
    .create = create,
    .destroy = destroy,
    .start = start,
    .launch = launch,
    .join = join,
    .available = sh_nccl_load,
    .describe = sh_nccl_describe,
    .look = look,
};
