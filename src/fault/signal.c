#include "src/fault/fault.h"

#include <signal.h>
#include <stddef.h>

static const struct {
    int number;
    const char *name;
} signals[SH_FAULT_SIGNALS] = {
    [SH_FAULT_USR1] = {SIGUSR1, "SIGUSR1"},
    [SH_FAULT_TERM] = {SIGTERM, "SIGTERM"},
    [SH_FAULT_INT] = {SIGINT, "SIGINT"},
};
static volatile sig_atomic_t heard[SH_FAULT_SIGNALS];

/* Only what is safe in a handler: flags, signal() and raise(). The raised one comes when the handler returns. */
static void note(int number)
{
    if (number == SIGINT && heard[SH_FAULT_INT]) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    for (int i = 0; i < SH_FAULT_SIGNALS; i++)
        if (signals[i].number == number)
            heard[i] = 1;
}

/* A shell starts background jobs with SIGINT ignored: Ctrl-C is not for them. */
static bool is_for_others(int number)
{
    struct sigaction now;

    return number == SIGINT && sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void sh_fault_listen(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    for (int i = 0; i < SH_FAULT_SIGNALS; i++)
        if (!is_for_others(signals[i].number))
            sigaction(signals[i].number, &action, NULL);
}

bool sh_fault_heard(enum sh_fault_signal s)
{
    return heard[s] != 0;
}

const char *sh_fault_signal_name(enum sh_fault_signal s)
{
    return signals[s].name;
}
