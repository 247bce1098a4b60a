/* A hash by which content is recognised at a price that does not depend on its size. Local. */
#ifndef IO_FILE_SAMPLE_H
#define IO_FILE_SAMPLE_H

#include "src/base/err.h"

#include <stdint.h>

enum { SH_FILE_SAMPLE_BYTES = 1 << 14 };

/* Chain the length and `blocks` blocks of 16 KiB of [at, at + bytes) to *hash: evenly spaced, the first at the
 * beginning and the last at the end; all of it if it is no longer than that. Content of another length, and content
 * that differs throughout, has another hash; a change between the blocks is not seen.
 * Errors: those of sh_file_read(). */
sh_rc sh_file_sample(int fd, const char *path, int64_t at, int64_t bytes, int blocks, uint64_t *hash);

/* The same for a whole file. Errors: also those of sh_file_open(). */
sh_rc sh_file_sample_all(const char *path, int blocks, uint64_t *hash);

#endif
