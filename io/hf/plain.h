/* What of a config.json says nothing about the mathematics. Local. */
#ifndef IO_HF_PLAIN_H
#define IO_HF_PLAIN_H

#include <jansson.h>
#include <stdbool.h>

bool sh_hf_plain_key(const char *key);       /* use_cache and the like, in any class */
bool sh_hf_plain_value(const json_t *value); /* null, false, 0, 1, "" and what is empty: nothing is asked for */
bool sh_hf_is_dropout(const char *key);
bool sh_hf_is_named(const char *key, const char *list); /* in "key, key" */

/* The i-th such key that a written config.json takes over from its source, NULL behind the last. */
const char *sh_hf_kept_key(int i);

#endif
