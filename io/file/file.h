/* Files of the trainer, where a plain stdio call would hang, be cut short or lose data: opening what must be a regular
 * file, whole reads and writes, and new files that appear complete or not at all. All functions are local.
 *
 * A new file that several processes write: sh_output_temp_name and sh_output_publish (src/base/file.h), and between them
 * sh_file_create, writes and sh_file_sync; on failure unlink the temporary name. */
#ifndef IO_FILE_FILE_H
#define IO_FILE_FILE_H

#include "src/base/err.h"
#include "src/base/file.h"

#include <stddef.h>
#include <stdint.h>

/* Open for reading; *bytes gets the size. A FIFO or a device does not block.
 * Errors: SH_E_DATA: missing, no permission, not a regular file, too many files open. */
sh_rc sh_file_open(const char *path, int *fd, int64_t *bytes);

/* The same for reading and writing a file that exists. */
sh_rc sh_file_reopen(const char *path, int *fd, int64_t *bytes);

/* All of `bytes` at `offset`. Errors: SH_E_DATA: I/O error, or the file ends before (it shrank). */
sh_rc sh_file_read(int fd, const char *path, void *data, int64_t bytes, int64_t offset);
sh_rc sh_file_write(int fd, const char *path, const void *data, int64_t bytes, int64_t offset);

/* A new empty file for reading and writing, mode 0640 or stricter whatever the umask. Errors: SH_E_DATA. */
sh_rc sh_file_create(const char *path, int *fd);

/* Reserve the space of the first `bytes`, so that a full disk is found before the first write. Where the file
 * system cannot reserve, only its free space is compared. The file may become that long.
 * Errors: SH_E_DATA: no space, a quota or a limit on file sizes. */
sh_rc sh_file_reserve(int fd, const char *path, int64_t bytes);

sh_rc sh_file_sync(int fd, const char *path);

/* Create a folder and its parents, mode 0750 or stricter. Fine when it exists. Errors: SH_E_DATA. */
sh_rc sh_file_make_folder(const char *path);

#endif
