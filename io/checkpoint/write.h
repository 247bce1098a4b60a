/* Writes the tensors' data into a file that sh_ckpt_create has laid out, through parallel HDF5's MPI-IO driver; the
 * other method is sh_ckpt_extents_write(). */
#ifndef IO_CHECKPOINT_WRITE_H
#define IO_CHECKPOINT_WRITE_H

#include "io/checkpoint/file/index.h"

/* Write this rank's pieces, all states, at the offsets of the index; `hints` as in struct sh_ckpt_options. Local: it
 * calls MPI, but waits for no other rank. A success proves little, since MPI-IO may lose an error: read the data back.
 * Errors: SH_E_DATA. */
sh_rc sh_ckpt_write_pieces(const char *path, const struct sh_ckpt_set *set, const struct sh_ckpt_index *index,
                           const char *hints);

#endif
