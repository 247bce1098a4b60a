/* What config.json of a Nemotron-H says about its blocks, each of which has one branch. Inside io/foreign/hf only; local. */
#ifndef IO_HF_HYBRID_H
#define IO_HF_HYBRID_H

#include "io/foreign/hf/config/reader.h"

#include <stdio.h>

/* Check the list of blocks, layers_block_type or hybrid_override_pattern, and set r->value[SH_HF_LAYERS] to its length.
 * Nothing for other families. Errors: SH_E_USAGE: no list, a kind of block that is not computed here, with its key; an upper
 * limit of steps. */
sh_rc sh_hf_hybrid_read(struct sh_hf_reader *r);

/* The bits of block i (src/config/layers.h), after sh_hf_hybrid_read(). */
unsigned sh_hf_hybrid_kind(const struct sh_hf_reader *r, long long i);

/* Whether a JSON value is Infinity, as Python or transformers 5 writes it, or a number large enough. */
bool sh_hf_is_infinite(const json_t *x);

/* Whether the class has the key, for blocks, or takes no notice of it. */
bool sh_hf_hybrid_is_key(const struct sh_hf_family *f, const char *key);

/* The members of a config.json, each after a comma; nothing for other families. */
void sh_hf_hybrid_print(const struct sh_hf_family *f, const struct sh_config *cfg, FILE *out);

#endif
