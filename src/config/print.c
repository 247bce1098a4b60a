#include "src/config/keys.h"
#include "src/config/read/give.h"
#include "src/config/read/value.h"

#include "src/base/hash.h"
#include "src/base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The caller frees *text. Strings come without quotes, for scripts. */
sh_rc sh_config_get(const struct sh_config *cfg, const char *name, char **text)
{
    const struct sh_config_key *key = sh_config_key_find(name);
    if (key == NULL)
        return sh_config_no_such_key(name);
    if (key->alias_of != NULL)
        return sh_fail(SH_E_USAGE, "%s only sets %s; ask for that", name, key->alias_of);
    bool text_as_it_is = key->type == SH_KEY_STRING && key->words == NULL;
    *text = text_as_it_is ? sh_strdup((const char *)cfg + key->offset) : sh_config_value_text(key, cfg);
    return SH_OK;
}

/* Aliases are left out: the keys that they set have the value. */
sh_rc sh_config_print_some(const struct sh_config *cfg, bool (*shows)(const void *of, const char *key), const void *of,
                           char **text)
{
    size_t bytes;
    char *out = NULL;
    const char *section = "";
    FILE *f = open_memstream(&out, &bytes);
    if (f == NULL)
        return sh_fail(SH_E_MEMORY, "out of memory: no room to print the configuration");
    for (int i = 0; i < sh_config_n_keys; i++) {
        const struct sh_config_key *key = &sh_config_keys[i];
        int length = sh_config_section_len(key->name);
        if (key->alias_of != NULL || (shows != NULL && !shows(of, key->name)))
            continue;
        if (strncmp(section, key->name, (size_t)length + 1) != 0)
            fprintf(f, "%.*s:\n", length, key->name);
        section = key->name;
        char *value = sh_config_value_text(key, cfg);
        fprintf(f, "  %s: %s\n", key->name + length + 1, value);
        free(value);
    }
    /* A stream in memory fails only if memory runs out; the error shows when it is closed. */
    bool failed = ferror(f) != 0;
    if (fclose(f) != 0 || failed) {
        free(out);
        return sh_fail(SH_E_MEMORY, "out of memory: no room to print the configuration");
    }
    *text = out;
    return SH_OK;
}

sh_rc sh_config_print(const struct sh_config *cfg, char **text)
{
    return sh_config_print_some(cfg, NULL, NULL, text);
}

sh_rc sh_config_digest(const struct sh_config *cfg, char digest[SH_CONFIG_DIGEST])
{
    char *text;

    SH_TRY(sh_config_print(cfg, &text));
    snprintf(digest, SH_CONFIG_DIGEST, "%016llx", (unsigned long long)sh_hash64(text, strlen(text)));
    free(text);
    return SH_OK;
}
