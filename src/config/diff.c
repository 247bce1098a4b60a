#include "src/config/keys.h"
#include "src/config/value.h"

#include <stdlib.h>
#include <string.h>

static bool in_section(const char *name, const char *const *sections)
{
    size_t len = (size_t)sh_config_section_len(name);
    for (; sections != NULL && *sections != NULL; sections++)
        if (strlen(*sections) == len && strncmp(name, *sections, len) == 0)
            return true;
    return false;
}

void sh_config_diff(const struct sh_config *a, const struct sh_config *b, const char *const *skip_section, FILE *out)
{
    for (int i = 0; i < sh_config_n_keys; i++) {
        const struct sh_config_key *key = &sh_config_keys[i];
        if (key->alias_of != NULL || in_section(key->name, skip_section))
            continue;
        char *value_a = sh_config_value_text(key, a), *value_b = sh_config_value_text(key, b);
        if (strcmp(value_a, value_b) != 0)
            fprintf(out, "%s: %s -> %s\n", key->name, value_a, value_b);
        free(value_a);
        free(value_b);
    }
}
