/* Preloaded into the ranks of an MPICH over UCX, which waits for messages in a loop that never gives its core away. Where
 * ranks are more than cores, each of them then waits for the end of the time slice of one that waits as well: a step of four
 * ranks on two cores took four times as long, and all of it in both. Its own MPIR_CVAR_POLLS_BEFORE_YIELD does nothing here
 * (4.0). A rank that has waited longer, for one that a test has stopped, sleeps between looks. */
#include <dlfcn.h>
#include <sched.h>
#include <time.h>

/* Of looks that found nothing. */
enum { YIELDS_AFTER = 100, SLEEPS_AFTER = 1000, SLEEP_NS = 100000 };

/* UCX's: returns how many messages it has seen to. */
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
    if (idle > SLEEPS_AFTER) {
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
        idle = SLEEPS_AFTER;
    } else if (idle > YIELDS_AFTER) {
        sched_yield();
    }
    return found;
}
