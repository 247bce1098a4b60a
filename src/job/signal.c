/* A handler runs on the stack of the thread that gets the signal, and not every thread tolerates that: oneDNN's
 * dnnl_sgemm (2.6, AVX-512) keeps data below the stack pointer, where the handler's frame overwrites it; the product,
 * and memory that it points to, are silently damaged. So the threads that compute have these signals blocked, and one
 * that only sleeps gets them. */
#include "src/job/job.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static const struct {
    int number;
    const char *name;
} signals[SH_JOB_SIGNALS] = {
    [SH_JOB_USR1] = {SIGUSR1, "SIGUSR1"},
    [SH_JOB_TERM] = {SIGTERM, "SIGTERM"},
    [SH_JOB_INT] = {SIGINT, "SIGINT"},
};
static atomic_int heard[SH_JOB_SIGNALS]; /* lock-free, so a handler may write them */

static struct {
    sigset_t mask;
    struct sigaction action[SH_JOB_SIGNALS];
} given;

/* Does only what is safe in a handler: flags, signal() and raise(). The raised signal arrives when the handler returns.
 * The handler runs on the listener, or on a thread that a library started earlier. */
static void note(int number)
{
    if (number == SIGINT && sh_job_heard(SH_JOB_INT)) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    for (int i = 0; i < SH_JOB_SIGNALS; i++)
        if (signals[i].number == number)
            atomic_store_explicit(&heard[i], 1, memory_order_relaxed);
}

/* A shell starts background jobs with SIGINT ignored: Ctrl-C is not for them. */
static bool is_for_others(int number)
{
    struct sigaction now;

    return number == SIGINT && sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static void *sleep_for_ever(void *number_set)
{
    pthread_sigmask(SIG_UNBLOCK, number_set, NULL);
    for (;;)
        pause();
    return NULL;
}

/* The listener starts with every signal blocked and unblocks only ours, so it gets no others. */
static sh_rc start_listener(sigset_t *ours)
{
    sigset_t all, before;
    pthread_t thread;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, sleep_for_ever, ours);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return sh_fail(SH_E_MEMORY, "cannot create the thread that listens for signals: %s", strerror(error));
    pthread_detach(thread);
    return SH_OK;
}

/* Give the signals back in a forked process, where no thread listens: MPI starts a daemon for a process without a
 * launcher, and a daemon that inherits the mask could not be asked to end. */
static void give_back(void)
{
    for (int i = 0; i < SH_JOB_SIGNALS; i++)
        sigaction(signals[i].number, &given.action[i], NULL);
    pthread_sigmask(SIG_SETMASK, &given.mask, NULL);
}

/* Must run before anything is changed: forked processes get back what it stores. */
static sh_rc remember(void)
{
    for (int i = 0; i < SH_JOB_SIGNALS; i++)
        sigaction(signals[i].number, NULL, &given.action[i]);
    pthread_sigmask(SIG_BLOCK, NULL, &given.mask);
    if (pthread_atfork(NULL, NULL, give_back) != 0)
        return sh_fail(SH_E_MEMORY, "no memory to listen for signals");
    return SH_OK;
}

/* The order matters: remember the old state first, install the handlers, block the signals, and only then start the
 * listener, which unblocks what it serves. */
sh_rc sh_job_listen(void)
{
    static sigset_t ours;
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};

    SH_TRY(remember());
    sigemptyset(&action.sa_mask);
    sigemptyset(&ours);
    for (int i = 0; i < SH_JOB_SIGNALS; i++)
        if (!is_for_others(signals[i].number)) {
            sigaddset(&ours, signals[i].number);
            sigaction(signals[i].number, &action, NULL);
        }
    pthread_sigmask(SIG_BLOCK, &ours, NULL);
    return start_listener(&ours);
}

bool sh_job_heard(enum sh_job_signal s)
{
    return atomic_load_explicit(&heard[s], memory_order_relaxed) != 0;
}

const char *sh_job_signal_name(enum sh_job_signal s)
{
    return signals[s].name;
}
