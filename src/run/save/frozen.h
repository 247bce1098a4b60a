/* The frozen parameters of a run, its base: they are loaded before the run begins and never change. A checkpoint holds
 * the trained parameters; of the base it holds only the path and one checksum, so that a run cannot continue on another
 * base. All functions are collective and agreed unless said otherwise; they do nothing if nothing is frozen. */
#ifndef SH_SAVE_FROZEN_H
#define SH_SAVE_FROZEN_H

#include "src/base/err.h"

#include <stdbool.h>

struct sh_run;

/* Whether any parameter is frozen. Local. */
bool sh_frozen_any(const struct sh_run *r);

/* Whether the adapters can be exported without their base. Local. */
bool sh_frozen_exports_adapters(const struct sh_run *r);

/* Load the base unless it is loaded already: from model.hf_assets_path (with checkpoint.initial_load_in_hf), else from
 * checkpoint.initial_load_path, else from the path that the checkpoint `of` names.
 *   text  in  sh_frozen_text() as stored in that checkpoint, which the base must match; NULL or "": none
 * Errors: SH_E_USAGE: nothing names a base; SH_E_DATA: the base cannot be read, or is not the one of the checkpoint. */
sh_rc sh_frozen_load(struct sh_run *r, const char *of, const char *text);

/* The text about the base that a checkpoint stores, freed with free(); "": nothing is frozen. Local. */
char *sh_frozen_text(const struct sh_run *r);

/* Whether what this rank has of the base is no longer what was loaded: memory has changed. Local; one pass over it. */
bool sh_frozen_changed(const struct sh_run *r);

/* Whether any rank has found that. Collective, agreed. Errors: SH_E_REPLICA: one has. */
sh_rc sh_frozen_check(const struct sh_run *r, bool changed);

#endif
