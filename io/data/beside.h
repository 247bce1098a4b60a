/* What lies next to a token file, with something for each of its tokens: FILE.mask, one byte, 1 if the token counts as a
 * target, 0 if it does not; FILE.weight, one float16 (little-endian), what the loss of the token as a target weighs. Local. */
#ifndef IO_DATA_BESIDE_H
#define IO_DATA_BESIDE_H

#include "io/data/files.h"

/* Whether a path that matches a pattern lies beside a token file and thus is none. */
bool sh_data_is_beside(const char *path);

/* Whether that lies beside a token file. Local. */
bool sh_data_has_beside(const char *tokens, enum sh_data_beside what);

/* Open what lies beside a file that was just added to the set, or make sure that it is not there, as data.target_mask and
 * data.token_weight say; either all files of a set have it or none has. A document file has its mask in it.
 * Errors: SH_E_DATA: it is required and missing, exists for some files only, or has the wrong length. */
sh_rc sh_data_beside_open(struct sh_data_files *set, struct sh_data_file *f, const struct sh_data_options *opt);

/* Read the bytes of tokens [first, first + n) of a token file's mask. Errors: SH_E_DATA: one is neither 0 nor 1. */
sh_rc sh_data_mask_read(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                        unsigned char *mask);

/* Read the weights of those tokens. Errors: SH_E_DATA: one is no number from 0 to SH_DATA_MOST_WEIGHT. */
sh_rc sh_data_weight_read(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                          float *weight);

#endif
