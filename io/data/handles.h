/* Files for reading, of which only some are open at a time: a set may have more files than a process may have open
 * (RLIMIT_NOFILE, often 1024). A read reopens a closed file, and closes the least recently read one. Local; several
 * threads may read. */
#ifndef IO_DATA_HANDLES_H
#define IO_DATA_HANDLES_H

#include "src/base/err.h"

#include <stdint.h>

struct sh_handles;

/* Create a table for one of `sets` sets, which together keep at most a quarter of the process's descriptors open; each
 * at least 4. */
struct sh_handles *sh_handles_create(int sets);
void sh_handles_destroy(struct sh_handles *h); /* NULL is fine */

/* Open a file for the first time. *file: its number, from 0 on; *bytes: its size. Do not call while other threads read.
 * Errors: as for sh_file_open(). */
sh_rc sh_handles_add(struct sh_handles *h, const char *path, int *file, int64_t *bytes);

const char *sh_handles_path(const struct sh_handles *h, int file);

/* Read all of `bytes` at `offset`. Errors: SH_E_DATA: as for sh_file_read(); the name now belongs to another file. */
sh_rc sh_handles_read(struct sh_handles *h, int file, void *data, int64_t bytes, int64_t offset);

#endif
