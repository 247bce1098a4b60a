#include "src/base/deadline.h"

#include "src/base/err.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

/* A thread and not SIGALRM: sh_stop may do what a signal handler may not, and alarms are used when MPI is aborted. */
static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool running, over;
    double seconds;
    const char *doing;
} limit = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

static struct timespec time_of_end(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    double whole = floor(seconds);
    t.tv_sec += (time_t)whole;
    t.tv_nsec += (long)((seconds - whole) * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

static void *watch(void *unused)
{
    struct timespec end = time_of_end(limit.seconds);
    int status = 0;
    (void)unused;
    pthread_mutex_lock(&limit.lock);
    while (!limit.over && status != ETIMEDOUT)
        status = pthread_cond_timedwait(&limit.ended, &limit.lock, &end);
    bool late = !limit.over;
    pthread_mutex_unlock(&limit.lock);
    if (late)
        sh_stop(sh_fail(SH_E_COMM, "%s did not end within %g seconds; another rank has failed or is stopped", limit.doing,
                        limit.seconds));
    return NULL;
}

void sh_deadline_begin(double seconds, const char *doing)
{
    limit.over = false;
    limit.seconds = seconds;
    limit.doing = doing;
    /* Without a thread there is no limit, which is how it would be without this module. */
    limit.running = seconds > 0 && pthread_create(&limit.thread, NULL, watch, NULL) == 0;
}

void sh_deadline_end(void)
{
    if (!limit.running)
        return;
    pthread_mutex_lock(&limit.lock);
    limit.over = true;
    pthread_cond_signal(&limit.ended);
    pthread_mutex_unlock(&limit.lock);
    pthread_join(limit.thread, NULL);
    limit.running = false;
}
