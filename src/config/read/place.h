/* Where values were given, for messages and for deciding between them. Inside src/config; all local. */
#ifndef SH_READ_PLACE_H
#define SH_READ_PLACE_H

#include "src/config/keys.h"

/* The place where a key was given; the name must be in the table. */
struct sh_config_place *sh_config_place_of(struct sh_config_state *state, const char *name);

/* Whether the value was typed: on the command line, not in a file. */
bool sh_config_place_typed(const struct sh_config_place *place);

/* "config.yaml:12: ", "--" or "--option: ", as a prefix of "section.key: ..."; "" for a default; returns out. */
const char *sh_config_place_prefix(const struct sh_config_place *place, char out[SH_CONFIG_PATH_MAX]);

/* "at config.yaml:12", "on the command line" or "by --option"; returns out. */
const char *sh_config_place_text(const struct sh_config_place *place, char out[SH_CONFIG_PATH_MAX]);

/* Fail with SH_E_USAGE and "place: section.key: text"; the place is where the key was given, if it was. */
sh_rc sh_config_refuse(struct sh_config_state *state, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
