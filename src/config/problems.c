#include "src/config/problems.h"

#include <string.h>

/* Takes a usage error down and returns SH_OK, so that reading goes on; other failures (no memory) pass through. */
sh_rc sh_config_note(struct sh_config_state *state, sh_rc rc)
{
    struct sh_config_problems *p = &state->problems;
    size_t length = strlen(sh_error_text());

    /* Without memory, say, going on makes no sense. */
    if (rc != SH_E_USAGE)
        return rc;
    p->n++;
    /* Lines are whole, but for a first one that would not fit at all. */
    if (p->shown == 0)
        p->used = (size_t)snprintf(p->text, sizeof p->text, "%.*s", (int)sizeof p->text - 1, sh_error_text());
    else if (p->shown < SH_CONFIG_PROBLEMS_MAX && p->used + 1 + length < sizeof p->text)
        p->used += (size_t)snprintf(p->text + p->used, sizeof p->text - p->used, "\n%s", sh_error_text());
    else
        return SH_OK;
    p->shown++;
    return SH_OK;
}

/* One error with all lines; the count of those that did not fit stands last. */
sh_rc sh_config_problems(const struct sh_config_state *state)
{
    const struct sh_config_problems *p = &state->problems;

    if (p->n == 0)
        return SH_OK;
    if (p->shown < p->n)
        return sh_fail(SH_E_USAGE, "%s\nand %d more like these", p->text, p->n - p->shown);
    return sh_fail(SH_E_USAGE, "%s", p->text);
}
