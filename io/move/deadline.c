#include "io/move/deadline.h"

#include "src/base/err.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/thread.h"
#include "src/base/time.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* MPI-IO and HDF5 can hold all ranks in one call when one of them met an error: rank 0 reports first, so that there is
 * only one line. A rank that only waits gives the stuck rank time to report itself. */
enum { GRACE_SECONDS = 2, GRACE_RANK_SECONDS = 1 };

/* A thread that ends the process when a stage of a save or a load takes too long. Time counts only while this rank
 * works or waits for others; a waiting rank gets a few seconds more. */
struct sh_move_deadline {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *what;
    double seconds, grace;
    const char *stage;
    int64_t since_ns, meets_ns;
    bool waits, rests, meets, stop;
};

/* Seconds left of a limit that started at since_ns; `waits`: plus time for the late rank to report first. */
static double rest_of(const struct sh_move_deadline *d, int64_t since_ns, bool waits)
{
    return d->seconds + d->grace + (waits ? GRACE_SECONDS : 0) - sh_seconds_since(since_ns);
}

/* Seconds until the nearer of two limits: the stage's, and that of a meeting of the ranks. A rank that rests has no
 * limit for its stage. */
static double left(const struct sh_move_deadline *d)
{
    double stage = d->rests ? d->seconds : rest_of(d, d->since_ns, d->waits);
    double meeting = d->meets ? rest_of(d, d->meets_ns, true) : d->seconds;
    return stage < meeting ? stage : meeting;
}

/* Ends the process: there is no other way to stop a thread that is stuck inside MPI or the file system. */
static void expire(const struct sh_move_deadline *d)
{
    sh_stop(sh_fail(SH_E_COMM, "%s: %s, %s takes longer than checkpoint.timeout_seconds=%g", d->what,
                    d->waits || d->rests ? "other ranks are late" : "this rank is stuck", d->stage, d->seconds));
}

/* Sleeps until the limit, or until something changes it. */
static void *watch(void *arg)
{
    struct sh_move_deadline *d = arg;
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        double rest = left(d);
        if (rest <= 0)
            expire(d);
        struct timespec until = sh_thread_time_in(rest);
        pthread_cond_timedwait(&d->changed, &d->lock, &until);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* NULL: no limit is wanted, or no thread could be created. All other functions accept NULL. */
struct sh_move_deadline *sh_move_deadline_start(const char *what, double seconds, int rank)
{
    if (seconds <= 0)
        return NULL;
    struct sh_move_deadline *d = sh_calloc(1, sizeof *d);
    *d = (struct sh_move_deadline){.what = sh_strdup(what),
                                   .seconds = seconds,
                                   .stage = "preparing",
                                   .grace = rank > 0 ? GRACE_RANK_SECONDS : 0,
                                   .since_ns = sh_now_ns()};
    pthread_mutex_init(&d->lock, NULL);
    sh_thread_cond_init(&d->changed);
    if (sh_thread_start(&d->thread, "watch the time", watch, d, 0) == SH_OK)
        return d;
    sh_log_warn("%s: runs without a deadline: %s", what, sh_error_text());
    sh_error_clear();
    free(d->what);
    free(d);
    return NULL;
}

/* Takes the lock and wakes the watching thread, since its limit has changed. */
static void set(struct sh_move_deadline *d, const char *stage, bool waits, bool rests)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    if (stage) {
        d->stage = stage;
        d->since_ns = sh_now_ns();
    }
    d->waits = waits;
    d->rests = rests;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* A stage starts: its time counts from here. */
void sh_move_deadline_enter(struct sh_move_deadline *d, const char *stage)
{
    set(d, stage, false, false);
}

/* This rank is done and waits for others. */
void sh_move_deadline_wait(struct sh_move_deadline *d)
{
    set(d, NULL, true, false);
}

void sh_move_deadline_rest(struct sh_move_deadline *d)
{
    set(d, NULL, false, true);
}

/* The ranks meet between two steps of training while a stage runs on a thread: a limit in addition to the stage's. */
void sh_move_deadline_meet(struct sh_move_deadline *d, bool on)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->meets = on;
    d->meets_ns = sh_now_ns();
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* Wakes the thread and joins it; nothing can expire after this. */
void sh_move_deadline_stop(struct sh_move_deadline *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d->what);
    free(d);
}
