/* Checks of several keys together, as far as they need neither a mesh nor a file. Inside src/config; local. */
#ifndef SH_CONFIG_CHECK_H
#define SH_CONFIG_CHECK_H

#include "src/config/keys.h"

/* Errors: SH_E_USAGE, "place: section.key: what does not fit, and what would fit". */
sh_rc sh_config_check(struct sh_config_state *state);
sh_rc sh_config_check_experts(struct sh_config_state *state); /* parts of it */
sh_rc sh_config_check_ffn(struct sh_config_state *state);
sh_rc sh_config_check_batches(struct sh_config_state *state);
sh_rc sh_config_check_context(struct sh_config_state *state);
sh_rc sh_config_check_leaves(struct sh_config_state *state);
sh_rc sh_config_check_leaves_of_ranks(struct sh_config_state *state);
sh_rc sh_config_check_global(struct sh_config_state *state);
sh_rc sh_config_check_delta(struct sh_config_state *state);
sh_rc sh_config_check_tensor(struct sh_config_state *state);
sh_rc sh_config_check_objective(struct sh_config_state *state);
sh_rc sh_config_check_pipeline(struct sh_config_state *state);

#endif
