#include "src/base/err.h"

#include "src/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 4096, PLACE_MAX = 256 };

/* Each thread has its own error: a failure in a reader thread must not replace the text of the main thread. Static
 * buffers, because the error may be that there is no memory. */
static _Thread_local char kept_text[TEXT_MAX];
static _Thread_local char kept_place[PLACE_MAX];
static void (*stop_hook)(int exit_status);

/* Out-of-tree builds hand the compiler "../../src/x.c"; the message is about src/x.c. */
static const char *strip_parents(const char *file)
{
    while (strncmp(file, "../", 3) == 0)
        file += 3;
    return file;
}

/* Cuts what is longer than the buffer: a long path never hides the message that stands before it. */
sh_rc sh_fail_at(const char *file, int line, sh_rc rc, const char *fmt, ...)
{
    char text[TEXT_MAX]; /* the arguments may point into kept_text */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(kept_text, text, sizeof kept_text);
    snprintf(kept_place, sizeof kept_place, "%s:%d", strip_parents(file), line);
    return rc;
}

/* The place stays that of the first failure: it says where the cause is. */
sh_rc sh_fail_prefix(sh_rc rc, const char *fmt, ...)
{
    char text[TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s", kept_text);
    memcpy(kept_text, text, sizeof kept_text);
    return rc;
}

const char *sh_error_text(void)
{
    return kept_text;
}

const char *sh_error_place(void)
{
    return kept_place;
}

/* Of other classes the place says nothing to the user, whose input or machine is at fault. */
sh_rc sh_error_locate(sh_rc rc)
{
    size_t used = strlen(kept_text);

    if (rc == SH_E_BUG && used)
        snprintf(kept_text + used, sizeof kept_text - used, " (a bug of Sherd, at %s)", kept_place);
    return rc;
}

/* For failures that are none to the caller: else the text would be reported with the next one. */
void sh_error_clear(void)
{
    kept_text[0] = '\0';
    kept_place[0] = '\0';
}

/* For the message of sh_stop() only; scripts read the exit status. */
static const char *name_of(sh_rc rc)
{
    switch (rc) {
    case SH_OK: return "ok";
    case SH_E_USAGE: return "usage";
    case SH_E_DATA: return "data";
    case SH_E_MEMORY: return "memory";
    case SH_E_COMM: return "communication";
    case SH_E_NUMERIC: return "numbers";
    case SH_E_REPLICA: return "replicas";
    case SH_REQUEUE: return "stopped";
    case SH_E_BUG: return "bug";
    }
    return "unknown";
}

/* One hook: src/mesh takes the whole job down with it. NULL: end this process only. */
void sh_stop_hook(void (*hook)(int exit_status))
{
    stop_hook = hook;
}

void sh_stop(sh_rc rc)
{
    static atomic_flag stopping = ATOMIC_FLAG_INIT;
    /* When several threads fail at once the first one reports; the others wait for its exit. */
    while (atomic_flag_test_and_set(&stopping))
        pause();
    sh_log_error("%s (%s, from %s)", kept_text, name_of(rc), kept_place);
    fflush(stdout);
    if (stop_hook != NULL)
        stop_hook((int)rc);
    /* Not exit(): an exit handler of MPI or of a driver may wait for the very peers that are gone. */
    _exit((int)rc);
}
