#include "io/token/token.h"

#include <string.h>

static const struct sh_token_ops *const rows[] = {&sh_token_byte};

enum { ROWS = sizeof rows / sizeof rows[0] };

static sh_rc unknown(const char *name)
{
    char known[256] = "";
    for (int i = 0; i < ROWS; i++) {
        strncat(known, " ", sizeof known - strlen(known) - 1);
        strncat(known, rows[i]->name, sizeof known - strlen(known) - 1);
    }
    return sh_fail(SH_E_USAGE, "no tokenizer is called \"%s\"; there are:%s", name, known);
}

sh_rc sh_token_find(const char *name, const struct sh_token_ops **out)
{
    for (int i = 0; i < ROWS; i++) {
        if (strcmp(rows[i]->name, name) == 0) {
            *out = rows[i];
            return SH_OK;
        }
    }
    return unknown(name);
}
