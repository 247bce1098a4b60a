/* Find the checkpoint that a user means: a file, or the folder of a run or of checkpoints, which stands for its newest
 * valid checkpoint. */
#ifndef SH_SAVE_NEWEST_H
#define SH_SAVE_NEWEST_H

#include "src/base/err.h"

/* The folder of checkpoints that `given` stands for: `given` itself, or the folder `checkpoint` in it if `given` is the
 * folder of a run. *folder is freed with free(). Local. */
sh_rc sh_newest_folder(const char *given, char **folder);

/* The newest checkpoint in a folder of checkpoints that is whole and has the step of its name; a warning names each
 * newer one that is not. *path is freed with free(); NULL: there is none. Local. */
sh_rc sh_newest_whole(const char *folder, char **path);

/* Whether there is something of that name. Local. Errors: SH_E_DATA. */
sh_rc sh_newest_exists(const char *given);

/* Return a file as given; for a folder, return its newest checkpoint whose structure is whole. *path is freed with
 * free(). Local. Errors: SH_E_DATA: there is neither, or the folder has no checkpoint that is whole. A file is not checked here; whoever
 * opens it does that. */
sh_rc sh_newest_find(const char *given, char **path);

/* The same for a job: rank 0 looks, and all ranks use the path that it found. Collective; errors are agreed.
 *   place  the option or key that names it, in front of a message */
sh_rc sh_newest_agree(const char *place, const char *given, char **path);

/* SH_E_DATA for a folder without a checkpoint: says what it is instead, if that is known. Local. */
sh_rc sh_newest_none(const char *folder);

#endif
