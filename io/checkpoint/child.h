/* Files of format 1.0 contain no separate index: only HDF5 can tell what is in them, and a damaged file can make HDF5
 * crash or run forever. So HDF5 reads them in a child process, which sends the index through a pipe. */
#ifndef IO_CHECKPOINT_CHILD_H
#define IO_CHECKPOINT_CHILD_H

#include "io/checkpoint/index.h"

/* Read the index of the file open as `fd`; `path` is only for messages. From any thread. The child gets the file and a
 * pipe, no other descriptor, no environment variable of MPI, little memory and time, and prints nothing; it is gone
 * when this returns, and does not outlive this process. Its answer is trusted as little as a file. Local.
 * Errors: SH_E_DATA: refused or damaged; SH_E_MEMORY: no process could be started, which says nothing about the file.
 * */
sh_rc sh_ckpt_child_read(int fd, const char *path, int64_t bytes, struct sh_ckpt_index *out);

#endif
