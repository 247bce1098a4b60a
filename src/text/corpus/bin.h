/* Writes a token file in llm.c's format (io/data/format.h). The file appears under its name complete or not at all.
 * Local. Order: open, put any number of times, then commit or abandon. */
#ifndef IO_TOKEN_BIN_H
#define IO_TOKEN_BIN_H

#include "src/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct sh_bin_writer;

/* vocab_size determines the size of a token: uint16 up to 65536 words, uint32 above. Errors: SH_E_DATA. */
sh_rc sh_bin_writer_open(const char *path, int vocab_size, struct sh_bin_writer **out);

/* Append n ids. Errors: SH_E_DATA: the disk is full, or the file would have more tokens than its header can hold
 * (2^31 - 1). */
sh_rc sh_bin_writer_put(struct sh_bin_writer *w, const uint32_t *ids, size_t n);

/* Write the header, fsync, rename. Always frees the writer; on failure nothing is left behind. */
sh_rc sh_bin_writer_commit(struct sh_bin_writer *w);

/* Delete the unfinished file and free the writer. NULL is fine. */
void sh_bin_writer_abandon(struct sh_bin_writer *w);

/* Write a whole file of n ids at once. */
sh_rc sh_bin_write(const char *path, int vocab_size, const uint32_t *ids, size_t n);

#endif
