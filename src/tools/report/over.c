/* Whether a run that has not done all its steps is still going. The run or its job script may have written that it is
 * over; a killed run wrote nothing, so its process is looked for next, and finally the age of its files is checked. */
#include "src/tools/report/parts.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/job/job.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

/* A run writes a line for each step. Between two lines there may be a validation or a save, but hardly fifteen minutes,
 * and not ten times the longest step; between two jobs of a chain there is a queue. */
static const double silent_seconds = 15 * 60, longest_steps = 10, queued_seconds = 24 * 3600;

/* When a file was last written; 0: it does not exist. */
static double written(const char *folder, const char *name)
{
    char *path = sh_path_join(folder, name);
    struct stat st;
    double at = stat(path, &st) == 0 ? (double)st.st_mtim.tv_sec : 0;

    free(path);
    return at;
}

static double longest_step(const struct sh_report_run *run)
{
    double longest = 0;

    for (int i = 1; i < run->n_steps; i++)
        longest = fmax(longest, run->steps[i].at - run->steps[i - 1].at);
    return longest;
}

static char *silence(const char *folder, const struct sh_report_run *run, bool chained)
{
    double last =
        fmax(fmax(written(folder, "metrics.jsonl"), written(folder, "progress.json")), written(folder, "chain"));
    double silent = (double)time(NULL) - last;
    char text[SH_STR_SHORT];

    if (last <= 0 || silent < fmax(chained ? queued_seconds : silent_seconds, longest_steps * longest_step(run)))
        return NULL;
    return sh_strfmt("nothing written for %s", sh_str_duration(silent, text));
}

char *sh_report_why_over(const char *folder, const struct sh_report_run *run)
{
    char *path, *why = sh_report_said_by_script(folder);
    bool chained = why != NULL, found;
    struct sh_job_record r;

    if (why && why[0])
        return why;
    free(why);
    path = sh_path_join(folder, "progress.json");
    sh_job_record_read(path, &r, &found);
    free(path);
    if (chained || !found)
        return silence(folder, run, chained);
    if (r.status >= 0)
        return r.reason[0] ? sh_strfmt("exit status %d: %s", r.status, r.reason)
                           : sh_strfmt("exit status %d", r.status);
    if (sh_job_is_gone(&r))
        return sh_strfmt("process %lld on %s is gone", (long long)r.pid, r.host);
    return silence(folder, run, false);
}
