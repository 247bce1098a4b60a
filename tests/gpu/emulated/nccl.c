/* A double of NCCL for tests without a GPU: the ranks of one node meet in shared memory, not in MPI, which belongs to
 * another thread. A collective is done where it is put; that is right because all ranks issue them in one order. What
 * NCCL would hang or go wrong on is told: ranks that call different collectives. */
#include "src/base/dtype.h"
#include "src/base/err.h"
#include "src/base/mem.h"

#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 16, CHUNK = 64 << 10, NAME = 100 };

/* What a rank is about to do. */
struct wish {
    int kind, type;
    size_t count;
    int color, key;
};

struct meeting {
    _Atomic int state; /* 0: as it was made, 1: one is setting it up, 2: ready */
    pthread_barrier_t barrier;
    struct wish wish[RANKS];
    _Alignas(64) char data[RANKS][CHUNK];
};

struct ncclComm {
    int rank, size, splits;
    char name[NAME];
    struct meeting *m;
};

enum { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, SPLIT };

void sh_emulated_access(void *queue, const void *at, int64_t bytes, int write, const char *label);

static void barrier(struct ncclComm *c)
{
    pthread_barrier_wait(&c->m->barrier);
}

static void set_up(struct meeting *m, int size)
{
    int fresh = 0;
    pthread_barrierattr_t attr;

    if (atomic_compare_exchange_strong(&m->state, &fresh, 1)) {
        pthread_barrierattr_init(&attr);
        pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&m->barrier, &attr, (unsigned)size);
        atomic_store(&m->state, 2);
    }
    while (atomic_load(&m->state) != 2)
        sched_yield();
}

static ncclResult_t meet(struct ncclComm *c)
{
    int fd = shm_open(c->name, O_CREAT | O_RDWR, 0600);

    if (fd < 0 || c->size > RANKS || ftruncate(fd, sizeof *c->m) != 0)
        return ncclSystemError;
    c->m = mmap(NULL, sizeof *c->m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (c->m == MAP_FAILED)
        return ncclSystemError;
    set_up(c->m, c->size);
    barrier(c);
    if (c->rank == 0)
        shm_unlink(c->name);
    return ncclInProgress; /* as NCCL does where it does not block */
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int n;

    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/sherd-test-%ld-%d", (long)getpid(), n++);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSystemError ? "no shared memory" : "an error of the emulated NCCL";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    (void)config;
    *comm = sh_calloc(1, sizeof **comm);
    **comm = (struct ncclComm){.rank = rank, .size = size};
    snprintf((*comm)->name, NAME, "%.60s", id.internal);
    return meet(*comm);
}

/* Ranks of the same color, by key; equal keys do not occur. */
static void find_place(const struct ncclComm *parent, struct wish mine, struct ncclComm *c)
{
    for (int r = 0; r < parent->size; r++) {
        const struct wish *w = &parent->m->wish[r];

        c->size += w->color == mine.color;
        c->rank += w->color == mine.color && w->key < mine.key;
    }
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *comm, ncclConfig_t *config)
{
    struct wish mine = {.kind = SPLIT, .color = color, .key = key};

    (void)config;
    parent->m->wish[parent->rank] = mine;
    barrier(parent);
    *comm = sh_calloc(1, sizeof **comm);
    find_place(parent, mine, *comm);
    barrier(parent);
    snprintf((*comm)->name, NAME, "%.60s-%d-%d", parent->name, parent->splits++, color);
    return meet(*comm);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    barrier(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    munmap(comm->m, sizeof *comm->m);
    free(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    (void)comm;
    *state = ncclSuccess;
    return ncclSuccess;
}

static int type_bytes(ncclDataType_t type)
{
    return type == ncclFloat64 || type == ncclInt64 ? 8 : type == ncclBfloat16 ? 2 : 4;
}

static void agree(struct ncclComm *c, struct wish mine)
{
    c->m->wish[c->rank] = mine;
    barrier(c);
    for (int r = 0; r < c->size; r++)
        if (c->m->wish[r].kind != mine.kind || c->m->wish[r].count != mine.count || c->m->wish[r].type != mine.type)
            sh_stop(sh_fail(SH_E_BUG, "emulated NCCL: rank %d of %s and rank %d are in different collectives", c->rank,
                            c->name, r));
    barrier(c);
}

static void add(void *sum, const void *x, size_t n, ncclDataType_t type)
{
    for (size_t i = 0; i < n; i++)
        if (type == ncclFloat64)
            ((double *)sum)[i] += ((const double *)x)[i];
        else if (type == ncclBfloat16)
            ((sh_bf16 *)sum)[i] =
                sh_f32_to_bf16(sh_bf16_to_f32(((sh_bf16 *)sum)[i]) + sh_bf16_to_f32(((const sh_bf16 *)x)[i]));
        else
            ((float *)sum)[i] += ((const float *)x)[i];
}

/* The ranks' stretches of `bytes` are in data; their sum, in rank order. */
static void sum_all(const struct ncclComm *c, void *out, size_t bytes, ncclDataType_t type)
{
    memcpy(out, c->m->data[0], bytes);
    for (int r = 1; r < c->size; r++)
        add(out, c->m->data[r], bytes / (size_t)type_bytes(type), type);
}

static size_t chunk_at(size_t at, size_t bytes)
{
    return bytes - at < CHUNK ? bytes - at : CHUNK;
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream)
{
    size_t bytes = count * (size_t)type_bytes(type);

    sh_emulated_access(stream, send, (int64_t)bytes, 0, "ncclAllGather");
    sh_emulated_access(stream, recv, (int64_t)bytes * c->size, 1, "ncclAllGather");
    agree(c, (struct wish){.kind = ALL_GATHER, .type = (int)type, .count = count});
    for (size_t at = 0, n; at < bytes; at += n) {
        n = chunk_at(at, bytes);
        memcpy(c->m->data[c->rank], (const char *)send + at, n);
        barrier(c);
        for (int r = 0; r < c->size; r++)
            memcpy((char *)recv + (size_t)r * bytes + at, c->m->data[r], n);
        barrier(c);
    }
    return ncclSuccess;
}

/* The parts of each rank one after the other. */
ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t stream)
{
    size_t bytes = count * (size_t)type_bytes(type);

    if (op != ncclSum)
        return ncclInvalidArgument;
    sh_emulated_access(stream, send, (int64_t)bytes * c->size, 0, "ncclReduceScatter");
    sh_emulated_access(stream, recv, (int64_t)bytes, 1, "ncclReduceScatter");
    agree(c, (struct wish){.kind = REDUCE_SCATTER, .type = (int)type, .count = count});
    for (int r = 0; r < c->size; r++)
        for (size_t at = 0, n; at < bytes; at += n) {
            n = chunk_at(at, bytes);
            memcpy(c->m->data[c->rank], (const char *)send + (size_t)r * bytes + at, n);
            barrier(c);
            if (r == c->rank)
                sum_all(c, (char *)recv + at, n, type);
            barrier(c);
        }
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t stream)
{
    size_t bytes = count * (size_t)type_bytes(type);

    if (op != ncclSum)
        return ncclInvalidArgument;
    sh_emulated_access(stream, send, (int64_t)bytes, 0, "ncclAllReduce");
    sh_emulated_access(stream, recv, (int64_t)bytes, 1, "ncclAllReduce");
    agree(c, (struct wish){.kind = ALL_REDUCE, .type = (int)type, .count = count});
    for (size_t at = 0, n; at < bytes; at += n) {
        n = chunk_at(at, bytes);
        memcpy(c->m->data[c->rank], (const char *)send + at, n);
        barrier(c);
        sum_all(c, (char *)recv + at, n, type);
        barrier(c);
    }
    return ncclSuccess;
}
