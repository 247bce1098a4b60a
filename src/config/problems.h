/* What is wrong with a configuration, collected so that one start tells all of it. Inside src/config; local. */
#ifndef SH_CONFIG_PROBLEMS_H
#define SH_CONFIG_PROBLEMS_H

#include "src/config/keys.h"

/* Take an error of usage down as a line of its own and go on: SH_OK. Any other result comes back as it is. */
sh_rc sh_config_note(struct sh_config_state *state, sh_rc rc);

/* SH_E_USAGE with the lines noted, SH_CONFIG_PROBLEMS_MAX at most and a count of the rest; SH_OK when there are none. */
sh_rc sh_config_problems(const struct sh_config_state *state);

#endif
