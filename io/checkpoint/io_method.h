/* How tensors' data gets into a checkpoint file: through MPI-IO, or by plain writes, both at the offsets that HDF5
 * gave. The bytes are the same. */
#ifndef IO_CHECKPOINT_ROAD_H
#define IO_CHECKPOINT_ROAD_H

#include "io/checkpoint/checkpoint.h"

#include <mpi.h>

/* The I/O method that `options` and the folder's file system ask for; never SH_IO_AUTO. Collective, the same on all ranks.
 * Errors: SH_E_DATA: the file system is not known. */
sh_rc sh_ckpt_io_method_choose(const char *folder, const struct sh_ckpt_options *options, enum sh_cfg_io *io_method);

/* A new empty file as by sh_file_create; with hints the MPI library makes it, since a parallel file system takes the
 * striping of a file from whoever creates it. Local: one rank. Errors: SH_E_DATA; SH_E_USAGE: hints of another form. */
sh_rc sh_ckpt_io_method_create(const char *path, const char *hints, int *fd);

/* "name=value,name=value" as an info object, MPI_INFO_NULL for "". Freed with MPI_Info_free. Local.
 * Errors: SH_E_USAGE: another form. */
sh_rc sh_ckpt_io_method_info(const char *hints, MPI_Info *info);

#endif
