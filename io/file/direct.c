/* Transfers that bypass the page cache (O_DIRECT). A checkpoint is written once and not read soon: in the cache it
 * would evict data that the job needs, and compete with the job for memory. Direct transfers need addresses, offsets
 * and lengths in whole blocks, so the unaligned ends of a range go through the cache. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_DIRECT, sync_file_range */
#endif
#include "io/file/direct.h"

#include "io/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The name may have been replaced between the two opens; in that case only `fd` is used. */
static bool is_same_file(int a, int b)
{
    struct stat x, y;

    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Never fails: if the file system has no O_DIRECT, everything goes through `fd` and the cache. */
void sh_file_direct_open(const char *path, int fd, bool writing, struct sh_file_direct *out)
{
    int direct = open(path, (writing ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC | O_NONBLOCK);

    if (direct >= 0 && !is_same_file(direct, fd)) {
        close(direct);
        direct = -1;
    }
    *out = (struct sh_file_direct){.path = path, .fd = fd, .direct = direct};
}

void sh_file_cached_open(const char *path, int fd, struct sh_file_direct *out)
{
    *out = (struct sh_file_direct){.path = path, .fd = fd, .direct = -1};
}

void sh_file_direct_close(struct sh_file_direct *f)
{
    if (f->direct >= 0)
        close(f->direct);
    f->direct = -1;
}

/* Used for unaligned ends, for files without O_DIRECT, and for the rest of a direct write: a file system may accept the
 * flag and refuse the transfer, and a short transfer ends at an unaligned offset. */
static sh_rc write_cached(const struct sh_file_direct *f, const char *data, int64_t at, int64_t end)
{
    if (at == end)
        return SH_OK;
    SH_TRY(sh_file_write(f->fd, f->path, data, end - at, at));
    (void)sync_file_range(f->fd, at, end - at, SYNC_FILE_RANGE_WRITE); /* a hint: fsync is what counts */
    return SH_OK;
}

/* A file system that accepts O_DIRECT at open but not at write returns EINVAL; the rest then goes through the
 * cache. */
static sh_rc write_aligned(const struct sh_file_direct *f, const char *data, int64_t at, int64_t end)
{
    ssize_t put = 0;

    if (f->direct >= 0 && at < end) {
        do
            put = pwrite(f->direct, data, (size_t)(end - at), at);
        while (put < 0 && errno == EINTR);
        if (put < 0 && errno != EINVAL)
            return sh_fail(SH_E_DATA, "write %s at byte %lld: %s", f->path, (long long)at, strerror(errno));
        put = put < 0 ? 0 : put;
    }
    return write_cached(f, data + put, at + put, end);
}

/* Example with blocks of 4 KiB: bytes [1000, 10000) are cached [1000, 4096), direct [4096, 8192), cached [8192, 10000).
 * data[0] stands for the block boundary at or before `at`, so memory is aligned in the same way as the file. */
sh_rc sh_file_direct_write(const struct sh_file_direct *f, const char *data, int64_t at, int64_t end)
{
    int64_t origin = sh_file_align_down(at), first = sh_file_align_up(at), last = sh_file_align_down(end);

    if (first >= last)
        return write_cached(f, data + (at - origin), at, end);
    SH_TRY(write_cached(f, data + (at - origin), at, first));
    SH_TRY(write_aligned(f, data + (first - origin), first, last));
    return write_cached(f, data + (last - origin), last, end);
}

/* The last page of the file may be shorter than the request. */
sh_rc sh_file_direct_read(const struct sh_file_direct *f, char *data, int64_t at, int64_t end)
{
    int64_t origin = sh_file_align_down(at), from = at;
    ssize_t got;

    if (f->direct >= 0) {
        do
            got = pread(f->direct, data, (size_t)(sh_file_align_up(end) - origin), origin);
        while (got < 0 && errno == EINTR);
        if (got < 0 && errno != EINVAL)
            return sh_fail(SH_E_DATA, "read %s at byte %lld: %s", f->path, (long long)at, strerror(errno));
        from = origin + got > at ? origin + got : at;
    }
    return from >= end ? SH_OK : sh_file_read(f->fd, f->path, data + (from - origin), end - from, from);
}
