#include "src/base/problems.h"

#include <stdio.h>
#include <string.h>

/* Only whole lines are kept, except for a first line that is too long to fit. */
static void note_line(struct sh_problems *p, const char *line, int length)
{
    p->n++;
    if (p->shown == 0)
        p->used = (size_t)snprintf(p->text, sizeof p->text, "%.*s", length, line);
    else if (p->shown < SH_PROBLEMS_MAX && p->used + 1 + (size_t)length < sizeof p->text)
        p->used += (size_t)snprintf(p->text + p->used, sizeof p->text - p->used, "\n%.*s", length, line);
    else
        return;
    p->shown++;
}

/* Other failures pass through: without memory, for example, there is no point in continuing. */
sh_rc sh_problems_note(struct sh_problems *p, sh_rc rc)
{
    const char *line = sh_error_text();

    if (rc != SH_E_USAGE)
        return rc;
    for (;; line++) {
        int length = (int)strcspn(line, "\n");

        note_line(p, line, length);
        line += length;
        if (!*line)
            return SH_OK;
    }
}

/* One error with all lines; the last line counts those that did not fit. */
sh_rc sh_problems_fail(const struct sh_problems *p)
{
    if (p->n == 0)
        return SH_OK;
    if (p->shown < p->n)
        return sh_fail(SH_E_USAGE, "%s\nand %d more like these", p->text, p->n - p->shown);
    return sh_fail(SH_E_USAGE, "%s", p->text);
}
