/* What of a configuration belongs to the state of a run and is stored in its checkpoints, and what belongs to the machine
 * that it runs on: equal state makes equal files, whatever mesh, folder, I/O method and memory it came from. Local. */
#ifndef SH_RUN_STORED_H
#define SH_RUN_STORED_H

#include "src/config/config.h"

/* The configuration for a checkpoint of a run on `world` ranks, as text: keys of the machine at their default,
 * global_batch_size as a number, local_batch_size the largest divisor of it up to the default. *text freed with free(). */
sh_rc sh_stored_config(const struct sh_config *cfg, int world, char **text);

/* Print how a configuration differs from the stored one, in what belongs to the state, one line a key. */
void sh_stored_diff(const struct sh_config *stored, const struct sh_config *cfg, int world);

#endif
