/* Preloaded into ranks that share cores with others, where a rank that polls takes the time of one that computes. A rank
 * of an MPICH over UCX never yields its core while it waits; MPICH's own MPIR_CVAR_POLLS_BEFORE_YIELD does nothing here
 * (4.0). A rank of Open MPI yields on request (mpi_yield_when_idle), but eight ranks that only yield to each other keep
 * both cores busy, in the kernel. So both sleep between polls: Open MPI where it would yield, MPICH after some polls. */
#include <dlfcn.h>
#include <sched.h>
#include <time.h>

enum { IDLE_POLLS = 20, SLEEP_NS = 100000 };

int sched_yield(void)
{
    nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    return 0;
}

/* UCX's function: returns how many messages it has processed. */
unsigned ucp_worker_progress(void *worker);

unsigned ucp_worker_progress(void *worker)
{
    static _Thread_local unsigned (*next)(void *);
    static _Thread_local unsigned idle;
    unsigned found;

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "ucp_worker_progress");
    found = next(worker);
    idle = found ? 0 : idle + 1;
    if (idle > IDLE_POLLS) {
        sched_yield();
        idle = IDLE_POLLS;
    }
    return found;
}
