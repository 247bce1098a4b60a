/* Rotary positions in config.json: rope_parameters of transformers 5, rope_theta and rope_scaling of earlier versions.
 * Inside io/foreign/hf only; local. */
#ifndef IO_HF_ROPE_H
#define IO_HF_ROPE_H

#include "io/foreign/hf/config/reader.h"

/* Set every model.rope_* key from the file, because another source may have set other values.
 * Errors: SH_E_USAGE: a type that is not computed here, with the reason; a number that is missing or unknown; both
 * spellings with different numbers. */
sh_rc sh_hf_rope_read(struct sh_hf_reader *r);

bool sh_hf_rope_is_key(const struct sh_hf_family *f, const char *key);

/* Return the members of rope_scaling, without braces; NULL: frequencies are unscaled. `source`, which may be NULL, is
 * the config.json that the model came from. Freed with free(). */
char *sh_hf_rope_print(const struct sh_config *cfg, const json_t *source);

/* Return the rotated part of a head; 1: all of it. */
double sh_hf_rope_part(const struct sh_config *cfg);

/* Return the value of one of our keys as JSON; with `real`, a whole number is printed with a fraction. Freed with
 * free(). */
char *sh_hf_number(const struct sh_config *cfg, const char *key, bool real);

#endif
