/* Examines one object of a file that may be damaged or malicious. Only what a checkpoint needs is let through: data in
 * this file, in one piece, unfiltered, reached by hard links. Local. */
#ifndef IO_CHECKPOINT_PLAIN_H
#define IO_CHECKPOINT_PLAIN_H

#include "io/checkpoint/h5.h"

#include <stdint.h>

struct sh_ckpt_plain {
    int ndim; /* 0: scalar */
    int64_t dim[4];
    int64_t elems;         /* all dims multiplied */
    int64_t offset, bytes; /* in the file */
};

/* Before HDF5 sees the file: check that it is a finished HDF5 file of the 1.10 format with the length that it states.
 * Errors: SH_E_DATA: something else, unfinished, truncated, or with bytes past its end. */
sh_rc sh_ckpt_plain_file(int fd, const char *path, int64_t bytes);

/* Check a dataset of `type`; a type of H5T_STRING class means any fixed-length text. Every part of `name` must be a
 * hard link. Errors: SH_E_DATA naming the object. */
sh_rc sh_ckpt_plain_dataset(hid_t file, const char *path, const char *name, hid_t type, int64_t file_bytes,
                            struct sh_ckpt_plain *out);

/* Read a scalar attribute of /meta: a number of 8 bytes. */
sh_rc sh_ckpt_plain_number(hid_t file, const char *path, const char *name, void *value);

/* Check a scalar attribute of /meta: a text of fixed length that must be `word`. */
sh_rc sh_ckpt_plain_word(hid_t file, const char *path, const char *name, const char *word);

/* Open a group reached by hard links. Closed with H5Gclose. */
sh_rc sh_ckpt_plain_group(hid_t file, const char *path, const char *name, hid_t *group);

#endif
