#include "src/config/keys.h"

#include <string.h>

/* Copies the fields of one owner: a resumed run takes the model's keys from the checkpoint and keeps the machine's. */
void sh_config_take(struct sh_config *to, const struct sh_config *from, unsigned of)
{
    for (int i = 0; i < sh_config_n_keys; i++) {
        const struct sh_config_key *key = &sh_config_keys[i];

        if (!key->alias_of && of >> key->of & 1)
            memcpy((char *)to + key->offset, (const char *)from + key->offset, key->size);
    }
}
