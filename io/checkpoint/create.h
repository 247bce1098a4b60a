/* Laying out a checkpoint file: everything except the tensors' data. Local, serial: rank 0 does it alone, so that its
 * cost does not grow with the ranks, the bytes cannot depend on them, and no rank can be left waiting. */
#ifndef IO_CHECKPOINT_CREATE_H
#define IO_CHECKPOINT_CREATE_H

#include "io/checkpoint/index.h"

/* Reserve the space, then write groups, meta data, empty digests and tensors into an existing empty file, open as fd.
 * Data sets are laid end to end in the order model, exp_avg, exp_avg_sq, each in the order of the index, and
 * their places are set in it. Afterwards the file has its full length. Errors: SH_E_DATA: no space, an I/O error. */
sh_rc sh_ckpt_create(const char *path, int fd, struct sh_ckpt_index *index);

/* Put the digests of the data, and the one of the index, into a file that is laid out; without them it is no
 * checkpoint. Errors: SH_E_DATA: an I/O error. */
sh_rc sh_ckpt_sign(const char *path, const struct sh_ckpt_index *index);

#endif
