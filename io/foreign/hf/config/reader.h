/* The state while a config.json is read, shared by the parts that read it. Inside io/foreign/hf only; local. */
#ifndef IO_HF_READER_H
#define IO_HF_READER_H

#include "io/foreign/hf/config/family.h"
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
    long long global_dim;         /* width of a head in blocks without a window, if it may differ */
    char local_theta[64];         /* rotary base of blocks with a window; "": all blocks have the same */
};

/* Return the value of a key; NULL: absent, or null, which means the same. */
json_t *sh_hf_find(const json_t *object, const char *key);

/* Print a number or a boolean in the form that a configuration has. Errors: SH_E_USAGE with the key. */
sh_rc sh_hf_text_of(const struct sh_hf_reader *r, const char *key, const json_t *value, char out[64]);

/* Return a value as a whole number. Only for values that were read as numbers; the configuration itself refuses the
 * rest. */
long long sh_hf_whole(const struct sh_hf_reader *r, enum sh_hf_value v);

#endif
