/* Spellings of values and keys that other trainers use, turned into the one spelling of the table. Local. */
#ifndef SH_FOREIGN_ALIAS_H
#define SH_FOREIGN_ALIAS_H

#include "src/config/keys.h"
#include "src/config/read/value.h"

/* The table's spelling of a word given for `key`: lower case, `_` for `-`, and names from other trainers replaced
 * (ShardingStrategy.FULL_SHARD, ddp, fp32). Returns text in `out`; an unknown word comes back as it is spelled. */
const char *sh_config_alias_word(const char *key, const char *text, char out[SH_CONFIG_NAME_MAX]);

/* The other words accepted for `key`, such as "fp32, bf16"; empty if it has none. Returns out. */
const char *sh_config_alias_words(const char *key, char out[SH_CONFIG_WORDS_MAX]);

/* What to do instead of using `word`, a word of other trainers without a counterpart in `key`. `word` is spelled as
 * sh_config_alias_word() returns it. NULL: the word is not known. */
const char *sh_config_alias_advice(const char *key, const char *word);

/* Let the keys that are aliases set the keys that they stand for.
 * Errors: SH_E_USAGE when one of them contradicts or repeats a key given in the same source. */
sh_rc sh_config_alias_resolve(struct sh_config_state *state);

/* Give model.layer_types its shortest spelling, from what was given or from the keys that it replaces. Needs all other
 * keys of the model. Errors: SH_E_USAGE. */
sh_rc sh_config_alias_layers(struct sh_config_state *state);

#endif
