/* Recognizes the keys and values of a config.json that do not affect the mathematics. Local. */
#ifndef IO_HF_PLAIN_H
#define IO_HF_PLAIN_H

#include <jansson.h>
#include <stdbool.h>

bool sh_hf_plain_key(const char *key);       /* use_cache and the like, in any class */
bool sh_hf_plain_value(const json_t *value); /* null, false, 0, 1, "", empty list or object: asks for nothing */
bool sh_hf_is_dropout(const char *key);
bool sh_hf_is_named(const char *key, const char *list); /* whether `list`, "key, key", has the key */

/* The i-th key that a written config.json copies from its source, NULL after the last. */
const char *sh_hf_kept_key(int i);

#endif
