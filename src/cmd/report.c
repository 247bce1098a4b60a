#include "src/cmd/cmd.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/str.h"
#include "src/job/job.h"
#include "src/report/report.h"

#include <stdlib.h>
#include <time.h>

enum { FOLLOW_SECONDS = 10, LOOKS_PER_SECOND = 10 };

static bool is_stopped(void)
{
    return sh_job_heard(SH_JOB_INT) || sh_job_heard(SH_JOB_TERM) || sh_job_heard(SH_JOB_USR1);
}

/* Runs that still write are read as they are. */
static sh_rc write_once(const char *folder, int reload, const char *path, bool *finished)
{
    struct sh_report *r;
    sh_rc rc;

    SH_TRY(sh_report_open(folder, &r));
    *finished = sh_report_finished(r);
    rc = sh_report_write(r, *finished ? 0 : reload, path);
    sh_report_close(r);
    return rc;
}

/* The last page, of finished runs or at the end of the following, does not reload itself. A folder that cannot be read
 * for once, as when a run is just being created, is read again later; the page stays as it is. */
static sh_rc follow(const char *folder, const char *path)
{
    bool finished = false;

    SH_TRY(sh_job_listen());
    SH_TRY(write_once(folder, FOLLOW_SECONDS, path, &finished));
    sh_log_info("%s: written every %d s; Ctrl-C ends it", path, FOLLOW_SECONDS);
    while (!finished && !is_stopped()) {
        for (int i = 0; i < FOLLOW_SECONDS * LOOKS_PER_SECOND && !is_stopped(); i++)
            nanosleep(&(struct timespec){.tv_nsec = 1000000000 / LOOKS_PER_SECOND}, NULL);
        if (write_once(folder, is_stopped() ? 0 : FOLLOW_SECONDS, path, &finished) != SH_OK) {
            sh_log_warn("%s", sh_error_text());
            sh_error_clear();
        }
    }
    return SH_OK;
}

static sh_rc write_as_asked(const char *folder, bool mllog, const char *path)
{
    struct sh_report *r;
    char runs[SH_STR_SHORT];
    sh_rc rc;

    SH_TRY(sh_report_open(folder, &r));
    rc = mllog ? sh_report_mllog(r, path) : sh_report_write(r, 0, path);
    if (rc == SH_OK)
        sh_log_info("%s: %s", sh_str_plural(r->n_runs, "run", runs), path);
    sh_report_close(r);
    return rc;
}

/* Without -o the file lies in the folder itself. One process. */
sh_rc sh_cmd_report(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *file = sh_cmd_option(cmd, args, "-o");
    bool follows = sh_cmd_option(cmd, args, "--follow"), mllog = sh_cmd_option(cmd, args, "--mllog");
    char *path;
    sh_rc rc;

    if (args->n_positional != 1)
        return sh_fail(SH_E_USAGE, "sherd report: give one folder, that of a run or one above several");
    if (follows && mllog)
        return sh_fail(SH_E_USAGE, "--follow writes a page and --mllog none: give one of them");
    /* A file that is named is relative to the current folder, the default to the reported one. */
    path = sh_path_join(file ? "" : args->positional[0], file ? file : mllog ? "mllog.txt" : "report.html");
    rc = follows ? follow(args->positional[0], path) : write_as_asked(args->positional[0], mllog, path);
    free(path);
    return rc;
}
