/* Which part of a configuration belongs to the state of a run and is stored in its checkpoints, and which belongs to
 * the machine that it runs on. Equal state makes equal files, whatever mesh, folder, I/O method and memory it came
 * from. Local. */
#ifndef SH_SAVE_STORED_H
#define SH_SAVE_STORED_H

#include "src/config/config.h"

/* The configuration as text for a checkpoint of a run on `world` ranks: machine keys at their defaults,
 * global_batch_size as a number, and local_batch_size as its largest divisor up to the default. *text is freed with
 * free(). */
sh_rc sh_stored_config(const struct sh_config *cfg, int world, char **text);

/* Print how the state part of a configuration differs from the stored one, one line per key. */
void sh_stored_diff(const struct sh_config *stored, const struct sh_config *cfg, int world);

#endif
