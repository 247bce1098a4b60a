/* A temporary folder for a measurement. */
#ifndef SH_BENCH_FOLDER_H
#define SH_BENCH_FOLDER_H

#include "src/config/config.h"

/* Make a new folder in `folder`, so that no existing file is touched, and set cfg->job.dump_folder to it. Collective,
 * agreed. Errors: SH_E_DATA. */
sh_rc sh_bench_folder_make(struct sh_config *cfg, const char *folder);

/* Delete a file of the folder once no rank needs it any more; if it existed, it is gone on return. Collective. */
void sh_bench_folder_drop(const char *path);

/* Delete the folder, which is empty again. Local: a rank that comes second finds it gone. */
void sh_bench_folder_delete(const struct sh_config *cfg);

#endif
