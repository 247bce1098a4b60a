/* Unfinished outputs: files and folders under a temporary name, which nobody shall find later. They are deleted when a
 * signal ends the process, or sh_stop(); what a process left that had no chance to (SIGKILL, a crash of the node) is
 * swept by the next one that writes the same output. Names: sh_output_temp_name() in file.h. Local; from any thread. */
#ifndef SH_BASE_TEMP_H
#define SH_BASE_TEMP_H

/* From here on a signal that ends the process deletes the file, or the folder if it is empty by then: its files are added
 * themselves. `fd`: of it, open; locked for as long as it is open, so that no sweep takes it for a dead one's; -1: none. */
void sh_temp_add(const char *path, int fd);
/* It has its final name, or was deleted, with all files in it. Fine if it was never added. */
void sh_temp_drop(const char *path);

void sh_temp_delete(void); /* all that were added. Async-signal-safe */

/* Delete a file, or a folder with the files in it. */
void sh_temp_remove(const char *path);

/* Delete what dead processes have left of the output `path`: files and folders of this user under such a name that are
 * not locked and an hour old. Where the file system has no locks, nothing. */
void sh_temp_sweep(const char *path);

#endif
