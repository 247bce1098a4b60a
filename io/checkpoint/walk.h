/* Builds the index of a checkpoint from HDF5's structures. HDF5 is not safe for files that may be damaged: it has
 * crashed on one flipped bit. So it sees a file from a disk only in a child process (child.h); in this process it only
 * sees structures that it has just made in memory. Local. */
#ifndef IO_CHECKPOINT_WALK_H
#define IO_CHECKPOINT_WALK_H

#include "io/checkpoint/index.h"

/* `path` is only for messages. Everything in the attributes, groups and datasets is checked as described in plain.h;
 * the digest over it is read, but not compared. Errors: SH_E_DATA. */
sh_rc sh_ckpt_walk(int fd, const char *path, int64_t bytes, const struct sh_ckpt_states *states,
                   struct sh_ckpt_index *out);

#endif
