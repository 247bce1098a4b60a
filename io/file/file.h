/* The trainer's files, in cases where a plain stdio call would hang, transfer too little or lose data: opening a file
 * that must be regular, complete reads and writes, and new files that appear complete or not at all. All local.
 *
 * Several processes write one new file like this: sh_output_temp_name, then sh_file_create, writes and sh_file_sync,
 * then sh_output_publish; on failure unlink the temporary name. The functions sh_output_* are in src/base/file.h. */
#ifndef IO_FILE_FILE_H
#define IO_FILE_FILE_H

#include "src/base/err.h"
#include "src/base/file.h"

#include <stddef.h>
#include <stdint.h>

/* Open for reading; *bytes is set to the size. A FIFO or a device does not block.
 * Errors: SH_E_DATA: missing, no permission, not a regular file, too many files open. */
sh_rc sh_file_open(const char *path, int *fd, int64_t *bytes);

/* The same for reading and writing an existing file. */
sh_rc sh_file_reopen(const char *path, int *fd, int64_t *bytes);

/* Transfer all of `bytes` at `offset`. Errors: SH_E_DATA: I/O error, or the file ends too early (it shrank). */
sh_rc sh_file_read(int fd, const char *path, void *data, int64_t bytes, int64_t offset);
sh_rc sh_file_write(int fd, const char *path, const void *data, int64_t bytes, int64_t offset);

/* Create an empty file for reading and writing, mode 0640 or stricter whatever the umask. Errors: SH_E_DATA. */
sh_rc sh_file_create(const char *path, int *fd);

/* Reserve the space of the first `bytes`, so that a full disk is noticed before the first write. If the file system
 * cannot reserve space, only its free space is checked. The file may grow to that length.
 * Errors: SH_E_DATA: no space, a quota or a limit on file sizes. */
sh_rc sh_file_reserve(int fd, const char *path, int64_t bytes);

sh_rc sh_file_sync(int fd, const char *path);

#endif
