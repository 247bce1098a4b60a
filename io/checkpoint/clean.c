#include "io/checkpoint/clean.h"

#include "src/config/read/text.h"

#include <string.h>

/* Names end up in messages and in paths of datasets, so control characters and bad UTF-8 are refused. */
bool sh_ckpt_name_is_clean(const char *name)
{
    size_t bytes = strlen(name);
    return bytes > 0 && sh_config_text_bad(name, bytes, false) == bytes;
}
