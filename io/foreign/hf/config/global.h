/* What config.json of a Gemma 4 says about blocks that differ in more than their window. Inside io/foreign/hf only; local. */
#ifndef IO_HF_GLOBAL_H
#define IO_HF_GLOBAL_H

#include "io/foreign/hf/config/reader.h"

#include <stdio.h>

/* Set model.global_head_dim, model.global_kv_heads and model.keys_as_values from the file's own keys or from
 * per_layer_config, which transformers 5.24 writes instead; and model.per_layer_dim, model.kv_shared_layers and
 * model.double_wide_ffn. Nothing for families without such blocks.
 * Errors: SH_E_USAGE: a table of inputs for other words than the embedding's; blocks that differ otherwise. */
sh_rc sh_hf_global_read(struct sh_hf_reader *r);

/* Set model.rotary_dim, after sh_hf_global_read(), from the rotary positions of blocks without a window.
 *   rope  in  their object; NULL: the file has none */
sh_rc sh_hf_global_turned(const struct sh_hf_reader *r, const json_t *rope, bool proportional);

/* The first members of that object. */
void sh_hf_global_print_rope(const struct sh_config *cfg, FILE *out);

bool sh_hf_global_is_key(const struct sh_hf_family *f, const char *key);

/* The members of a config.json, each after a comma; nothing for other families. */
void sh_hf_global_print(const struct sh_hf_family *f, const struct sh_config *cfg, FILE *out);

#endif
