/* Writes a checkpoint from one process, block by block, of a state that nobody holds: parameters from elsewhere, and
 * moments that are zero. Local, serial. */
#ifndef IO_CHECKPOINT_STREAM_H
#define IO_CHECKPOINT_STREAM_H

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/digest.h"

/* Read elements [first, first + n), at most a block, of tensor `tensor` of the set to out [n], from several threads at
 * once. `spare` is memory of the thread, [SH_CKPT_BLOCK_ELEMS] floats. */
typedef sh_rc (*sh_ckpt_stream_read)(void *arg, int tensor, int64_t first, int64_t n, float *out, void *spare);

/* Write FOLDER/step-%08lld.h5, of meta->step, like sh_ckpt_save(): temporary name, digests, read back from the disk or
 * the page cache, fsync, rename. The file must not exist. `set` has tensors and no pieces. Needs 33 MiB in addition to
 * the index.
 *   *path  out  freed with free()
 * Errors: SH_E_USAGE: a checkpoint of that name exists; SH_E_DATA: I/O, a full disk, another job writes there; those of
 * `read`. On failure nothing is left behind. */
sh_rc sh_ckpt_stream(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                     sh_ckpt_stream_read read, void *arg, char **path);

#endif
