#include "src/cmd/cmd.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/str.h"
#include "src/report/report.h"

#include <stdlib.h>

/* Without -o the page lies in the folder itself. One process; runs that still write are read as they are. */
sh_rc sh_cmd_report(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *file = sh_cmd_option(cmd, args, "-o");
    struct sh_report *report;
    char *path, runs[SH_STR_SHORT];
    sh_rc rc;

    if (args->n_positional != 1)
        return sh_fail(SH_E_USAGE, "sherd report: give one folder, that of a run or one above several");
    SH_TRY(sh_report_open(args->positional[0], &report));
    /* A file that is named is relative to the current folder, the default to the reported one. */
    path = sh_path_join(file ? "" : args->positional[0], file ? file : "report.html");
    rc = sh_report_write(report, path);
    if (rc == SH_OK)
        sh_log_info("%s: %s", sh_str_plural(report->n_runs, "run", runs), path);
    free(path);
    sh_report_close(report);
    return rc;
}
