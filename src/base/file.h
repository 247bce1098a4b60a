/* Small files and folders: whole reads, and writes that a reader sees entirely or not at all.
 * Local: when many ranks need a file, one of them calls and hands it on. Errors: SH_E_DATA with path and cause. */
#ifndef SH_BASE_FILE_H
#define SH_BASE_FILE_H

#include "src/base/err.h"

#include <stddef.h>

/* "folder/name"; `name` alone when it is absolute or folder is "". Freed with free(). */
char *sh_path_join(const char *folder, const char *name);

/* Create a folder and those above it; one that exists already is fine. */
sh_rc sh_mkdir_p(const char *path);

/* A whole regular file of at most max_bytes.
 *   *data   out  its bytes and one 0 after them, freed with free()
 *   *bytes  out  without that 0; may be NULL */
sh_rc sh_read_file(const char *path, size_t max_bytes, char **data, size_t *bytes);

/* Replace a file in one step that survives a crash: write `path`.tmp, fsync, rename, fsync the folder. */
sh_rc sh_write_file_atomic(const char *path, const void *data, size_t bytes);

#endif
