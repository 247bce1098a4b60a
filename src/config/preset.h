/* What is not given and has no plain default: the model's section from its preset, the rest from that.
 * Inside src/config only; all functions are local. */
#ifndef SH_CONFIG_PRESET_H
#define SH_CONFIG_PRESET_H

#include "src/config/keys.h"

/* Fill model.* from the preset model.name, but for the keys that were given; then derive what is left.
 * Errors: SH_E_USAGE for a name that is no preset (with the nearest), or the first dimension that is missing. */
sh_rc sh_config_preset_apply(struct sh_config_state *state);

/* Name of the i-th preset, NULL after the last. */
const char *sh_config_preset_name(int i);

#endif
