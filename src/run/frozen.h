/* The frozen parameters of a run, which are loaded before it begins and never change: its base. A checkpoint holds what is
 * trained, and of the base where it was and one number, so that it goes on upon no other. All collective and agreed unless
 * said otherwise; where nothing is frozen they do nothing. */
#ifndef SH_RUN_FROZEN_H
#define SH_RUN_FROZEN_H

#include "src/base/err.h"

#include <stdbool.h>

struct sh_run;

/* Whether something is frozen. Local. */
bool sh_frozen_any(const struct sh_run *r);

/* Load it, unless it is there: from model.hf_assets_path (with checkpoint.initial_load_in_hf), else from
 * checkpoint.initial_load_path, else from where the checkpoint `of` says that it was.
 *   text  in  sh_frozen_text() as that checkpoint has it, which the base must match; NULL, "": there is none
 * Errors: SH_E_USAGE: nothing names a base; SH_E_DATA: it cannot be read, or is another one. */
sh_rc sh_frozen_load(struct sh_run *r, const char *of, const char *text);

/* What a checkpoint keeps of it, freed with free(); "": nothing is frozen. Local. */
char *sh_frozen_text(const struct sh_run *r);

/* Compare it with what was loaded. Errors: SH_E_REPLICA: memory has changed. */
sh_rc sh_frozen_check(struct sh_run *r);

#endif
