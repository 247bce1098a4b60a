#include "src/config/keys.h"

#include <string.h>

/* "training" and "training.threads" both name training.threads. */
static bool names_it(const char *name, const char *key)
{
    size_t n = strlen(name);

    return strncmp(name, key, n) == 0 && (key[n] == '\0' || key[n] == '.');
}

static bool is_named(const char *const *names, const char *key)
{
    for (; *names; names++)
        if (names_it(*names, key))
            return true;
    return false;
}

void sh_config_take(struct sh_config *to, const struct sh_config *from, const char *const *names)
{
    for (int i = 0; i < sh_config_n_keys; i++) {
        const struct sh_config_key *key = &sh_config_keys[i];

        if (!key->alias_of && is_named(names, key->name))
            memcpy((char *)to + key->offset, (const char *)from + key->offset, key->size);
    }
}
