#include "src/config/keys.h"
#include "src/config/read/value.h"

#include <stdlib.h>
#include <string.h>

/* Compares printed values, so that two spellings of one value are equal. Aliases hold no value themselves. */
void sh_config_diff(const struct sh_config *a, const struct sh_config *b, unsigned of, FILE *out)
{
    for (int i = 0; i < sh_config_n_keys; i++) {
        const struct sh_config_key *key = &sh_config_keys[i];
        if (key->alias_of != NULL || !(of >> key->of & 1))
            continue;
        char *value_a = sh_config_value_text(key, a), *value_b = sh_config_value_text(key, b);
        if (strcmp(value_a, value_b) != 0)
            fprintf(out, "%s: %s -> %s\n", key->name, value_a, value_b);
        free(value_a);
        free(value_b);
    }
}
