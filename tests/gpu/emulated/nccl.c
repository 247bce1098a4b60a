/* A double of NCCL for tests without a GPU, as close to the library as its caller can see:
 *   - Communicators are blocking or not. A non-blocking one finishes each call on a separate thread and returns
 *     ncclInProgress until then; ncclCommSplit returns ncclSuccess even so, and its communicator is NULL until it is
 *     connected.
 *   - Only one thread at a time may be in a communicator; a second one stops the process.
 *   - A collective is work in its stream. With NCCL_LAUNCH_ORDER_IMPLICIT, those of a process start in the order of
 *     their calls, on whatever stream and communicator.
 *   - Anything on which NCCL would hang or go wrong stops the process: ranks whose calls differ in kind, count, type,
 *     stream, communicator or order, messages whose lengths differ, and a NULL communicator in ncclCommGetAsyncError.
 *   - A group of sends and receives is one piece of work, and so is one outside of a group. Here a group has one
 *     communicator and one stream.
 *   - Any call fails, hangs or is slow on request, and the first large collectives take memory (emulated.h). */
#include "src/base/err.h"
#include "src/base/mem.h"
#include "src/comm/nccl/nccl_load.h"
#include "tests/gpu/emulated/emulated.h"
#include "tests/gpu/emulated/nccl_fault.h"
#include "tests/gpu/emulated/nccl_meet.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LARGE_BYTES = 1024 };

struct ncclComm {
    int rank, size, splits;
    bool blocks;
    char path[SH_MEET_PATH], name[SH_MEET_NAME];
    struct ncclComm *world; /* its meeting has the log */
    struct sh_meeting *m;
    void *taken[SH_MEET_KINDS]; /* memory of the GPU */
    _Atomic int inside;         /* threads */
    _Atomic int state;          /* ncclResult_t: of the call in progress, or why it failed later */
};

static void stop(const char *what, const char *name)
{
    sh_stop(sh_fail(SH_E_BUG, "emulated NCCL: %s '%s'", what, name));
}

static void enter(struct ncclComm *c)
{
    if (atomic_fetch_add(&c->inside, 1))
        stop("two threads are in communicator", c->name);
}

static void leave(struct ncclComm *c)
{
    atomic_fetch_sub(&c->inside, 1);
}

/* A call on a separate thread. */
struct job {
    struct ncclComm *c;
    ncclResult_t (*work)(void *arg);
    void *arg;
};

static void *job_main(void *arg)
{
    struct job *j = arg;
    struct ncclComm *c = j->c;

    sh_nccl_delay();
    int rc = j->work(j->arg);
    free(j);
    atomic_store(&c->state, rc);
    return NULL;
}

/* Finish a call here, or in the background. */
static ncclResult_t finish(struct ncclComm *c, ncclResult_t (*work)(void *arg), void *arg)
{
    pthread_t thread;
    struct job *j;

    if (c->blocks)
        return work(arg);
    j = sh_calloc(1, sizeof *j);
    *j = (struct job){c, work, arg};
    atomic_store(&c->state, ncclInProgress);
    if (pthread_create(&thread, NULL, job_main, j) != 0)
        return ncclSystemError;
    pthread_detach(thread);
    sh_emulated_count(SH_EMULATED_THREADS, 1);
    return ncclInProgress;
}

ncclResult_t ncclGetVersion(int *version)
{
    if (sh_nccl_fault_of(__func__))
        return ncclSystemError;
    *version = (int)sh_emulated_number("SHERD_EMULATED_NCCL_VERSION");
    if (!*version)
        *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    const char *folder = getenv("SHERD_EMULATED_FOLDER");
    static int n;

    if (sh_nccl_fault_of(__func__))
        return ncclSystemError;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%s/sherd-test-%ld-%d", folder ? folder : "/dev/shm", (long)getpid(),
             n++);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    case ncclInvalidArgument: return "invalid argument";
    default: return "an error of the emulated NCCL";
    }
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "as the test wants it";
}

static ncclResult_t meet(void *arg)
{
    struct ncclComm *c = arg;

    c->m = sh_meet_open(c->path, c->rank, c->size);
    return c->m ? ncclSuccess : ncclSystemError;
}

static struct ncclComm *make(const ncclConfig_t *config, int rank, int size)
{
    struct ncclComm *c = sh_calloc(1, sizeof *c);

    *c = (struct ncclComm){.rank = rank, .size = size, .blocks = config->blocking != 0};
    snprintf(c->name, sizeof c->name, "%s", config->commName ? config->commName : "");
    return c;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    enum sh_nccl_fault fault = sh_nccl_fault_of(__func__);
    struct ncclComm *c;
    ncclResult_t rc;

    *comm = NULL;
    if (fault == SH_NCCL_ERROR)
        return ncclSystemError;
    c = make(config, rank, size);
    c->world = c;
    snprintf(c->path, sizeof c->path, "%.*s", (int)sizeof id.internal, id.internal);
    *comm = c;
    rc = finish(c, meet, c);
    if (fault == SH_NCCL_ASYNC)
        atomic_store(&c->state, ncclRemoteError);
    return rc;
}

struct split {
    struct ncclComm *parent, *child;
    ncclComm_t *to;
    int color, key, number;
};

/* Ranks of the same color, ordered by key; equal keys do not occur. */
static ncclResult_t split(void *arg)
{
    struct split s = *(struct split *)arg;
    struct sh_meeting *m = s.parent->m;
    struct ncclComm *c = s.child;
    ncclResult_t rc;

    free(arg);
    m->wish[s.parent->rank].color = s.color;
    m->wish[s.parent->rank].key = s.key;
    sh_meet_wait(m);
    for (int r = 0; r < s.parent->size; r++) {
        c->size += m->wish[r].color == s.color;
        c->rank += m->wish[r].color == s.color && m->wish[r].key < s.key;
    }
    sh_meet_wait(m);
    snprintf(c->path, sizeof c->path, "%.150s-%d-%d", s.parent->path, s.number, s.color);
    rc = meet(c);
    __atomic_store_n(s.to, c, __ATOMIC_RELEASE);
    return rc;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *comm, ncclConfig_t *config)
{
    enum sh_nccl_fault fault;
    struct split *s;
    ncclResult_t rc;

    enter(parent);
    fault = sh_nccl_fault_of(__func__);
    *comm = NULL;
    if (fault == SH_NCCL_ERROR) {
        leave(parent);
        return ncclSystemError;
    }
    s = sh_calloc(1, sizeof *s);
    *s = (struct split){parent, make(config, 0, 0), comm, color, key, parent->splits++};
    s->child->world = parent->world;
    if (fault == SH_NCCL_ASYNC)
        atomic_store(&s->child->state, ncclRemoteError);
    rc = finish(parent, split, s);
    leave(parent);
    return rc == ncclInProgress ? ncclSuccess : rc; /* 2.19 to 2.30 do the same */
}

static ncclResult_t finalize(void *arg)
{
    sh_meet_wait(((struct ncclComm *)arg)->m);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    ncclResult_t rc;

    enter(comm);
    rc = sh_nccl_fault_of(__func__) == SH_NCCL_ERROR ? ncclSystemError : finish(comm, finalize, comm);
    leave(comm);
    return rc;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    enter(comm);
    if (sh_nccl_fault_of(__func__) == SH_NCCL_ERROR) {
        leave(comm);
        return ncclSystemError;
    }
    if (comm->m)
        sh_meet_close(comm->m);
    for (int i = 0; i < SH_MEET_KINDS; i++)
        if (comm->taken[i])
            cudaFree(comm->taken[i]);
    free(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    if (!comm)
        return ncclInvalidArgument;
    enter(comm);
    if (sh_nccl_fault_of(__func__) == SH_NCCL_ERROR) {
        leave(comm);
        return ncclSystemError;
    }
    *state = (ncclResult_t)atomic_load(&comm->state);
    leave(comm);
    return ncclSuccess;
}

/* A collective, from its call to its work on the stream. */
struct collective {
    struct ncclComm *c;
    struct sh_meet_call call;
    const void *send;
    void *recv;
    void *stream;
    bool never; /* never ends */
};

static void exchange(void *arg)
{
    struct collective *x = arg;

    while (x->never)
        pause();
    sh_nccl_delay();
    sh_meet_exchange(x->c->m, x->c->rank, x->c->size, &x->call, x->send, x->recv);
    free(x);
}

static ncclResult_t enqueue(void *arg)
{
    struct collective *x = arg;

    sh_emulated_put_in_order(x->stream, exchange, x);
    return ncclSuccess;
}

/* Stages call other collectives, so only those of a rank's own stage are compared: SHERD_EMULATED_STAGES says how many
 * there are. */
static void compare(const struct ncclComm *world, const struct sh_meet_call *call)
{
    int stages = (int)sh_emulated_number("SHERD_EMULATED_STAGES"), size = world->size / (stages ? stages : 1);
    int first = world->rank / size * size;

    sh_meet_compare(world->m, world->rank, first, first + size, call);
}

static void declare(const struct collective *x, const char *label)
{
    int64_t part = (int64_t)x->call.count * sh_meet_type_bytes(x->call.type), all = part * x->c->size;
    enum sh_meet_kind kind = x->call.kind;

    sh_emulated_access(x->stream, x->send, kind == SH_MEET_REDUCE_SCATTER ? all : part, 0, label);
    sh_emulated_access(x->stream, x->recv, kind == SH_MEET_ALL_GATHER ? all : part, 1, label);
}

/* NCCL chooses an algorithm by kind and size, and makes its buffers at the first use. */
static ncclResult_t take_memory(struct ncclComm *c, const struct sh_meet_call *call)
{
    size_t bytes = (size_t)sh_emulated_number("SHERD_EMULATED_NCCL_MIB") << 20;

    if (!bytes || c->taken[call->kind] || call->count * (size_t)sh_meet_type_bytes(call->type) <= LARGE_BYTES)
        return ncclSuccess;
    return cudaMalloc(&c->taken[call->kind], bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t collect(const char *name, enum sh_meet_kind kind, const void *send, void *recv, size_t count,
                            ncclDataType_t type, ncclComm_t c, cudaStream_t stream)
{
    enum sh_nccl_fault fault;
    struct collective *x;
    ncclResult_t rc;

    enter(c);
    fault = sh_nccl_fault_of(name);
    if (fault == SH_NCCL_ERROR) {
        leave(c);
        return ncclSystemError;
    }
    x = sh_calloc(1, sizeof *x);
    *x = (struct collective){.c = c, .send = send, .recv = recv, .stream = stream, .never = fault == SH_NCCL_ASYNC};
    x->call =
        (struct sh_meet_call){.kind = kind, .type = type, .count = count, .stream = sh_emulated_stream_number(stream)};
    memcpy(x->call.comm, c->name, sizeof x->call.comm);
    compare(c->world, &x->call);
    declare(x, name);
    rc = take_memory(c, &x->call);
    if (rc == ncclSuccess)
        rc = finish(c, enqueue, x);
    if (fault == SH_NCCL_ASYNC)
        atomic_store(&c->state, ncclRemoteError);
    leave(c);
    return rc;
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream)
{
    return collect(__func__, SH_MEET_ALL_GATHER, send, recv, count, type, c, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t stream)
{
    return op == ncclSum ? collect(__func__, SH_MEET_REDUCE_SCATTER, send, recv, count, type, c, stream)
                         : ncclInvalidArgument;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t stream)
{
    return op == ncclSum ? collect(__func__, SH_MEET_ALL_REDUCE, send, recv, count, type, c, stream)
                         : ncclInvalidArgument;
}

/* nccl.h leaves out the `void`. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

/* The group that a thread has open, and the work that it becomes. */
struct group {
    struct ncclComm *c;
    void *stream;
    struct sh_meet_message message[2 * SH_MEET_RANKS];
    int n;
    bool never;
};

static _Thread_local struct group *open_group;

ncclResult_t ncclGroupStart(void)
{
    if (sh_nccl_fault_of(__func__) == SH_NCCL_ERROR)
        return ncclSystemError;
    if (open_group)
        stop("a group is open in", open_group->c ? open_group->c->name : "");
    open_group = sh_calloc(1, sizeof *open_group);
    return ncclSuccess;
}

static void send_all(void *arg)
{
    struct group *g = arg;

    while (g->never)
        pause();
    sh_nccl_delay();
    sh_meet_messages(g->c->m, g->c->rank, g->message, g->n);
    free(g);
}

static ncclResult_t enqueue_group(void *arg)
{
    struct group *g = arg;

    sh_emulated_put_in_order(g->stream, send_all, g);
    return ncclSuccess;
}

/* A group of no messages is nothing. */
static ncclResult_t end_group(struct group *g, enum sh_nccl_fault fault)
{
    struct ncclComm *c = g->c;
    bool never;
    ncclResult_t rc;

    if (!c || fault == SH_NCCL_ERROR) {
        free(g);
        return c ? ncclSystemError : ncclSuccess;
    }
    enter(c);
    never = g->never |= fault == SH_NCCL_ASYNC;
    rc = finish(c, enqueue_group, g);
    if (never)
        atomic_store(&c->state, ncclRemoteError);
    leave(c);
    return rc;
}

ncclResult_t ncclGroupEnd(void)
{
    struct group *g = open_group;
    enum sh_nccl_fault fault = sh_nccl_fault_of(__func__);

    open_group = NULL;
    return g ? end_group(g, fault) : ncclInvalidUsage;
}

static ncclResult_t add_message(const char *name, const void *at, size_t bytes, int peer, int sends, ncclComm_t c,
                                cudaStream_t stream)
{
    bool alone = !open_group;
    struct group *g = alone ? sh_calloc(1, sizeof *g) : open_group;
    enum sh_nccl_fault fault;

    enter(c);
    fault = sh_nccl_fault_of(name);
    if (g->c && (g->c != c || g->stream != stream))
        stop("a message is in a group of another stream or communicator than", c->name);
    if (peer < 0 || peer >= c->size || g->n == 2 * c->size)
        stop("a message to a rank that is not in, or one too many in, communicator", c->name);
    g->c = c;
    g->stream = stream;
    g->never |= fault == SH_NCCL_ASYNC;
    g->message[g->n++] = (struct sh_meet_message){peer, sends, (char *)(uintptr_t)at, bytes};
    sh_emulated_access(stream, at, (int64_t)bytes, !sends, name);
    leave(c);
    if (!alone)
        return fault == SH_NCCL_ERROR ? ncclSystemError : ncclSuccess;
    return end_group(g, fault);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream)
{
    return add_message(__func__, send, count * (size_t)sh_meet_type_bytes(type), peer, 1, c, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream)
{
    return add_message(__func__, recv, count * (size_t)sh_meet_type_bytes(type), peer, 0, c, stream);
}

/* Linked instead of loaded. */
sh_rc sh_nccl_find(void)
{
#define X(function) sh_nccl.function = function;
    SH_NCCL_FUNCTIONS(X)
#undef X
    return SH_OK;
}
