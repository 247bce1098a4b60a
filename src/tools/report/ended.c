/* How a run ended: from its own record or, if it never did a step, from the job script's and from the job's log. Each of them may be absent; none of them is trusted to be small or complete. */
#include "src/tools/report/parts.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 16 << 20 };

/* NULL if the file cannot be read. */
static char *read_text(const char *path)
{
    char *text;

    if (sh_read_file(path, MOST_BYTES, &text, NULL) == SH_OK)
        return text;
    sh_error_clear();
    return NULL;
}

/* Reads progress.json of a run that got far enough to write one; returns why the run ended, if it was an error. */
static char *said_by_run(const char *folder, struct sh_report_run *run)
{
    char *path = sh_path_join(folder, "progress.json"), *file = read_text(path), *text = NULL;
    json_t *progress = file ? json_loads(file, 0, NULL) : NULL;
    const char *reason = json_string_value(json_object_get(progress, "reason"));
    const json_t *given = json_object_get(progress, "exit_status");
    json_int_t status = json_integer_value(given);

    run->recorded = json_is_object(progress);
    run->finished = json_is_true(json_object_get(progress, "finished"));
    if (reason && reason[0] && status > 0)
        text = sh_strfmt("exit status %lld: %s", (long long)status, reason);
    else if (reason && reason[0] && json_is_null(given))
        text = sh_strdup(reason);
    json_decref(progress);
    free(file);
    free(path);
    return text;
}

/* Reads the reason from "chain=... stopped=REASON". */
char *sh_report_said_by_script(const char *folder)
{
    static const char key[] = "stopped=";
    char *path = sh_path_join(folder, "chain"), *line = read_text(path);
    const char *reason = line ? strstr(line, key) : NULL;
    char *text = NULL;

    if (reason) /* to the end of the line */
        text = sh_strfmt("%.*s", (int)strcspn(reason + sizeof key - 1, "\n"), reason + sizeof key - 1);
    free(line);
    free(path);
    return text;
}

/* Reads FOLDER.out, a job's log in a scaling study: the last error of Sherd, otherwise the last of its launcher. */
static char *said_by_log(const char *folder)
{
    char *path = sh_strfmt("%s.out", folder), *log = read_text(path), *rest = log, *line, *text = NULL;
    bool ours = false;

    while (rest && (line = strsep(&rest, "\n"))) {
        const char *what = strstr(line, "error: ");
        bool by_us = what && !strncmp(line, "sherd: ", 7);

        if (!what || (ours && !by_us))
            continue;
        /* Launchers add their own errors after Sherd's; they count only while there is none of Sherd's. */
        ours = by_us;
        free(text);
        text = sh_strdup(what + strlen("error: "));
    }
    free(log);
    free(path);
    return text;
}

/* The caller frees it; NULL: no source says why. Verdict and error together, if there are both. */
static char *said_by_others(const char *folder)
{
    char *verdict = sh_report_said_by_script(folder), *error = said_by_log(folder), *text = NULL;

    if (verdict && verdict[0] && error && error[0])
        text = sh_strfmt("%s: %s", verdict, error);
    else if ((verdict && verdict[0]) || (error && error[0]))
        text = sh_strdup(verdict && verdict[0] ? verdict : error);
    free(verdict);
    free(error);
    return text;
}

void sh_report_read_end(const char *folder, struct sh_report_run *run)
{
    char *text = said_by_run(folder, run);

    if (run->n_steps)
        run->stopped = text;
    else
        run->ended = text ? text : said_by_others(folder);
}
