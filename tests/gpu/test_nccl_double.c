/* The double of NCCL (tests/gpu/emulated/nccl.c) behaves like the library: two ranks are two processes here, and
 * anything on which NCCL would hang or go wrong ends one of them with a line. */
#include "src/base/err.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, SECONDS = 600 };

static ncclComm_t connect_all(int rank, ncclUniqueId id, int blocking)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    ncclResult_t rc, state = ncclInProgress;

    config.blocking = blocking;
    config.commName = "test";
    rc = ncclCommInitRankConfig(&comm, RANKS, id, rank, &config);
    if (rc != (blocking ? ncclSuccess : ncclInProgress))
        _exit(1);
    while (!blocking && state == ncclInProgress)
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess)
            _exit(2);
    return comm;
}

static float *floats(void)
{
    void *p;

    if (cudaMalloc(&p, 64 * sizeof(float)) != cudaSuccess)
        _exit(3);
    return p;
}

/* Both ranks contribute 1 and get 2. */
static void works(int rank, ncclUniqueId id)
{
    ncclComm_t comm = connect_all(rank, id, 1);
    float *x = floats();

    x[0] = 1;
    if (ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, NULL) != ncclSuccess)
        _exit(4);
    cudaDeviceSynchronize();
    if (x[0] != 2)
        _exit(5);
}

static int *looked; /* for both ranks: rank 0 has seen that nothing is there yet */

static void split_is_late(int rank, ncclUniqueId id)
{
    ncclComm_t comm = connect_all(rank, id, 0), child = comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state = ncclInProgress;

    config.blocking = 0;
    while (rank == 1 && !__atomic_load_n(looked, __ATOMIC_ACQUIRE))
        usleep(1000);
    if (ncclCommSplit(comm, 0, rank, &child, &config) != ncclSuccess)
        _exit(6);
    if (rank == 0 && (child || ncclCommGetAsyncError(child, &state) != ncclInvalidArgument))
        _exit(7);
    if (rank == 0)
        __atomic_store_n(looked, 1, __ATOMIC_RELEASE);
    while (state == ncclInProgress)
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess)
            _exit(8);
    if (!__atomic_load_n(&child, __ATOMIC_ACQUIRE))
        _exit(9);
}

static void counts_differ(int rank, ncclUniqueId id)
{
    ncclComm_t comm = connect_all(rank, id, 1);
    float *x = floats();

    ncclAllReduce(x, x, (size_t)(1 + rank), ncclFloat32, ncclSum, comm, NULL);
    cudaDeviceSynchronize();
}

static void order_differs(int rank, ncclUniqueId id)
{
    ncclComm_t comm = connect_all(rank, id, 1);
    float *x = floats();

    for (int i = 0; i < 2; i++)
        if ((i + rank) % 2)
            ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, comm, NULL);
        else
            ncclAllGather(x, x + 32, 1, ncclFloat32, comm, NULL);
    cudaDeviceSynchronize();
}

/* Messages of several stretches to the other rank and to itself, in one group. */
static void messages_cross(int rank, ncclUniqueId id)
{
    enum { BYTES = 10000 };
    ncclComm_t comm = connect_all(rank, id, 1);
    unsigned char *x;

    if (cudaMalloc((void **)&x, 4 * BYTES) != cudaSuccess)
        _exit(3);
    for (int i = 0; i < 2 * BYTES; i++)
        x[i] = (unsigned char)(i * 7 + rank * 100 + i / BYTES);
    if (ncclGroupStart() != ncclSuccess)
        _exit(4);
    for (int peer = 0; peer < RANKS; peer++)
        if (ncclSend(x + peer * BYTES, BYTES, ncclUint8, peer, comm, NULL) != ncclSuccess ||
            ncclRecv(x + (2 + peer) * BYTES, BYTES, ncclUint8, peer, comm, NULL) != ncclSuccess)
            _exit(5);
    if (ncclGroupEnd() != ncclSuccess)
        _exit(6);
    cudaDeviceSynchronize();
    for (int i = 0; i < 2 * BYTES; i++)
        if (x[2 * BYTES + i] != (unsigned char)((rank * BYTES + i % BYTES) * 7 + i / BYTES * 100 + rank))
            _exit(7);
}

static void lengths_differ(int rank, ncclUniqueId id)
{
    ncclComm_t comm = connect_all(rank, id, 1);
    float *x = floats();

    ncclGroupStart();
    if (rank == 0)
        ncclSend(x, 3, ncclFloat32, 1, comm, NULL);
    else
        ncclRecv(x, 2, ncclFloat32, 0, comm, NULL);
    ncclGroupEnd();
    cudaDeviceSynchronize();
}

/* In no group. Both ranks receive on one stream before they send on another: a message that waits holds up no other
 * stream. */
static void messages_wait(int rank, ncclUniqueId id)
{
    ncclComm_t comm = connect_all(rank, id, 1), child;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    cudaStream_t stream;
    float *x = floats();

    x[0] = (float)(rank + 1);
    if (ncclCommSplit(comm, 0, rank, &child, &config) != ncclSuccess)
        _exit(4);
    if (cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) != cudaSuccess)
        _exit(5);
    if (ncclRecv(x + 1, 1, ncclFloat32, 1 - rank, rank ? child : comm, rank ? stream : NULL) != ncclSuccess ||
        ncclSend(x, 1, ncclFloat32, 1 - rank, rank ? comm : child, rank ? NULL : stream) != ncclSuccess)
        _exit(6);
    cudaStreamSynchronize(stream);
    cudaStreamSynchronize(NULL);
    if (x[1] != (float)(2 - rank))
        _exit(7);
}

static void *ask_often(void *comm)
{
    ncclResult_t state;

    for (;;)
        ncclCommGetAsyncError(comm, &state);
    return NULL;
}

static void two_threads(int rank, ncclUniqueId id)
{
    ncclComm_t comm = connect_all(rank, id, 1);
    pthread_t thread;

    pthread_create(&thread, NULL, ask_often, comm);
    ask_often(comm);
}

/* Returns the status of the first process that does not end well, 0: none; text: everything that both printed. */
static int run(void (*body)(int rank, ncclUniqueId id), char *text, size_t room)
{
    ncclUniqueId id;
    pid_t child[RANKS];
    int ends[2], status, found = 0;
    ssize_t got;

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    fflush(NULL);
    for (int rank = 0; rank < RANKS; rank++) {
        child[rank] = fork();
        if (child[rank] == 0) {
            dup2(ends[1], STDERR_FILENO);
            alarm(SECONDS);
            body(rank, id);
            _exit(0);
        }
    }
    close(ends[1]);
    for (int i = 0; i < RANKS; i++) {
        wait(&status);
        status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        found = found ? found : status;
        for (int rank = 0; rank < RANKS && status; rank++)
            kill(child[rank], SIGKILL); /* it may be waiting for the other one */
    }
    got = read(ends[0], text, room - 1);
    text[got > 0 ? got : 0] = '\0';
    close(ends[0]);
    return found;
}

static void test_double(void **state)
{
    static const struct {
        void (*body)(int rank, ncclUniqueId id);
        const char *says; /* NULL: it ends well */
    } rows[] = {
        {works, NULL},
        {split_is_late, NULL},
        {counts_differ, "all-reduce of 1 (type"},
        {order_differs, "all-gather of 1 (type"},
        {messages_cross, NULL},
        {lengths_differ, "rank 0 sends 12 bytes to rank 1, which expects 8"},
        {messages_wait, NULL},
        {two_threads, "two threads are in communicator 'test'"},
    };
    char text[1024];

    (void)state;
    looked = mmap(NULL, sizeof *looked, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(looked != MAP_FAILED);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    setenv("SHERD_EMULATED_GPUS", "2", 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int status = run(rows[i].body, text, sizeof text);

        assert_int_equal(status, rows[i].says ? SH_E_BUG : 0);
        if (rows[i].says && !strstr(text, rows[i].says))
            fail_msg("row %zu says: %s", i, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_double)};

    return cmocka_run_group_tests_name("nccl_double", tests, NULL, NULL);
}
