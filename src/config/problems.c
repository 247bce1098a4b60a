#include "src/config/problems.h"

#include <string.h>

/* Notes a usage error and returns SH_OK, so that reading continues; other failures (no memory) pass through. */
sh_rc sh_config_note(struct sh_config_state *state, sh_rc rc)
{
    struct sh_config_problems *p = &state->problems;
    size_t length = strlen(sh_error_text());

    /* Without memory, for example, there is no point in continuing. */
    if (rc != SH_E_USAGE)
        return rc;
    p->n++;
    /* Only whole lines are kept, except for a first line that is too long to fit. */
    if (p->shown == 0)
        p->used = (size_t)snprintf(p->text, sizeof p->text, "%.*s", (int)sizeof p->text - 1, sh_error_text());
    else if (p->shown < SH_CONFIG_PROBLEMS_MAX && p->used + 1 + length < sizeof p->text)
        p->used += (size_t)snprintf(p->text + p->used, sizeof p->text - p->used, "\n%s", sh_error_text());
    else
        return SH_OK;
    p->shown++;
    return SH_OK;
}

/* One error with all lines; the last line counts those that did not fit. */
sh_rc sh_config_problems(const struct sh_config_state *state)
{
    const struct sh_config_problems *p = &state->problems;

    if (p->n == 0)
        return SH_OK;
    if (p->shown < p->n)
        return sh_fail(SH_E_USAGE, "%s\nand %d more like these", p->text, p->n - p->shown);
    return sh_fail(SH_E_USAGE, "%s", p->text);
}
