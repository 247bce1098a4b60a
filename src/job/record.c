/* What a run leaves for the script that starts it again: how far it came, what it saved, and why it ended. JSON,
 * since scripts in any language read that. */
#include "src/job/job.h"

#include "src/base/file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 16 };

/* Negative means "not measured" in the struct; JSON has null for that. */
static json_t *number_or_null(double v)
{
    return v < 0 ? json_null() : json_real(v);
}

/* A reason may quote the name of a file, in whatever bytes that has. */
static json_t *words(const char *text)
{
    json_t *s = json_string(text);

    return s ? s : json_string("see the log");
}

static json_t *whole_or_null(int64_t v)
{
    return v < 0 ? json_null() : json_integer(v);
}

/* Atomic, since the script may read at any time, also while a signal ends the run. */
sh_rc sh_job_record_write(const char *path, const struct sh_job_record *r)
{
    json_t *o = json_pack(
        "{s:I, s:I, s:I, s:o, s:b, s:I, s:o, s:o, s:o}", "steps", (json_int_t)r->steps, "first_step",
        (json_int_t)r->first_step, "step", (json_int_t)r->step, "saved_step", whole_or_null(r->saved_step), "finished",
        r->step >= r->steps && r->status == SH_OK, "starts_without_checkpoint", (json_int_t)r->starts, "save_seconds",
        number_or_null(r->save_seconds), "exit_status", whole_or_null(r->status), "reason", words(r->reason));
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) : NULL;
    sh_rc rc;

    json_decref(o);
    if (!text)
        return sh_fail(SH_E_MEMORY, "out of memory: no room for what goes into %s", path);
    rc = sh_write_file_atomic(path, text, strlen(text));
    free(text);
    return rc;
}

/* A missing or damaged file is no failure: the record is advice for the restart script, and the first start of a run
 * has none. So the error text is cleared, else it would appear in an unrelated message. */
void sh_job_record_read(const char *path, struct sh_job_record *r, bool *found)
{
    char *text = NULL;
    json_t *o = sh_read_file(path, FILE_MAX, &text, NULL) == SH_OK ? json_loads(text, 0, NULL) : NULL;
    const json_t *starts = json_object_get(o, "starts_without_checkpoint");
    const json_t *seconds = json_object_get(o, "save_seconds");

    *found = json_is_integer(starts);
    if (*found) {
        r->starts = json_integer_value(starts);
        r->save_seconds = json_is_number(seconds) ? json_number_value(seconds) : -1;
    }
    json_decref(o);
    free(text);
    sh_error_clear();
}
