/* How values enter a configuration, from any source. Local. Inside src/config, but for sh_config_no_such_key(). */
#ifndef SH_READ_GIVE_H
#define SH_READ_GIVE_H

#include "src/config/keys.h"
#include "src/config/read/value.h"

/* Set the key `name` ("section.key") to the text written at `place`; place.file must outlive *state.
 * Errors: SH_E_USAGE with the place: unknown key, given twice in this source, or a value that does not fit. */
sh_rc sh_config_give(struct sh_config_state *state, struct sh_config_place place, const char *name, const char *text,
                     enum sh_config_style style);

/* Always fails with SH_E_USAGE: no key has that name; the message names the nearest one. */
sh_rc sh_config_no_such_key(const char *name);

#endif
