/* What must hold between keys, as far as it needs no mesh and no file. Inside src/config; local. */
#ifndef SH_CONFIG_CHECK_H
#define SH_CONFIG_CHECK_H

#include "src/config/config.h"

/* Errors: SH_E_USAGE, "section.key: what does not fit, and what would". */
sh_rc sh_config_check(const struct sh_config *cfg);

#endif
