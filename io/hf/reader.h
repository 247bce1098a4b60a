/* A config.json while it is read, for the parts that read it. Inside io/hf only; local. */
#ifndef IO_HF_READER_H
#define IO_HF_READER_H

#include "io/hf/family.h"
#include "src/config/config.h"

#include <jansson.h>

struct sh_hf_reader {
    const struct sh_config *so_far;
    const char *place;
    sh_config_give_value give;
    void *to;
    json_t *root;
    const struct sh_hf_family *f;
    char value[SH_HF_VALUES][64]; /* as text */
    char local_theta[64];         /* rotary base of blocks with a window; "": all blocks have the same */
};

/* The value of a key; NULL: absent, or null, which is the same. */
json_t *sh_hf_find(const json_t *object, const char *key);

/* A number or a truth value as a configuration has it. Errors: SH_E_USAGE with the key. */
sh_rc sh_hf_text_of(const struct sh_hf_reader *r, const char *key, const json_t *value, char out[64]);

/* Only for values that were read as numbers; the configuration itself refuses the rest. */
long long sh_hf_whole(const struct sh_hf_reader *r, enum sh_hf_value v);

#endif
