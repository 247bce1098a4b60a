/* The problems of a configuration, collected so that one start reports all of them. Inside src/config; local. */
#ifndef SH_CONFIG_PROBLEMS_H
#define SH_CONFIG_PROBLEMS_H

#include "src/config/keys.h"

/* Note a usage error as one line and return SH_OK, so that checking continues. Any other result is returned
 * unchanged. */
sh_rc sh_config_note(struct sh_config_state *state, sh_rc rc);

/* Fail with SH_E_USAGE and the noted lines, at most SH_CONFIG_PROBLEMS_MAX and a count of the rest; SH_OK if there are
 * none. */
sh_rc sh_config_problems(const struct sh_config_state *state);

#endif
