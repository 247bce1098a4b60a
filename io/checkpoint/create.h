/* Laying out a checkpoint file: everything except the tensors' data. Local, serial: rank 0 does it alone, so that its
 * cost does not grow with the ranks, the bytes cannot depend on them, and no rank can be left waiting.
 *
 * HDF5 does it in memory and never meets the file itself: a disk that fails, or gives back other bytes, cannot harm it.
 * What it has made is then written like any other data. Order: create, the tensors' data, sign. */
#ifndef IO_CHECKPOINT_CREATE_H
#define IO_CHECKPOINT_CREATE_H

#include "io/checkpoint/index.h"

/* Reserve the space of an existing empty file, open as fd, and give it its length; lay out groups, meta data, empty
 * digests, tensors and index. Data sets are laid end to end in the order of the states, each in the order of
 * the index, and their places are set in it, with the lengths of structures and file.
 *   *memory  out  descriptor of HDF5's file in memory, which has all but the tensors' data; closed with close()
 * Errors: SH_E_DATA: no space, an I/O error. SH_E_MEMORY: no file in memory. */
sh_rc sh_ckpt_create(const char *path, int fd, struct sh_ckpt_index *index, int *memory);

/* Put the digests of the data, and the one of the index, into the structures, read these as others will and compare, and
 * write them, the index and the footer; without them the file is no checkpoint. Sets sum and structure of the index.
 * Errors: SH_E_DATA: an I/O error. */
sh_rc sh_ckpt_sign(const char *path, int fd, int memory, struct sh_ckpt_index *index);

#endif
