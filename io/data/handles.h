/* Files for reading, of which only some are open at a time: a set may have more files than a process may have open
 * (RLIMIT_NOFILE, often 1024). A read opens what was closed, and closes what was not read for the longest time. Local;
 * reads may come from several threads. */
#ifndef IO_DATA_HANDLES_H
#define IO_DATA_HANDLES_H

#include "src/base/err.h"

#include <stdint.h>

struct sh_handles;

/* Keeps at most a quarter of the descriptors that the process may have, as one of so many sets; at least 4. */
struct sh_handles *sh_handles_create(int sets);
void sh_handles_destroy(struct sh_handles *h); /* NULL is fine */

/* Open a file for the first time. *file: its number, from 0 on; *bytes: its size. Not while others read.
 * Errors: as of sh_file_open(). */
sh_rc sh_handles_add(struct sh_handles *h, const char *path, int *file, int64_t *bytes);

const char *sh_handles_path(const struct sh_handles *h, int file);

/* All of `bytes` at `offset`. Errors: SH_E_DATA: as of sh_file_read(); another file has the name now. */
sh_rc sh_handles_read(struct sh_handles *h, int file, void *data, int64_t bytes, int64_t offset);

#endif
