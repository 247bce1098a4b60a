/* Checkpoints with the name of another step, after being copied or renamed. They count as damaged when a checkpoint is
 * chosen by name, but are good ones of their own step, so nothing deletes or replaces them. Local. */
#ifndef IO_CHECKPOINT_MISNAMED_H
#define IO_CHECKPOINT_MISNAMED_H

#include "io/checkpoint/checkpoint.h"

/* Whether the file holds another step than `named`; *step is set to it. Also false if the file cannot be read, or is
 * not a checkpoint. Cost: two short reads. */
bool sh_ckpt_is_misnamed(const char *path, int64_t named, int64_t *step);

/* Before a file becomes `path`, the checkpoint of `step`: if a misnamed one is in its place, give that a name that
 * nothing reads, and warn. Errors: SH_E_DATA: it cannot be renamed. */
sh_rc sh_ckpt_set_aside(const char *path, int64_t step);

#endif
