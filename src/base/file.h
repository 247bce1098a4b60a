/* Files and folders: whole reads, and writes that a reader sees entirely or not at all.
 *
 * Other users may be able to write into the folder of an output. So every file created here is new (a random name,
 * O_EXCL), no output is written through a symbolic link or into a FIFO, a device or a socket, and nothing is writable
 * by group or others, whatever the umask: at most 0755 for folders and 0644 for files.
 *
 * Local: if many ranks need a file, one of them reads it and passes it on. Errors: SH_E_DATA with path and cause. */
#ifndef SH_BASE_FILE_H
#define SH_BASE_FILE_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

/* "folder/name"; `name` alone if it is absolute or folder is "". Freed with free(). */
char *sh_path_join(const char *folder, const char *name);

/* Whether there is a folder, or a link to one. */
bool sh_is_folder(const char *path);

/* Create a folder and its parents; existing folders are fine. Private: others may not even look into it. */
sh_rc sh_mkdir_p(const char *path);
sh_rc sh_mkdir_private(const char *path);

/* Read a whole regular file of at most max_bytes.
 *   *data   out  its bytes, followed by a 0; freed with free()
 *   *bytes  out  without that 0; may be NULL */
sh_rc sh_read_file(const char *path, size_t max_bytes, char **data, size_t *bytes);

/* A file that appears under its name only once it is complete: sh_new_file_create, writes to `fd`, then
 * sh_new_file_commit, or sh_new_file_abandon at any time. */
struct sh_new_file {
    char *path, *temp; /* its final name, and its name until then */
    int fd;            /* open for reading and writing */
    bool named;        /* `temp` exists; where the file system can do without, only from sh_new_file_name() on */
};

/* `mode`: permissions, reduced by the umask; never more than 0644. Errors: also if `path` exists and is not a regular
 * file. */
sh_rc sh_new_file_create(const char *path, mode_t mode, struct sh_new_file *out);

/* Give it its temporary name, for other processes that write into it. No effect if it has one. */
sh_rc sh_new_file_name(struct sh_new_file *f);

/* fsync, then sh_output_publish. Replaces a file of that name in one step that survives a crash. `f` is closed and
 * freed, even on failure. */
sh_rc sh_new_file_commit(struct sh_new_file *f);
void sh_new_file_abandon(struct sh_new_file *f); /* closes and deletes it; fine after a commit */

/* All of these steps for data in memory; mode 0644. */
sh_rc sh_write_file_atomic(const char *path, const void *data, size_t bytes);

/* Open a file that grows in place; if there is none, create it with mode 0644.
 *   how   in   "a": keep its content, and begin a line; "w": empty it first
 *   *out  out  a stream for writing, closed with fclose() */
sh_rc sh_open_output(const char *path, const char *how, FILE **out);

/* ".<base>.<random>.tmp" in the folder of `path`; freed with free(). The name is random so that nobody can have put
 * something there, and so that a name left by a killed job is never used again: MPI libraries keep locks by base
 * name. */
char *sh_output_temp_name(const char *path);

/* Make the name of a complete file or folder durable, as a part of the folder that it is in. */
sh_rc sh_output_sync(const char *path);

/* Rename the file open as `fd`, and make the new name durable. If only the last part fails, the file is complete under
 * its new name but may lose that name in a power failure; the error says so.
 * Errors: SH_E_DATA: the rename failed; `temp` is by now another file, or a link, and nothing was renamed; or another
 * file, swapped in at the last moment, got the new name and was deleted again. */
sh_rc sh_output_publish(int fd, const char *temp, const char *path);

#endif
