#include "src/plugin/trying.h"

#include "src/base/err.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static struct {
    char row[64], where[64], found[4096];
    const char *check;
    bool fatal; /* signals are watched, and time is limited */
} trying;

void sh_trying_row(const char *name)
{
    snprintf(trying.row, sizeof trying.row, "%s", name);
}

void sh_trying_call(const char *where)
{
    snprintf(trying.where, sizeof trying.where, "%s", where);
}

void sh_trying_found(const char *line)
{
    size_t n = strlen(trying.found);

    snprintf(trying.found + n, sizeof trying.found - n, "%s", line);
}

enum { LIMIT = 10 }; /* seconds of processor time that one check of one row may take */

void sh_trying_check(const char *name)
{
    const struct itimerval limit = {.it_value.tv_sec = LIMIT};

    trying.check = name;
    sh_trying_call("before the first call");
    if (trying.fatal)
        setitimer(ITIMER_PROF, &limit, NULL);
}

static void put(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        _exit(SH_E_DATA);
}

/* Only calls that a handler may make. */
void sh_trying_end(const char *why)
{
    const char *const words[] = {trying.found, trying.row, ": ", trying.check, ": ", why, " (", trying.where, ")\n"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        put(words[i]);
    _exit(SH_E_DATA);
}

static void say_last(int signal)
{
    sh_trying_end(signal == SIGPROF ? "10 seconds are not enough: a loop may not end"
                                    : "a signal ends the process: memory outside may be used");
}

/* For exit(), which would seem to be the end of the checks. */
static void say_exit(void)
{
    if (trying.fatal)
        sh_trying_end("the kernel ends the process");
}

void sh_trying_watched(bool begin)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF};
    const struct itimerval none = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = begin ? say_last : SIG_DFL};

    trying.fatal = begin;
    if (begin)
        atexit(say_exit);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, NULL);
    if (!begin)
        setitimer(ITIMER_PROF, &none, NULL);
}
