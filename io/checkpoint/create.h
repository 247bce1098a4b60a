/* Laying out a checkpoint file: everything except the tensors' data. Local, serial: rank 0 does it alone, so that its cost
 * does not grow with the ranks, the bytes cannot depend on them, and no rank can be left waiting in a collective. */
#ifndef IO_CHECKPOINT_CREATE_H
#define IO_CHECKPOINT_CREATE_H

#include "io/checkpoint/index.h"

/* Write groups, meta data, digests and empty tensors into an existing empty file. Data sets are laid end to end in the
 * order model, exp_avg, exp_avg_sq, each in the order of the index. Afterwards the file has its full length; the data is
 * a hole. Errors: SH_E_DATA. */
sh_rc sh_ckpt_create(const char *path, const struct sh_ckpt_index *index);

#endif
