/* Shared helpers of the checkpoint's HDF5 calls. hdf5.h is included here and in the .c files that include this. Local
 * unless stated otherwise. */
#ifndef IO_CHECKPOINT_H5_H
#define IO_CHECKPOINT_H5_H

#include "src/base/err.h"

#include <hdf5.h>
#include <mpi.h>

/* Call first in every thread; idempotent. Silences HDF5's error stack and disables plug-ins, whatever the environment
 * or a file asks for. */
sh_rc sh_ckpt_h5_start(void);

/* A name by which HDF5 can open a file that is open as fd; returns it. */
enum { SH_CKPT_FD_NAME_BYTES = 32 };
const char *sh_ckpt_h5_name(int fd, char name[SH_CKPT_FD_NAME_BYTES]);

/* Fail with "<path>: <words>: <HDF5's innermost reason>". SH_E_DATA; or SH_E_MEMORY if memory ran out, so that the file
 * is not mistaken for a damaged one. */
sh_rc sh_ckpt_h5_fail(const char *path, const char *words);

/* Close an object between a call and the check of its result: every function of HDF5 first forgets why the previous one
 * failed. */
void sh_ckpt_h5_close(herr_t (*close)(hid_t), hid_t id);

/* A call that returns a negative value on failure. */
#define SH_H5(call, path, words)                     \
    do {                                             \
        if ((call) < 0)                              \
            return sh_ckpt_h5_fail((path), (words)); \
    } while (0)

/* Access properties: newest format that 1.10 writes, no file locks, closing a file closes everything open in it.
 * Serial, for files by sh_ckpt_h5_name(): only one rank handles a file's structures. Closed with H5Pclose. Negative on
 * failure. */
hid_t sh_ckpt_h5_serial_access(void);

/* The same for the MPI-IO driver over this rank alone: for H5FDopen(), not for H5Fopen(). */
hid_t sh_ckpt_h5_mpiio_access(MPI_Info hints);

#endif
