/* Lays out a checkpoint file: everything except the tensors' data. Local, serial: rank 0 does it alone, so that the
 * cost does not grow with the ranks, the bytes cannot depend on them, and no rank can be left waiting.
 *
 * HDF5 works in memory and never touches the file itself: a disk that fails, or returns other bytes, cannot harm it.
 * Its result is then written like any other data. Order: create, the tensors' data, sign. */
#ifndef IO_CHECKPOINT_CREATE_H
#define IO_CHECKPOINT_CREATE_H

#include "io/checkpoint/file/index.h"

/* Reserve the space of an existing empty file, open as fd, and give it its length; lay out groups, meta data, empty
 * digests, tensors and index. Datasets are laid end to end in the order of the states, each in the order of the
 * index, and their offsets are set in the index, together with the lengths of structures and file.
 *   *memory  out  descriptor of HDF5's file in memory, with everything except the tensors' data; closed with close()
 * Errors: SH_E_DATA: no space, an I/O error. SH_E_MEMORY: cannot create a file in memory. */
sh_rc sh_ckpt_create(const char *path, int fd, struct sh_ckpt_index *index, int *memory);

/* Put the digests of the data and of the index into the structures, read these like any later reader and compare; then
 * write the structures, the index and the footer. Without them the file is not a checkpoint. Sets sum and structure of
 * the index. Errors: SH_E_DATA: an I/O error. */
sh_rc sh_ckpt_sign(const char *path, int fd, int memory, struct sh_ckpt_index *index);

#endif
