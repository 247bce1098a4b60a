/* Values that are lists of pairs, "name=value,name=value". Such a value is stored, printed and given on the command
 * line as one text; in a file it can also be a mapping. Inside src/config; local. */
#ifndef SH_READ_PAIRS_H
#define SH_READ_PAIRS_H

#include "src/config/keys.h"

/* Lengths that every MPI library accepts in an info object; file names may be as long as values. */
enum { SH_CONFIG_PAIR_NAME_MAX = 35, SH_CONFIG_PAIR_VALUE_MAX = 255, SH_CONFIG_PAIRS_MAX = 1024 };

/* Add one pair to the text. Errors: SH_E_USAGE: a name or value that the form cannot hold, or a name that is already
 * there. */
sh_rc sh_config_pairs_add(const struct sh_config_key *key, char pairs[SH_CONFIG_PAIRS_MAX], const char *name,
                          const char *value);

/* Check that each part of the text is a pair. Errors: SH_E_USAGE: the same, or a part without an equals sign. */
sh_rc sh_config_pairs_check(const struct sh_config_key *key, const char *text);

#endif
