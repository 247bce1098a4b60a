#include "src/base/err.h"

#include "src/base/log.h"
#include "src/base/temp.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 8192, PLACE_MAX = 256 };

/* Each thread has its own error: a failure in a reader thread must not replace the text of the main thread. The buffers
 * are static, because the error may be that memory ran out. */
static _Thread_local char kept_text[TEXT_MAX];
static _Thread_local char kept_place[PLACE_MAX];
static void (*stop_hook)(int exit_status);

/* Out-of-tree builds pass "../../src/x.c" to the compiler; the message names src/x.c. */
static const char *strip_parents(const char *file)
{
    while (strncmp(file, "../", 3) == 0)
        file += 3;
    return file;
}

/* Cuts text longer than the buffer: a long path never hides the message before it. */
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

/* The place remains that of the original failure: it says where the cause is. */
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

/* For other classes the place is of no use to the user, whose input or machine is at fault. */
sh_rc sh_error_locate(sh_rc rc)
{
    size_t used = strlen(kept_text);

    if (rc == SH_E_BUG && used)
        snprintf(kept_text + used, sizeof kept_text - used, " (a bug in Sherd, at %s)", kept_place);
    return rc;
}

/* For failures that the caller tolerates: otherwise their text would be reported with the next failure. */
void sh_error_clear(void)
{
    kept_text[0] = '\0';
    kept_place[0] = '\0';
}

/* Only for the message of sh_stop(); scripts read the exit status. */
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

/* There is one hook: src/mesh uses it to end the whole job. NULL: end only this process. */
void sh_stop_hook(void (*hook)(int exit_status))
{
    stop_hook = hook;
}

void sh_stop(sh_rc rc)
{
    static atomic_flag stopping = ATOMIC_FLAG_INIT;
    /* If several threads fail at once, the first one reports; the others wait for it to exit. */
    while (atomic_flag_test_and_set(&stopping))
        pause();
    sh_log_error("%s (%s, from %s)", kept_text, name_of(rc), kept_place);
    fflush(stdout);
    sh_temp_delete();
    if (stop_hook != NULL)
        stop_hook((int)rc);
    /* Not exit(): an exit handler of MPI or of a driver may wait for the very peers that are gone. */
    _exit((int)rc);
}
