/* Files and folders: whole reads, and writes that a reader sees entirely or not at all.
 *
 * Others may be able to write into the folder of an output, so what is created here is new (a random name, O_EXCL), no
 * output is written through a symbolic link or into a FIFO, a device or a socket, and nothing is writable by group or
 * others, whatever the umask: at most 0755 for folders and 0644 for files.
 *
 * Local: when many ranks need a file, one of them calls and hands it on. Errors: SH_E_DATA with path and cause. */
#ifndef SH_BASE_FILE_H
#define SH_BASE_FILE_H

#include "src/base/err.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

/* "folder/name"; `name` alone when it is absolute or folder is "". Freed with free(). */
char *sh_path_join(const char *folder, const char *name);

/* Create a folder and those above it; one that exists already is fine. */
sh_rc sh_mkdir_p(const char *path);

/* A whole regular file of at most max_bytes.
 *   *data   out  its bytes and one 0 after them, freed with free()
 *   *bytes  out  without that 0; may be NULL */
sh_rc sh_read_file(const char *path, size_t max_bytes, char **data, size_t *bytes);

/* A file that appears under its name when it is complete: sh_new_file_create, writes to `fd`, then sh_new_file_commit,
 * or sh_new_file_abandon at any time. */
struct sh_new_file {
    char *path, *temp; /* its name, and the one that it has until then */
    int fd;            /* reading and writing */
};

/* `mode`: permissions, from which the umask takes away; never more than 0644. Errors: also where `path` exists and is no
 * regular file. */
sh_rc sh_new_file_create(const char *path, mode_t mode, struct sh_new_file *out);

/* fsync, then sh_output_publish. Replaces a file of that name in one step that survives a crash. Ends with `f` closed and freed, also when it fails. */
sh_rc sh_new_file_commit(struct sh_new_file *f);
void sh_new_file_abandon(struct sh_new_file *f); /* closes and deletes it; fine after a commit */

/* All of that for data in memory; mode 0644. */
sh_rc sh_write_file_atomic(const char *path, const void *data, size_t bytes);

/* A file that grows in place, created with mode 0644 when there is none.
 *   how   in   "a": what is in it stays; "w": it is emptied first
 *   *out  out  a stream for writing, closed with fclose() */
sh_rc sh_open_output(const char *path, const char *how, FILE **out);

/* ".<base>.<random>.tmp" in the folder of `path`; freed with free(). Random, so that nobody can have put something
 * there, and because a name that a killed job left behind must never be met again: MPI libraries keep locks by base
 * name. */
char *sh_output_temp_name(const char *path);

/* Rename the file that `fd` is open as, and make the new name durable. When only the last part fails, the file is complete
 * under its new name, but may go back to the old one with a power failure; the error says so.
 * Errors: SH_E_DATA: no rename; `temp` is another file by now, or a link: nothing was renamed; what landed under the new
 * name is another file, swapped at the last moment: it was deleted again. */
sh_rc sh_output_publish(int fd, const char *temp, const char *path);

#endif
