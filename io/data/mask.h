/* The mask of a token file: FILE.mask beside FILE, a byte for each token: 1 where the token counts as a target, 0 where it
 * does not. Local. */
#ifndef IO_DATA_MASK_H
#define IO_DATA_MASK_H

#include "io/data/files.h"

/* Whether a path of a pattern is a mask and so no token file. */
bool sh_data_mask_is(const char *path);

/* Open the mask of a file that was just taken into the set at `path`, or see that there is none, as `want` says; all files
 * of a set agree. Errors: SH_E_DATA: it is wanted and missing, there beside some files only, of another length. */
sh_rc sh_data_mask_open(struct sh_data_files *set, struct sh_data_file *f, enum sh_cfg_masks want);

/* Bytes [first, first + n) of a file's mask. Errors: SH_E_DATA: one is neither 0 nor 1. */
sh_rc sh_data_mask_read(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                        unsigned char *mask);

#endif
