/* What changes when a run continues with another configuration: the learning rate, the data and the type of the
 * optimizer's states. Inside src/run; local. */
#ifndef SH_WATCH_CHANGES_H
#define SH_WATCH_CHANGES_H

#include "src/config/config.h"
#include "src/optim/optim.h"

/* The schedule that a configuration asks for. */
struct sh_lr sh_changes_lr(const struct sh_config *cfg);

enum { SH_CHANGES_TEXT = 512 };

/* Describe how the schedule differs between the checkpoint's configuration and this one: the rate of the next step
 * under both, and the key that would keep the old schedule, if a single key does. Returns `out`, or NULL if nothing
 * differs. */
const char *sh_changes_schedule(const struct sh_config *before, const struct sh_config *now, int64_t step,
                                char out[SH_CHANGES_TEXT]);

/* The same for the training data, with the position at which the sample order continues.
 *   samples  that the run has done before
 *   windows  of the data as it is now: the length of an epoch */
const char *sh_changes_data(const struct sh_config *before, const struct sh_config *now, int64_t samples,
                            int64_t windows, char out[SH_CHANGES_TEXT]);

/* The same if the keys are equal, but not the files that they name.
 *   then, now  in  sh_data_text() of them; then NULL: not known */
const char *sh_changes_files(const char *then, const char *now, int64_t samples, int64_t windows,
                             char out[SH_CHANGES_TEXT]);

/* The same for the type of the optimizer's states. */
const char *sh_changes_states(const struct sh_config *before, const struct sh_config *now, char out[SH_CHANGES_TEXT]);

#endif
