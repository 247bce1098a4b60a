/* Reads study.yaml as written by jobscripts/scaling-study: only the few lines of its first section that change the
 * page. Points are in the folders below, with the configuration and the prediction of each. */
#include "src/tools/report/parts.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 64 << 20 };

/* Parses "  key: value" or "  key: "value""; NULL if the line has another key. Freed with free(). */
static char *value_of(const char *line, const char *key)
{
    size_t n = strlen(key);
    const char *value;

    if (strncmp(line, "  ", 2) != 0 || strncmp(line + 2, key, n) != 0 || strncmp(line + 2 + n, ": ", 2) != 0)
        return NULL;
    value = line + 2 + n + 2;
    n = strlen(value);
    if (n > 1 && value[0] == '"' && value[n - 1] == '"')
        return sh_strfmt("%.*s", (int)n - 2, value + 1);
    return sh_strdup(value);
}

/* The newest line counts; other lines leave the text unchanged. */
static void take_text(char **text, const char *line, const char *key)
{
    char *value = value_of(line, key);

    if (!value)
        return;
    free(*text);
    *text = value;
}

/* A line is compared with each known key; other keys are skipped, since the file is a stranger's. */
static void take_line(struct sh_report_study *s, const char *line)
{
    char *warm_up = value_of(line, "warm_up"), *paper = value_of(line, "paper");

    take_text(&s->name, line, "name");
    take_text(&s->machine, line, "machine");
    take_text(&s->submitted, line, "submitted");
    if (warm_up && strtoll(warm_up, NULL, 10) > 0)
        s->warm_up = strtoll(warm_up, NULL, 10);
    if (paper)
        s->paper = !strcmp(paper, "true");
    free(warm_up);
    free(paper);
}

/* Without the file the defaults apply: a folder of runs need not be a study. The section ends at the first line that
 * is not indented. */
sh_rc sh_report_read_study(const char *folder, struct sh_report_study *s)
{
    char *path = sh_path_join(folder, "study.yaml"), *text = NULL, *rest, *line;
    sh_rc rc = SH_OK;

    s->warm_up = 1;
    if (access(path, F_OK) == 0)
        rc = sh_read_file(path, MOST_BYTES, &text, NULL);
    free(path);
    if (!text)
        return rc;
    rest = text;
    line = strsep(&rest, "\n");
    if (!strcmp(line, "study:"))
        while ((line = strsep(&rest, "\n")) && line[0] == ' ')
            take_line(s, line);
    free(text);
    return SH_OK;
}

void sh_report_free_study(struct sh_report_study *s)
{
    free(s->name);
    free(s->machine);
    free(s->submitted);
}
