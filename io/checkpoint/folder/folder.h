/* The contents of a checkpoint folder, by names alone: finished checkpoints and unfinished files. All functions are
 * local. */
#ifndef IO_CHECKPOINT_FOLDER_H
#define IO_CHECKPOINT_FOLDER_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_ckpt_found {
    char *name;
    int64_t step; /* of a finished one; -1: unfinished, left by a save or a deletion that was killed or is running */
};

struct sh_ckpt_folder {
    struct sh_ckpt_found *found; /* newest first, unfinished ones last */
    int n;
};

/* Errors: SH_E_DATA: no such folder, or it cannot be read. */
sh_rc sh_ckpt_folder_scan(const char *folder, struct sh_ckpt_folder *out);
void sh_ckpt_folder_free(struct sh_ckpt_folder *f);

/* "<folder>/step-00001000.h5"; freed with free(). */
char *sh_ckpt_folder_path(const char *folder, int64_t step);

/* Delete a file such that nobody sees half of it: it first gets a hidden name, which a later sweep finds as well. */
sh_rc sh_ckpt_folder_remove(const char *folder, const char *name);

#endif
