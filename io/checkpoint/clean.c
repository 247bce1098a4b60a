#include "io/checkpoint/clean.h"

#include "src/base/mem.h"
#include "src/config/text.h"

#include <stdio.h>
#include <string.h>

/* Names end up in messages and in paths of datasets, so control characters and bad UTF-8 are refused. */
bool sh_ckpt_name_is_clean(const char *name)
{
    size_t bytes = strlen(name);
    return bytes > 0 && sh_config_text_bad(name, bytes, false) == bytes;
}

/* Makes text of a file safe for a terminal: bytes that are not clean UTF-8 are shown as \xNN. The caller frees it. */
char *sh_ckpt_clean(const char *text, bool lines)
{
    size_t left = strlen(text);
    /* Each byte becomes at most four. */
    char *out = sh_calloc(4 * left + 1, 1), *to = out;
    while (left > 0) {
        size_t good = sh_config_text_bad(text, left, false);
        memcpy(to, text, good);
        to += good;
        text += good;
        left -= good;
        if (left == 0)
            break;
        if (lines && (*text == '\n' || *text == '\t'))
            *to++ = *text;
        else
            to += sprintf(to, "\\x%02x", (unsigned)(unsigned char)*text);
        text++;
        left--;
    }
    return out;
}
