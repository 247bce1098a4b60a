#include "tests/gpu/emulated/nccl_meet.h"

#include "src/base/number/dtype.h"
#include "src/base/err.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void set_up(struct sh_meeting *m, int size)
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
        usleep(100);
}

struct sh_meeting *sh_meet_open(const char *path, int rank, int size)
{
    int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    struct sh_meeting *m = NULL;

    if (fd >= 0 && size <= SH_MEET_RANKS && ftruncate(fd, sizeof *m) == 0)
        m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (!m || m == MAP_FAILED)
        return NULL;
    set_up(m, size);
    sh_meet_wait(m);
    if (rank == 0)
        unlink(path);
    return m;
}

void sh_meet_close(struct sh_meeting *m)
{
    munmap(m, sizeof *m);
}

void sh_meet_wait(struct sh_meeting *m)
{
    pthread_barrier_wait(&m->barrier);
}

static const char *describe(const struct sh_meet_call *c, char text[128])
{
    static const char *const kind[] = {"all-gather", "reduce-scatter", "all-reduce"};

    snprintf(text, 128, "%s of %zu (type %d) on stream %lld, communicator '%s'", kind[c->kind], c->count, (int)c->type,
             (long long)c->stream, c->comm);
    return text;
}

static void must_agree(const struct sh_meet_log *log, int rank, int other, int64_t n)
{
    const struct sh_meet_call *a = &log[rank].call[n % SH_MEET_LOG], *b = &log[other].call[n % SH_MEET_LOG];
    char mine[128], theirs[128];

    if (memcmp(a, b, sizeof *a) != 0)
        sh_stop(sh_fail(SH_E_BUG, "emulated NCCL: collective %lld is %s on rank %d and %s on rank %d", (long long)n,
                        describe(a, mine), rank, describe(b, theirs), other));
}

/* Whichever of two ranks comes later compares both. A rank that is a whole log ahead has overwritten its part. */
void sh_meet_compare(struct sh_meeting *world, int rank, int first, int end, const struct sh_meet_call *call)
{
    struct sh_meet_log *log = world->log;
    int64_t n = atomic_load(&log[rank].n);

    log[rank].call[n % SH_MEET_LOG] = *call;
    atomic_store(&log[rank].n, n + 1);
    for (int other = first; other < end; other++) {
        int64_t there = atomic_load(&log[other].n);

        if (other != rank && there > n && there < n + SH_MEET_LOG / 2)
            must_agree(log, rank, other, n);
    }
}

int sh_meet_type_bytes(ncclDataType_t type)
{
    return type == ncclFloat64 || type == ncclInt64 ? 8 : type == ncclBfloat16 ? 2 : type == ncclUint8 ? 1 : 4;
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

/* The ranks' stretches of `bytes` are in data; compute their sum, in rank order. */
static void sum_all(const struct sh_meeting *m, int size, void *out, size_t bytes, ncclDataType_t type)
{
    memcpy(out, m->data[0], bytes);
    for (int r = 1; r < size; r++)
        add(out, m->data[r], bytes / (size_t)sh_meet_type_bytes(type), type);
}

static size_t chunk_at(size_t at, size_t bytes)
{
    return bytes - at < SH_MEET_CHUNK ? bytes - at : SH_MEET_CHUNK;
}

static void gather(struct sh_meeting *m, int rank, int size, size_t bytes, const char *send, char *recv)
{
    for (size_t at = 0, n; at < bytes; at += n) {
        n = chunk_at(at, bytes);
        memcpy(m->data[rank], send + at, n);
        sh_meet_wait(m);
        for (int r = 0; r < size; r++)
            memcpy(recv + (size_t)r * bytes + at, m->data[r], n);
        sh_meet_wait(m);
    }
}

/* The sum of all ranks' stretches at send; stored if `here`. */
static void reduce(struct sh_meeting *m, int rank, int size, size_t bytes, ncclDataType_t type, const char *send,
                   char *recv, int here)
{
    for (size_t at = 0, n; at < bytes; at += n) {
        n = chunk_at(at, bytes);
        memcpy(m->data[rank], send + at, n);
        sh_meet_wait(m);
        if (here)
            sum_all(m, size, recv + at, n, type);
        sh_meet_wait(m);
    }
}

void sh_meet_exchange(struct sh_meeting *m, int rank, int size, const struct sh_meet_call *call, const void *send,
                      void *recv)
{
    size_t bytes = call->count * (size_t)sh_meet_type_bytes(call->type);

    switch (call->kind) {
    case SH_MEET_ALL_GATHER: gather(m, rank, size, bytes, send, recv); break;
    case SH_MEET_REDUCE_SCATTER: /* the parts of each rank one after another */
        for (int r = 0; r < size; r++)
            reduce(m, rank, size, bytes, call->type, (const char *)send + (size_t)r * bytes, recv, r == rank);
        break;
    case SH_MEET_ALL_REDUCE: reduce(m, rank, size, bytes, call->type, send, recv, 1); break;
    }
}

static int put(struct sh_meet_post *p, struct sh_meet_message *x)
{
    if (atomic_load(&p->full))
        return 0;
    p->left = x->bytes;
    p->n = x->bytes < SH_MEET_POST ? x->bytes : SH_MEET_POST;
    memcpy(p->data, x->at, p->n);
    x->at += p->n;
    x->bytes -= p->n;
    atomic_store(&p->full, 1);
    return 1;
}

static int take(struct sh_meet_post *p, struct sh_meet_message *x, int rank)
{
    if (!atomic_load(&p->full))
        return 0;
    if (p->left != x->bytes)
        sh_stop(sh_fail(SH_E_BUG, "emulated NCCL: rank %d sends %zu bytes to rank %d, which expects %zu", x->peer,
                        p->left, rank, x->bytes));
    memcpy(x->at, p->data, p->n);
    x->at += p->n;
    x->bytes -= p->n;
    atomic_store(&p->full, 0);
    return 1;
}

void sh_meet_messages(struct sh_meeting *m, int rank, struct sh_meet_message *message, int n)
{
    int left = n;

    while (left > 0) {
        int moved = 0;

        left = 0;
        for (int i = 0; i < n; i++) {
            struct sh_meet_message *x = &message[i];

            if (x->bytes > 0)
                moved += x->sends ? put(&m->post[rank][x->peer], x) : take(&m->post[x->peer][rank], x, rank);
            left += x->bytes > 0;
        }
        if (!moved)
            usleep(50);
    }
}
