/* The part of YAML that a configuration may use: one mapping of sections, each a mapping of keys to plain values, or
 * for keys that take pairs to a mapping of them. Anchors, aliases, tags, lists, deeper levels and second documents are
 * refused. Inside src/config; local. */
#ifndef SH_CONFIG_YAML_H
#define SH_CONFIG_YAML_H

#include "src/config/keys.h"

/* Give every value of the text to *state. An empty text gives none. What is wrong with a section, key or value is noted
 * there (problems.h), and reading goes on.
 *   name  in  stands for the file in messages; must outlive *state
 * Errors: SH_E_USAGE for a text that cannot be read on, "name:line: ..." or, for broken YAML, "name:line:column: ...". */
sh_rc sh_config_yaml_read(const char *text, size_t bytes, const char *name, struct sh_config_state *state);

#endif
