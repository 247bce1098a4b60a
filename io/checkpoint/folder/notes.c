/* Notes on how a file was made. */
#include "io/checkpoint/checkpoint.h"

#include "src/base/mem.h"

#include <string.h>

const char *const sh_ckpt_verify_name[] = {
    [SH_VERIFY_DISK] = "disk", [SH_VERIFY_CACHE] = "cache", [SH_VERIFY_OFF] = "off"};

/* The value of a line "name: value"; NULL: there is no such line. */
static const char *find_note(const char *notes, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = notes; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, name, length) == 0 && strncmp(line + length, ": ", 2) == 0)
            return line + length + 2;
    return NULL;
}

/* How much was read back when the file was saved; NULL for files of versions that did not note it. Returns a pointer
 * into sh_ckpt_verify_name. */
const char *sh_ckpt_verified(const struct sh_ckpt_meta *meta)
{
    const char *value = find_note(meta->notes, "checkpoint.verify");
    for (size_t i = 0; value && i < sizeof sh_ckpt_verify_name / sizeof *sh_ckpt_verify_name; i++)
        if (strcspn(value, "\n") == strlen(sh_ckpt_verify_name[i]) &&
            strncmp(value, sh_ckpt_verify_name[i], strlen(sh_ckpt_verify_name[i])) == 0)
            return sh_ckpt_verify_name[i];
    return NULL;
}

char *sh_ckpt_note(const struct sh_ckpt_meta *meta, const char *name)
{
    const char *value = meta->notes ? find_note(meta->notes, name) : NULL;

    return value ? sh_strfmt("%.*s", (int)strcspn(value, "\n"), value) : NULL;
}
