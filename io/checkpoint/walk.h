/* The index of a checkpoint from HDF5's structures. HDF5 is no reader for files that may be damaged: it has crashed on one
 * flipped bit. So it sees a file from a disk only in a child process (child.h), and in this one the structures that it
 * has just made in memory. Local. */
#ifndef IO_CHECKPOINT_WALK_H
#define IO_CHECKPOINT_WALK_H

#include "io/checkpoint/index.h"

/* `path` is for words only. All that the attributes, groups and data sets say is checked as plain.h has it; the digest over
 * it is taken as it is found, and not compared. Errors: SH_E_DATA. */
sh_rc sh_ckpt_walk(int fd, const char *path, int64_t bytes, const struct sh_ckpt_states *states,
                   struct sh_ckpt_index *out);

#endif
