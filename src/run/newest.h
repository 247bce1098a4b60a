/* Which checkpoint is meant where a person names one: the file, or the folder of a run or of checkpoints, which stands
 * for its newest valid one. */
#ifndef SH_RUN_NEWEST_H
#define SH_RUN_NEWEST_H

#include "src/base/err.h"

/* The folder of checkpoints that `given` stands for: itself, or the folder `checkpoint` in it when that of a run is
 * given. *folder is freed with free(). Local. */
sh_rc sh_newest_folder(const char *given, char **folder);

/* The newest checkpoint of a folder of checkpoints that is whole, its step that of its name; each newer one that is not is
 * named in a warning. *path is freed with free(); NULL: there is none. Local. */
sh_rc sh_newest_whole(const char *folder, char **path);

/* A file as it is given; of a folder its newest checkpoint whose structure is whole. *path is freed with free(). Local.
 * Errors: SH_E_DATA: the folder has no checkpoint that is whole. A file is not looked at: who opens it does that. */
sh_rc sh_newest_find(const char *given, char **path);

/* The same for a job: rank 0 looks, and all ranks take what it has found. Collective; errors are agreed. */
sh_rc sh_newest_agree(const char *given, char **path);

#endif
