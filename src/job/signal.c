/* A handler runs on the stack of the thread that gets the signal, and not every thread tolerates that: oneDNN's
 * dnnl_sgemm (2.6, AVX-512) keeps data below the stack pointer, where the handler's frame overwrites it; the
 * product, and memory that it points to, are silently damaged. So all threads have these signals blocked, and one
 * fetches them with sigwait(). Nor can a library put its own handler before ours: MPICH's of SIGUSR1 makes the next
 * MPI call look for ranks that died, for ever if there was no launcher. The thread says at once that a signal was
 * heard, however long the step in progress takes. */
#include "src/job/job.h"

#include "src/base/log.h"
#include "src/base/temp.h"
#include "src/base/thread.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { WRITABLE_MS = 1000 };

static const struct {
    int number;
    const char *name, *shown;
} signals[SH_JOB_SIGNALS] = {
    [SH_JOB_USR1] = {SIGUSR1, "SIGUSR1", "SIGUSR1"},
    [SH_JOB_TERM] = {SIGTERM, "SIGTERM", "SIGTERM"},
    [SH_JOB_INT] = {SIGINT, "SIGINT", "Ctrl-C"},
};
static atomic_int heard[SH_JOB_SIGNALS];

/* What the run does now, for the notice: a text with a place for the number. */
static _Atomic(const char *) doing;
static _Atomic(int64_t) doing_step;

static struct {
    sigset_t mask;
    bool held; /* mask is from before sh_job_hold() */
    struct sigaction pipe;
} given;

static void fill_set(sigset_t *set)
{
    sigemptyset(set);
    for (int i = 0; i < SH_JOB_SIGNALS; i++)
        sigaddset(set, signals[i].number);
}

void sh_job_hold(void)
{
    sigset_t ours;

    fill_set(&ours);
    given.held = pthread_sigmask(SIG_BLOCK, &ours, &given.mask) == 0;
}

void sh_job_release(void)
{
    if (given.held)
        pthread_sigmask(SIG_SETMASK, &given.mask, NULL);
    given.held = false;
}

/* A shell starts background jobs with SIGINT ignored: Ctrl-C is not for them. */
static bool is_ignored(int number)
{
    struct sigaction now;

    return number == SIGINT && sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

/* Standard error may be a pipe that nobody empties: the notice must not keep the second Ctrl-C from counting. On a
 * terminal the notice ends the progress line first. A launcher sends SIGTERM to all ranks when one cannot start; that
 * rank has said why. */
static void say(int i)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    char text[128];

    if (i != SH_JOB_INT && atomic_load(&doing_step) == 0)
        return;
    snprintf(text, sizeof text, atomic_load(&doing), (long long)atomic_load(&doing_step));
    if (poll(&out, 1, WRITABLE_MS) == 1 && out.revents & POLLOUT)
        sh_log_info("%s%s: %s%s", isatty(STDERR_FILENO) ? "\n" : "", signals[i].shown, text,
                    i == SH_JOB_INT ? "; another Ctrl-C gives up" : "");
}

/* A second Ctrl-C ends the process as the first one usually does. */
static void give_up(void)
{
    sigset_t interrupt;

    sh_temp_delete();
    sh_job_record_give_up();
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    signal(SIGINT, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &interrupt, NULL);
    raise(SIGINT);
}

/* Who pressed a key again before the line about it has not read that line: what came meanwhile does not count. */
static void hear(int i)
{
    sigset_t again;

    atomic_store(&heard[i], 1);
    say(i);
    sigemptyset(&again);
    sigaddset(&again, signals[i].number);
    sigtimedwait(&again, NULL, &(struct timespec){0});
}

static void *serve_signals(void *ours)
{
    int number;

    while (sigwait(ours, &number) == 0)
        for (int i = 0; i < SH_JOB_SIGNALS; i++) {
            if (signals[i].number != number)
                continue;
            if (!sh_job_heard((enum sh_job_signal)i))
                hear(i);
            else if (i == SH_JOB_INT)
                give_up();
        }
    return NULL;
}

/* Give the signals back in a forked process, where no thread listens: MPI starts a daemon for a process without a
 * launcher, and a daemon that inherits the mask could not be asked to end. */
static void give_back(void)
{
    sigaction(SIGPIPE, &given.pipe, NULL);
    pthread_sigmask(SIG_SETMASK, &given.mask, NULL);
}

/* Must run before anything is changed: forked processes get back what it stores. */
static sh_rc remember(void)
{
    sigaction(SIGPIPE, NULL, &given.pipe);
    if (!given.held)
        pthread_sigmask(SIG_BLOCK, NULL, &given.mask);
    if (pthread_atfork(NULL, NULL, give_back) != 0)
        return sh_fail(SH_E_MEMORY, "no memory to listen for signals");
    return SH_OK;
}

/* A reader of the log that goes away, as in `| head`, must not end a run. */
sh_rc sh_job_listen(void)
{
    static sigset_t ours;

    SH_TRY(remember());
    sh_job_doing("stopping before the first step", 0);
    fill_set(&ours);
    for (int i = 0; i < SH_JOB_SIGNALS; i++)
        if (is_ignored(signals[i].number))
            sigdelset(&ours, signals[i].number);
    signal(SIGPIPE, SIG_IGN);
    pthread_sigmask(SIG_BLOCK, &ours, NULL);
    return sh_thread_start(NULL, "listen for signals", serve_signals, &ours, 0);
}

bool sh_job_heard(enum sh_job_signal s)
{
    return atomic_load_explicit(&heard[s], memory_order_relaxed) != 0;
}

sh_rc sh_job_go_on(const char *path)
{
    for (int i = 0; i < SH_JOB_SIGNALS; i++)
        if (sh_job_heard((enum sh_job_signal)i))
            return sh_fail(SH_REQUEUE, "%s: left alone (%s); run the same command to resume", path, signals[i].name);
    return SH_OK;
}

const char *sh_job_signal_name(enum sh_job_signal s)
{
    return signals[s].name;
}

void sh_job_doing(const char *what, int64_t step)
{
    atomic_store(&doing_step, step);
    atomic_store(&doing, what);
}
