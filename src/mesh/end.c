/* A limit on the end of a job. What is left then is to close files and to meet in MPI_Finalize; a disk that does not
 * answer a close, or a rank that never arrives, would hold the job for ever although its status is known. A thread ends
 * the process instead, since the main thread may be in any call. */
#include "src/base/log.h"
#include "src/base/string/screen.h"
#include "src/base/thread.h"
#include "src/base/time.h"
#include "src/mesh/mesh.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

enum { USUAL_SECONDS = 300, GRACE_SECONDS = 3, FINALIZE_SECONDS = 20, RANKS_A_SECOND = 50 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started;   /* the thread runs */
    double seconds; /* 0: no limit now */
    int64_t since_ns;
    bool waits;     /* this rank is done and waits for others */
    bool finalizes; /* all ranks are done and in MPI_Finalize */
    sh_rc status;
    char why[2048]; /* of the status, as long as nobody has said it; errors are kept per thread */
} end = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What has the same limit itself speaks first: a communicator that does not close, then a rank that is stuck, then those
 * that wait for it. */
static double left(void)
{
    if (end.finalizes)
        return end.seconds - sh_seconds_since(end.since_ns);
    double grace = (end.seconds / 4 + GRACE_SECONDS) * (end.waits ? 2 : 1);
    return end.seconds + grace - sh_seconds_since(end.since_ns);
}

/* The libraries alone have kept the job; MPICH before 4.2 does over UCX and TCP, where a rank that has closed its
 * connections no longer answers those that still close theirs (pmodels/mpich#6596). MPI_Abort would only add a failure.
 */
static void leave_finalize(void)
{
    sh_log_info("MPI_Finalize has not returned for %.0f s, although all ranks are done; ending with status %d",
                end.seconds, (int)end.status);
    _exit(sh_screen_flush() || errno == EPIPE || end.status ? (int)end.status : SH_E_DATA);
}

static void expire(void)
{
    if (end.finalizes)
        leave_finalize();
    if (end.why[0] && !end.waits)
        sh_log_error("%s", end.why);
    sh_log_warn("%s after %.0f s of closing; ending with status %d",
                end.waits ? "other ranks have not ended" : "this rank is stuck while it closes what it opened",
                sh_seconds_since(end.since_ns), (int)end.status);
    sh_mesh_abort((int)end.status);
    _exit((int)end.status);
}

static void *watch(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&end.lock);
    for (;;) {
        if (end.seconds <= 0) {
            pthread_cond_wait(&end.changed, &end.lock);
            continue;
        }
        if (left() <= 0)
            expire();
        struct timespec until = sh_thread_time_in(left());
        pthread_cond_timedwait(&end.changed, &end.lock, &until);
    }
    return NULL;
}

/* Without a thread there is no limit, as if nobody had asked: the job is about to end. With the lock held. */
static void start(void)
{
    if (end.started)
        return;
    sh_thread_cond_init(&end.changed);
    end.started = sh_thread_start(NULL, "watch the end of the job", watch, NULL, 0) == SH_OK;
    if (!end.started)
        sh_log_warn("the end of the job has no limit: %s", sh_error_text());
}

void sh_mesh_end_within(double seconds, sh_rc status)
{
    pthread_mutex_lock(&end.lock);
    end.seconds = seconds > 0 ? seconds : USUAL_SECONDS;
    end.since_ns = sh_now_ns();
    end.status = status;
    snprintf(end.why, sizeof end.why, "%s", status == SH_OK ? "" : sh_error_text());
    start();
    if (end.started)
        pthread_cond_signal(&end.changed);
    pthread_mutex_unlock(&end.lock);
}

void sh_mesh_end_finalizes(int ranks)
{
    sh_mesh_end_within(FINALIZE_SECONDS + (double)ranks / RANKS_A_SECOND, end.status);
    pthread_mutex_lock(&end.lock);
    end.finalizes = true;
    pthread_mutex_unlock(&end.lock);
}

void sh_mesh_end_goes_on(void)
{
    pthread_mutex_lock(&end.lock);
    end.since_ns = sh_now_ns();
    pthread_mutex_unlock(&end.lock);
}

void sh_mesh_end_waits(sh_rc status)
{
    pthread_mutex_lock(&end.lock);
    bool limited = end.seconds > 0;
    end.waits = true;
    end.status = status;
    pthread_mutex_unlock(&end.lock);
    if (!limited && status != SH_OK)
        sh_mesh_end_within(0, status);
}
