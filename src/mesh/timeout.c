/* A limit on waiting for other ranks in the agreements between sections of a step. Collectives on channels have their
 * own watch (src/comm); here the main thread waits, so it asks by itself: when the limit has passed, every rank that
 * waits says so to the first few ranks, and the lowest rank that waits names the ones it has not heard from.
 *
 * All ranks wait equally often, so the count of waits identifies the wait that a message is about: a message about a
 * wait that resolved itself may be read in a later one, where its sender may be the very rank that is missing. */
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/mesh/mesh.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    SPEAKERS = 8,
    NAMED = 8,
    TAG = 77,
    SPIN_NS = 200 * 1000,
    NAP_NS = 100 * 1000,
    ROLL_CALL_MS = 2000,
    GRACE_MS = 3000
};

static double limit_seconds;
static bool wait_in_mpi;
static int current; /* sequence number of the wait */

/* The last message to each speaker; its buffer belongs to MPI until it has been received. */
static struct {
    MPI_Request request; /* valid when `sent` */
    bool sent;
    int wait;
} told[SPEAKERS];

void sh_mesh_timeout(double seconds)
{
    limit_seconds = seconds;
}

void sh_mesh_wait_in_mpi(bool yes)
{
    wait_in_mpi = yes;
}

bool sh_mesh_waits_in_mpi(void)
{
    return wait_in_mpi && !(limit_seconds > 0);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* Test until done or `until_ns` (0: for ever); spins first, since most waits are short. */
static sh_rc test_until(MPI_Request *request, int64_t until_ns, int *done)
{
    int64_t begin = sh_now_ns(), now = begin;

    for (*done = 0; !*done && (!until_ns || now < until_ns); now = sh_now_ns()) {
        SH_MPI(MPI_Test(request, done, MPI_STATUS_IGNORE));
        if (!*done && now - begin > SPIN_NS)
            nap();
    }
    return SH_OK;
}

/* At most one message to each speaker is in flight: a rank that does not read must not make this one queue up sends
 * without end. A rank that has not received the last message would not read this one either. */
static sh_rc tell(int to)
{
    int left = 1;

    if (told[to].sent)
        SH_MPI(MPI_Test(&told[to].request, &left, MPI_STATUS_IGNORE));
    if (!left) /* it has not even received the last one */
        return SH_OK;
    told[to].wait = current;
    SH_MPI(MPI_Issend(&told[to].wait, 1, MPI_INT, to, TAG, MPI_COMM_WORLD, &told[to].request));
    told[to].sent = true;
    return SH_OK;
}

/* Tell only the first SPEAKERS ranks, so that a stall of 1000 ranks is 8000 messages instead of a million. */
static sh_rc say_waiting(int rank, int world)
{
    for (int to = 0; to < world && to < SPEAKERS; to++)
        if (to != rank)
            SH_TRY(tell(to));
    return SH_OK;
}

/* Read all messages that have arrived. waits == NULL: the wait is over. */
static sh_rc hear(bool *waits)
{
    MPI_Status from;
    int there, wait;

    for (;;) {
        SH_MPI(MPI_Iprobe(MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &there, &from));
        if (!there)
            return SH_OK;
        SH_MPI(MPI_Recv(&wait, 1, MPI_INT, from.MPI_SOURCE, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        if (waits != NULL && wait == current)
            waits[from.MPI_SOURCE] = true;
    }
}

/* The first NAMED ranks by number and a count for the rest. */
static void name_missing(const bool *waits, int world, char *text, size_t size)
{
    int missing = 0;
    size_t n = 0;

    for (int rank = 0; rank < world; rank++) {
        if (waits[rank])
            continue;
        if (missing++ < NAMED && n < size)
            n += (size_t)snprintf(text + n, size - n, "%s%d", n ? ", " : "", rank);
    }
    if (missing > NAMED && n < size)
        snprintf(text + n, size - n, " and %d more", missing - NAMED);
}

/* One line for one stall: if a lower speaker waits too, this rank gives it time to stop the job first. */
static bool lower_speaks(const bool *waits, int rank)
{
    for (int lower = 0; lower < rank && lower < SPEAKERS; lower++)
        if (waits[lower])
            return true;
    return false;
}

/* Returns if the request completes after all; else stops the job. */
static sh_rc roll_call(MPI_Request *request, int rank, int world, int *done)
{
    bool *waits = sh_calloc((size_t)world, sizeof *waits);
    char missing[128] = "";
    sh_rc rc;

    waits[rank] = true;
    SH_TRY_OUT(say_waiting(rank, world));
    SH_TRY_OUT(test_until(request, sh_now_ns() + ROLL_CALL_MS * 1000000ll, done));
    SH_TRY_OUT(hear(waits));
    if (!*done && lower_speaks(waits, rank))
        SH_TRY_OUT(test_until(request, sh_now_ns() + GRACE_MS * 1000000ll, done));
    if (!*done) {
        name_missing(waits, world, missing, sizeof missing);
        sh_stop(sh_fail(SH_E_COMM,
                        "stall: rank %s did not reach the end of the step within %g s "
                        "(comm.train_timeout_seconds); the others are waiting for it",
                        missing, limit_seconds));
    }
out:
    free(waits);
    return rc;
}

/* In effect collective: every rank must call this equally often, or `current` no longer tells waits apart. */
sh_rc sh_mesh_wait(MPI_Request *request)
{
    int rank, world, done;

    sh_mesh_world(&rank, &world);
    current++;
    SH_TRY(test_until(request, limit_seconds > 0 ? sh_now_ns() + (int64_t)(limit_seconds * 1e9) : 0, &done));
    while (!done)
        SH_TRY(roll_call(request, rank, world, &done));
    return limit_seconds > 0 ? hear(NULL) : SH_OK;
}

/* Here ranks need not wait equally often: who is missing is known. A library may move a piece of a large message in each
 * test, so there are no naps, but others may run in between. */
sh_rc sh_mesh_wait_for(int rank, MPI_Request *request)
{
    int64_t begin = sh_now_ns();
    int done = 0;

    while (!done && (limit_seconds <= 0 || sh_seconds_since(begin) < limit_seconds)) {
        SH_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (!done)
            sched_yield();
    }
    if (!done)
        sh_stop(sh_fail(SH_E_COMM, "stall: rank %d has not exchanged its copy within %g s (comm.train_timeout_seconds)",
                        rank, limit_seconds));
    return SH_OK;
}

static sh_rc all_received(int *yes)
{
    for (int to = 0; to < SPEAKERS; to++) {
        *yes = 1;
        if (told[to].sent)
            SH_MPI(MPI_Test(&told[to].request, yes, MPI_STATUS_IGNORE));
        if (!*yes)
            return SH_OK;
    }
    return SH_OK;
}

/* A rank enters the barrier when its own messages have been received, so nothing is on its way once all have. It sleeps
 * in between: others may be at work for long. Like MPI_Finalize it waits for all ranks, under the limit of end.c. */
sh_rc sh_mesh_hear_all(void)
{
    MPI_Request barrier = MPI_REQUEST_NULL;
    int received = 0, done = 0;

    for (; !received; nap()) {
        SH_TRY(hear(NULL));
        SH_TRY(all_received(&received));
    }
    SH_MPI(MPI_Ibarrier(MPI_COMM_WORLD, &barrier));
    for (; !done; nap()) {
        SH_TRY(hear(NULL));
        SH_MPI(MPI_Test(&barrier, &done, MPI_STATUS_IGNORE));
    }
    return SH_OK;
}
