/* The part of YAML that a configuration may use: one mapping of sections, each of which maps keys to plain values or,
 * for keys that take pairs, to a mapping of pairs. Anchors, aliases, tags, lists, deeper levels and second documents
 * are refused. Inside src/config; local. */
#ifndef SH_READ_YAML_H
#define SH_READ_YAML_H

#include "src/config/keys.h"

/* Give every value of the text to *state. An empty text gives none. Problems with a section, key or value are noted
 * there (problems.h), and reading continues.
 *   name  in  stands for the file in messages; must outlive *state
 * Errors: SH_E_USAGE if the rest of the text cannot be read, "name:line: ..." or, for broken YAML, "name:line:column:
 * ...". */
sh_rc sh_config_yaml_read(const char *text, size_t bytes, const char *name, struct sh_config_state *state);

#endif
