/* What a run leaves for the script that starts it again: how far it got, what it saved, and why it ended. JSON, because
 * scripts in any language read that. */
#include "src/job/job.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 16, LAST_PATH = 4096, LAST_BYTES = 4096 };

/* Negative means "not measured" in the struct; JSON has null for that. */
static json_t *number_or_null(double v)
{
    return v < 0 ? json_null() : json_real(v);
}

/* A reason may quote the name of a file, which may hold any bytes. */
static json_t *words(const char *text)
{
    json_t *s = json_string(text);

    return s ? s : json_string("see the log");
}

static json_t *whole_or_null(int64_t v)
{
    return v < 0 ? json_null() : json_integer(v);
}

/* A process number is valid only where it was given: on one host, and there in one namespace. */
static void name_process(struct sh_job_record *r)
{
    struct stat st;

    if (gethostname(r->host, sizeof r->host - 1) != 0)
        r->host[0] = '\0';
    r->host[sizeof r->host - 1] = '\0';
    r->pid = getpid();
    r->pid_space = stat("/proc/self/ns/pid", &st) == 0 ? (int64_t)st.st_ino : 0;
}

/* A newline ends the text, for tools that read lines. NULL: no memory. The caller frees it. */
static char *text_of(const struct sh_job_record *r, const char *reason)
{
    char *text, *lines;
    json_t *o = json_pack("{s:I, s:I, s:I, s:o, s:o, s:b, s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:I}", "steps",
                          (json_int_t)r->steps, "first_step", (json_int_t)r->first_step, "step", (json_int_t)r->step,
                          "saved_step", whole_or_null(r->saved_step), "validated_step",
                          whole_or_null(r->validated_step), "finished", r->step >= r->steps && r->status == SH_OK,
                          "starts_without_checkpoint", (json_int_t)r->starts, "save_seconds",
                          number_or_null(r->save_seconds), "validation_seconds", number_or_null(r->validation_seconds),
                          "exit_status", whole_or_null(r->status), "reason", words(reason), "host", words(r->host),
                          "pid", (json_int_t)r->pid, "pid_space", (json_int_t)r->pid_space);
    text = o ? json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(o);
    if (!text)
        return NULL;
    lines = sh_strfmt("%s\n", text);
    free(text);
    return lines;
}

/* The record of a process that gives up, made ahead: a handler can only copy it. Two of them, of which one is whole at
 * any time. It is longer than what is in the file, so that it covers that. */
static struct {
    char path[2][LAST_PATH], text[2][LAST_BYTES];
    atomic_int which; /* 1 and 2; 0: none */
} last;

/* An ended run has said why. */
static void prepare_last(const char *path, const struct sh_job_record *r)
{
    char *text = r->status < 0 && !r->reason[0] ? text_of(r, "a second Ctrl-C: it gave up at once") : NULL;
    int next = atomic_load(&last.which) == 1 ? 1 : 0;

    if (text && strlen(text) < LAST_BYTES && strlen(path) < LAST_PATH) {
        strcpy(last.text[next], text);
        strcpy(last.path[next], path);
        atomic_store(&last.which, next + 1);
    } else {
        atomic_store(&last.which, 0);
    }
    free(text);
}

/* In place: a handler has no safe name for another file, and one write of so few bytes is not seen in halves. */
void sh_job_record_give_up(void)
{
    int which = atomic_load(&last.which), fd = which ? open(last.path[which - 1], O_WRONLY | O_CLOEXEC) : -1;

    if (fd < 0)
        return;
    /* Nobody is left to hear of a failure. */
    (void)!write(fd, last.text[which - 1], strlen(last.text[which - 1]));
    close(fd);
}

/* Atomic, since the script may read at any time, also while a signal ends the run. */
sh_rc sh_job_record_write(const char *path, struct sh_job_record *r)
{
    char *lines;
    sh_rc rc;

    name_process(r);
    lines = text_of(r, r->reason);
    if (!lines)
        return sh_fail(SH_E_MEMORY, "out of memory: no room for the text of %s", path);
    rc = sh_write_file_atomic(path, lines, strlen(lines));
    free(lines);
    prepare_last(path, r);
    return rc;
}

static void take_text(const json_t *o, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(o, key));

    snprintf(out, size, "%s", text ? text : "");
}

static double seconds_or_none(const json_t *o, const char *key)
{
    const json_t *seconds = json_object_get(o, key);

    return json_is_number(seconds) ? json_number_value(seconds) : -1;
}

static void take(const json_t *o, struct sh_job_record *r)
{
    const json_t *status = json_object_get(o, "exit_status"), *validated = json_object_get(o, "validated_step");

    r->starts = json_integer_value(json_object_get(o, "starts_without_checkpoint"));
    if (json_is_integer(validated))
        r->validated_step = json_integer_value(validated);
    r->save_seconds = seconds_or_none(o, "save_seconds");
    r->validation_seconds = seconds_or_none(o, "validation_seconds");
    r->status = json_is_integer(status) ? (int)json_integer_value(status) : -1;
    take_text(o, "reason", r->reason, sizeof r->reason);
    take_text(o, "host", r->host, sizeof r->host);
    r->pid = json_integer_value(json_object_get(o, "pid"));
    r->pid_space = json_integer_value(json_object_get(o, "pid_space"));
}

/* A missing or damaged file is not a failure: the record is advice for the restart script, and the first start of a run
 * has none. So the error text is cleared, or it would appear in an unrelated message. */
void sh_job_record_read(const char *path, struct sh_job_record *r, bool *found)
{
    char *text = NULL;
    json_t *o = sh_read_file(path, FILE_MAX, &text, NULL) == SH_OK ? json_loads(text, 0, NULL) : NULL;

    *found = json_is_integer(json_object_get(o, "starts_without_checkpoint"));
    if (*found)
        take(o, r);
    json_decref(o);
    free(text);
    sh_error_clear();
}

/* Signal 0 only asks. A number that was reused names another process: then nobody can tell. */
bool sh_job_is_gone(const struct sh_job_record *r)
{
    struct sh_job_record here = {0};

    name_process(&here);
    if (r->pid <= 0 || r->pid > INT_MAX || !r->host[0] || !r->pid_space || strcmp(r->host, here.host) ||
        r->pid_space != here.pid_space)
        return false;
    return kill((pid_t)r->pid, 0) != 0 && errno == ESRCH;
}
