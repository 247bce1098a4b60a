/* One value: from text into its field, and back. Inside src/config only; all functions are local. */
#ifndef SH_READ_VALUE_H
#define SH_READ_VALUE_H

#include "src/config/keys.h"

/* How the text was written: bare in YAML (where `~` and `null` stand for no value), in quotes, or after "key=". */
enum sh_config_style { SH_TEXT_PLAIN, SH_TEXT_QUOTED, SH_TEXT_ARGUMENT };

/* Check `text` against the row's type, words and range, and store it in its field of *state.
 * Errors: SH_E_USAGE, "section.key: what is wrong, and what would be right". */
sh_rc sh_config_value_set(const struct sh_config_key *key, const char *text, enum sh_config_style style,
                          struct sh_config_state *state);

/* The row's value as YAML that sh_config_value_set() takes back to the same bits; freed with free(). */
char *sh_config_value_text(const struct sh_config_key *key, const struct sh_config *cfg);

/* The words of the row as "a | b | c", and its range as "1 .. 65536" ("" if there is none). */
enum { SH_CONFIG_WORDS_MAX = 512 };
const char *sh_config_value_words(const struct sh_config_key *key, char out[SH_CONFIG_WORDS_MAX]);
const char *sh_config_value_range(const struct sh_config_key *key, char out[SH_CONFIG_NAME_MAX]);

#endif
