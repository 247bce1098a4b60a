/* The tensors' data into a file that sh_ckpt_create has laid out, through MPI-IO; the other road is
 * sh_ckpt_spans_write(). */
#ifndef IO_CHECKPOINT_WRITE_H
#define IO_CHECKPOINT_WRITE_H

#include "io/checkpoint/index.h"

/* Write this rank's pieces, all states, through HDF5's MPI-IO driver; `hints` as in struct sh_ckpt_options.
 * Collective: opening and closing; the transfers are independent. The result is local: agree on it. A success proves
 * little, since MPI-IO may lose an error: read back. Errors: SH_E_DATA. */
sh_rc sh_ckpt_write_pieces(const char *path, const struct sh_ckpt_set *set, const char *hints);

#endif
