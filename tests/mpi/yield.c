/* Preloaded into the ranks of an MPICH over UCX, which waits for messages in a loop that never yields its core. If
 * there are more ranks than cores, each of them then waits for the end of another waiting rank's time slice: a step of
 * four ranks on two cores took four times as long, with both cores fully busy. MPICH's own MPIR_CVAR_POLLS_BEFORE_YIELD
 * does nothing here (4.0). A rank that has waited longer, for a rank that a test has stopped, sleeps between polls. */
#include <dlfcn.h>
#include <sched.h>
#include <time.h>

/* Numbers of polls that found nothing. */
enum { YIELDS_AFTER = 100, SLEEPS_AFTER = 1000, SLEEP_NS = 100000 };

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
    if (idle > SLEEPS_AFTER) {
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
        idle = SLEEPS_AFTER;
    } else if (idle > YIELDS_AFTER) {
        sched_yield();
    }
    return found;
}
