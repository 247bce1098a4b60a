/* Values that are not given and have no plain default: section model comes from its preset, the rest is derived from
 * it. Inside src/config only; all functions are local. */
#ifndef SH_CONFIG_PRESET_H
#define SH_CONFIG_PRESET_H

#include "src/config/keys.h"

/* Fill model.* from the preset model.name, except for keys that were given; then derive what is left.
 * Errors: SH_E_USAGE for a name that is not a preset (the message names the nearest one), or for the first dimension
 * that is missing. */
sh_rc sh_config_preset_apply(struct sh_config_state *state);

/* The name of preset i, NULL after the last. */
const char *sh_config_preset_name(int i);

#endif
