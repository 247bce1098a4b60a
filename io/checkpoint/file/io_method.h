/* How tensors' data gets into a checkpoint file: through MPI-IO, or by plain writes, both at the offsets that HDF5
 * chose. The bytes are the same. */
#ifndef IO_CHECKPOINT_IO_METHOD_H
#define IO_CHECKPOINT_IO_METHOD_H

#include "io/checkpoint/checkpoint.h"

#include <mpi.h>

/* The I/O method for `options` and the folder's file system; never SH_IO_AUTO. Collective, the same on all ranks.
 * Errors: SH_E_DATA: the file system cannot be examined. */
sh_rc sh_ckpt_io_method_choose(const char *folder, const struct sh_ckpt_options *options, enum sh_cfg_io *io_method);

/* Create an empty file like sh_file_create; with hints the MPI library creates it, since a parallel file system takes
 * the striping of a file from its creator. Local: one rank. Errors: SH_E_DATA; SH_E_USAGE: malformed hints. */
sh_rc sh_ckpt_io_method_create(const char *path, const char *hints, int *fd);

/* Convert "name=value,name=value" to an info object, MPI_INFO_NULL for "". Freed with MPI_Info_free. Local.
 * Errors: SH_E_USAGE: malformed hints. */
sh_rc sh_ckpt_io_method_info(const char *hints, MPI_Info *info);

#endif
