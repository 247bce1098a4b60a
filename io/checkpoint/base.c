/* The base of a checkpoint that holds only a part of a model: where the rest is, and one digest over all of it. */
#include "io/checkpoint/checkpoint.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/number/mixsum.h"

#include <string.h>

char *sh_ckpt_base_text(uint64_t sum, const char *path)
{
    return sh_strfmt("sum: %016llx\npath: %s\n", (unsigned long long)sum, path);
}

sh_rc sh_ckpt_base_read(const char *of, const char *text, uint64_t *sum, char **path)
{
    static const char second[] = "path: ";
    unsigned long long number;
    const char *at = strchr(text, '\n'), *end = at ? strchr(at + 1, '\n') : NULL;
    if (!end || sscanf(text, "sum: %16llx\n", &number) != 1 || strncmp(at + 1, second, strlen(second)) != 0)
        return sh_fail(SH_E_DATA, "%s: its description of its base is not readable", of);
    at += 1 + strlen(second);
    *sum = number;
    *path = sh_strfmt("%.*s", (int)(end - at), at);
    return SH_OK;
}

/* Elements are summed with their name and place, so that the parts add up to the same sum whoever holds them. */
uint64_t sh_ckpt_base_place(const char *name, int64_t at)
{
    return sh_mix64(sh_hash64(name, strlen(name))) + (uint64_t)at * SH_MIXSUM_STEP;
}
