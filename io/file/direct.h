/* Large transfers past the page cache (O_DIRECT), where a file system has that: nothing is copied into memory that
 * training could use, no pages are to be found for it, and what is read is what the disk has. Elsewhere the same calls
 * go through the page cache. All local; several threads may use one file. */
#ifndef IO_FILE_DIRECT_H
#define IO_FILE_DIRECT_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* What memory, place and length of such a transfer must be a multiple of. Disks ask for 512 or 4096. */
enum { SH_FILE_ALIGN = 4096 };

struct sh_file_direct {
    const char *path; /* lent */
    int fd;           /* lent: for what is not aligned, and to fsync */
    int direct;       /* -1: the file system has no such thing */
};

/* Beside `fd`, which `path` is open as for reading, or also for writing. A failure is none: there is the page cache. */
void sh_file_direct_open(const char *path, int fd, bool writing, struct sh_file_direct *out);
/* The same calls, but through the page cache. Closed as the other. */
void sh_file_cached_open(const char *path, int fd, struct sh_file_direct *out);
void sh_file_direct_close(struct sh_file_direct *f);

/* The bytes [at, end) of the file. `data` is aligned memory that begins with byte `at` rounded down to SH_FILE_ALIGN,
 * and has room up to `end` rounded up. What is before `at` and past `end` in it is not written; reading may change
 * it. Writing through the page cache also makes the kernel begin to write back at once, so that little is left for
 * fsync. Errors: SH_E_DATA: as sh_file_read and sh_file_write. */
sh_rc sh_file_direct_write(const struct sh_file_direct *f, const char *data, int64_t at, int64_t end);
sh_rc sh_file_direct_read(const struct sh_file_direct *f, char *data, int64_t at, int64_t end);

/* The place at or below, at or above `at` that is aligned. */
static inline int64_t sh_file_align_down(int64_t at)
{
    return at - at % SH_FILE_ALIGN;
}

static inline int64_t sh_file_align_up(int64_t at)
{
    return sh_file_align_down(at + SH_FILE_ALIGN - 1);
}

#endif
