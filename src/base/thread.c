#include "src/base/thread.h"

#include <signal.h>
#include <string.h>

/* The mask is set around the creation, because a new thread inherits it: set in the thread, it would come too late. */
sh_rc sh_thread_start(pthread_t *thread, const char *purpose, void *(*fn)(void *arg), void *arg, size_t stack)
{
    pthread_attr_t attr;
    sigset_t all, before;
    pthread_t unnamed;
    int error;

    pthread_attr_init(&attr);
    if (stack)
        pthread_attr_setstacksize(&attr, stack);
    if (!thread)
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread ? thread : &unnamed, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return error ? sh_fail(SH_E_MEMORY, "cannot create a thread to %s: %s", purpose, strerror(error)) : SH_OK;
}

void sh_thread_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

struct timespec sh_thread_time_in(double seconds)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}
