/* `sherd report`: a page about a folder of runs, written once or repeatedly while they continue (--follow), or
 * its figures for MLPerf's tools. */
#include "src/cmd/cmd.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/string/str.h"
#include "src/job/job.h"
#include "src/tools/report/report.h"

#include <stdlib.h>
#include <time.h>

enum { FOLLOW_SECONDS = 10, LOOKS_PER_SECOND = 10 };

/* Any of the signals that end a job: scripts follow reports too. */
static bool is_stopped(void)
{
    return sh_job_heard(SH_JOB_INT) || sh_job_heard(SH_JOB_TERM) || sh_job_heard(SH_JOB_USR1);
}

/* The request, as folders and files. */
struct request {
    const char *folder;
    const char *against, *sample; /* an older folder; a file with text; NULL for none */
    char *path;                   /* to write */
    bool mllog;                   /* instead of the page */
};

/* Warn of runs that will not do the rest of their steps; nothing is said about runs that continue. */
static void say_over(const struct sh_report *r)
{
    for (int i = 0; i < r->n_runs; i++) {
        const struct sh_report_run *run = &r->runs[i];

        if (run->over)
            sh_log_warn("%s: no longer followed at step %lld of %lld: %s", run->name, (long long)sh_report_done(run),
                        (long long)run->wanted, run->over);
    }
}

/* Runs that are still being written are read as they are. */
static sh_rc write_once(const struct request *q, int reload, bool *finished)
{
    struct sh_report *r, *old = NULL;
    char runs[SH_STR_SHORT];
    sh_rc rc;

    SH_TRY(sh_report_open(q->folder, &r));
    if (q->against)
        SH_TRY_OUT(sh_report_open(q->against, &old));
    r->against = old;
    if (q->sample)
        SH_TRY_OUT(sh_report_add_sample(r, q->sample));
    *finished = sh_report_finished(r);
    r->reload = *finished ? 0 : reload;
    if (q->mllog)
        rc = sh_report_mllog(r, q->path);
    else
        rc = sh_report_write(r, q->path);
    if (rc == SH_OK && reload && *finished)
        say_over(r);
    if (rc == SH_OK && reload == 0)
        sh_log_info("%s: %s", sh_str_plural(r->n_runs, "run", runs), q->path);
out:
    sh_report_close(old);
    sh_report_close(r);
    return rc;
}

/* The last page, written when all runs are finished or over or when following ends, does not reload itself. A folder
 * that cannot be read at some moment, for example while a run is being created, is read again later; the page stays as
 * it is. */
static sh_rc follow(const struct request *q)
{
    bool finished = false, stopped = false;

    SH_TRY(sh_job_listen());
    SH_TRY(write_once(q, FOLLOW_SECONDS, &finished));
    if (!finished)
        sh_log_info("%s: written every %d s; Ctrl-C ends it", q->path, FOLLOW_SECONDS);
    while (!finished && !stopped) {
        for (int i = 0; i < FOLLOW_SECONDS * LOOKS_PER_SECOND && !is_stopped(); i++)
            nanosleep(&(struct timespec){.tv_nsec = 1000000000 / LOOKS_PER_SECOND}, NULL);
        stopped = is_stopped();
        if (write_once(q, stopped ? 0 : FOLLOW_SECONDS, &finished) != SH_OK) {
            sh_log_warn("%s", sh_error_text());
            sh_error_clear();
        }
    }
    return SH_OK;
}

/* Without -o the file goes to the folder itself. One process. */
sh_rc sh_cmd_report(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *file = sh_cmd_option(cmd, args, "-o");
    bool follows = sh_cmd_option(cmd, args, "--follow"), finished;
    struct request q = {.folder = args->positional[0],
                        .against = sh_cmd_option(cmd, args, "--against"),
                        .sample = sh_cmd_option(cmd, args, "--sample"),
                        .mllog = sh_cmd_option(cmd, args, "--mllog")};
    sh_rc rc;

    if (args->n_positional != 1)
        return sh_fail(SH_E_USAGE, "sherd report: give one folder, either of a run or above several runs");
    if (q.mllog && (follows || q.against || q.sample))
        return sh_fail(SH_E_USAGE, "--mllog writes no page: leave out %s",
                       follows     ? "--follow"
                       : q.against ? "--against"
                                   : "--sample");
    /* A given file is relative to the current folder, the default file to the reported folder. */
    q.path = sh_path_join(file ? "" : q.folder, file ? file : q.mllog ? "mllog.txt" : "report.html");
    rc = follows ? follow(&q) : write_once(&q, 0, &finished);
    free(q.path);
    return rc;
}
