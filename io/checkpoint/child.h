/* Files of format 1.0 have no index of their own: HDF5 must say what is in them, and a damaged one can make it crash or
 * run for ever. It does so in a child process, which sends the index through a pipe. */
#ifndef IO_CHECKPOINT_CHILD_H
#define IO_CHECKPOINT_CHILD_H

#include "io/checkpoint/index.h"

/* The index of the file open as `fd`; `path` is for words only. From any thread. The child gets the file and a pipe, no
 * other descriptor, nothing of the environment that concerns MPI, little memory and time, and prints nothing; it is gone
 * when this returns, and does not outlive this process. What it sends is believed as little as a file. Local.
 * Errors: SH_E_DATA: refused or damaged; SH_E_MEMORY: no process could be started, which says nothing about the file. */
sh_rc sh_ckpt_child_read(int fd, const char *path, int64_t bytes, struct sh_ckpt_index *out);

#endif
