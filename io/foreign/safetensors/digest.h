/* A digest by which the weights of a folder are recognised wherever they lie. Local. */
#ifndef IO_SAFETENSORS_DIGEST_H
#define IO_SAFETENSORS_DIGEST_H

#include "io/foreign/safetensors/index.h"

/* Digest names, types and shapes of all tensors, and samples of their data (io/file/sample.h): 3 blocks of 16 KiB of
 * each, so 35 MB of a model of 70 billion parameters. The same tensors have the same digest in any number of files.
 * Errors: SH_E_DATA: a file cannot be read. */
sh_rc sh_st_digest(const char *folder, const struct sh_st_index *index, uint64_t *digest);

#endif
