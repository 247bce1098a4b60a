/* Large transfers that bypass the page cache (O_DIRECT), if the file system supports it: nothing is copied into memory
 * that training could use, the kernel need not find pages for it, and a read returns what is on the disk. Elsewhere the
 * same calls go through the page cache. All local; several threads may use one file. */
#ifndef IO_FILE_DIRECT_H
#define IO_FILE_DIRECT_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Memory address, file offset and length of a direct transfer must be multiples of this. Disks ask for 512 or 4096. */
enum { SH_FILE_ALIGN = 4096 };

struct sh_file_direct {
    const char *path; /* lent */
    int fd;           /* lent: for unaligned ranges, and to fsync */
    int direct;       /* -1: the file system does not support it */
};

/* Open `path` a second time, for direct I/O, next to `fd`, which is open for reading, or for reading and writing.
 * Cannot fail: without direct I/O the page cache is used. */
void sh_file_direct_open(const char *path, int fd, bool writing, struct sh_file_direct *out);
/* The same, but always through the page cache. Close with sh_file_direct_close(), too. */
void sh_file_cached_open(const char *path, int fd, struct sh_file_direct *out);
void sh_file_direct_close(struct sh_file_direct *f);

/* Transfer the bytes [at, end) of the file. `data` is aligned memory that starts with byte `at` rounded down to
 * SH_FILE_ALIGN, and has room up to `end` rounded up. The bytes of it before `at` and past `end` are not written to the
 * file; a read may change them. Writing through the page cache also makes the kernel start to write back at once, so
 * that little is left for fsync. Errors: SH_E_DATA: as for sh_file_read and sh_file_write. */
sh_rc sh_file_direct_write(const struct sh_file_direct *f, const char *data, int64_t at, int64_t end);
sh_rc sh_file_direct_read(const struct sh_file_direct *f, char *data, int64_t at, int64_t end);

/* `at`, rounded down and rounded up to a multiple of SH_FILE_ALIGN. */
static inline int64_t sh_file_align_down(int64_t at)
{
    return at - at % SH_FILE_ALIGN;
}

static inline int64_t sh_file_align_up(int64_t at)
{
    return sh_file_align_down(at + SH_FILE_ALIGN - 1);
}

#endif
