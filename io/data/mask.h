/* The mask of a token file: FILE.mask next to FILE, one byte per token: 1 if the token counts as a target, 0 if it does
 * not. Local. */
#ifndef IO_DATA_MASK_H
#define IO_DATA_MASK_H

#include "io/data/files.h"

/* Whether a path that matches a pattern is a mask and thus not a token file. */
bool sh_data_mask_is(const char *path);

/* Open the mask of a file that was just added to the set, or make sure that there is none, as `want` says; either all
 * files of a set have masks or none has. Errors: SH_E_DATA: the mask is required and missing, exists for some files
 * only, or has the wrong length. */
sh_rc sh_data_mask_open(struct sh_data_files *set, struct sh_data_file *f, enum sh_cfg_masks want);

/* Read bytes [first, first + n) of a file's mask. Errors: SH_E_DATA: one is neither 0 nor 1. */
sh_rc sh_data_mask_read(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                        unsigned char *mask);

#endif
