#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* fallocate */
#endif
#include "io/file/file.h"

#include "src/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Linux moves at most 2 GiB in one call; a smaller piece also keeps a signal's wait short. */
enum { PIECE_BYTES = 256 << 20 };

/* For the message: "is a FIFO" says more than "not a regular file". */
static const char *file_kind(mode_t mode)
{
    static const struct {
        mode_t type;
        const char *name;
    } kinds[] = {{S_IFDIR, "a directory"},
                 {S_IFIFO, "a FIFO"},
                 {S_IFSOCK, "a socket"},
                 {S_IFCHR, "a device"},
                 {S_IFBLK, "a device"}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if ((mode & S_IFMT) == kinds[i].type)
            return kinds[i].name;
    return "of an unknown kind";
}

static sh_rc check_regular(int fd, const char *path, int64_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return sh_fail(SH_E_DATA, "stat %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return sh_fail(SH_E_DATA, "%s is %s; a regular file is needed", path, file_kind(st.st_mode));
    *bytes = st.st_size;
    return SH_OK;
}

/* Network file systems let signals interrupt an open. */
static int open_again(const char *path, int flags)
{
    int fd;
    do
        fd = open(path, flags, 0640);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* The usual cause of EMFILE is a data set of many files; the limit is in the message because it differs from node to
 * node. */
static sh_rc open_failed(const char *path, int err)
{
    struct rlimit limit;

    if (err == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        return sh_fail(SH_E_DATA,
                       "open %s: this process has reached its limit of %llu open files; raise the limit (ulimit -n)",
                       path, (unsigned long long)limit.rlim_cur);
    return sh_fail(SH_E_DATA, "open %s: %s", path, strerror(err));
}

static sh_rc open_regular(const char *path, int how, int *fd, int64_t *bytes)
{
    /* O_NONBLOCK: opening a FIFO without a writer would wait forever. The flag has no effect on regular files. */
    int f = open_again(path, how | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f < 0)
        return open_failed(path, errno);
    sh_rc rc = check_regular(f, path, bytes);
    if (rc != SH_OK) {
        close(f);
        return rc;
    }
    *fd = f;
    return SH_OK;
}

sh_rc sh_file_open(const char *path, int *fd, int64_t *bytes)
{
    return open_regular(path, O_RDONLY, fd, bytes);
}

/* O_NOFOLLOW: nobody may replace the file by a link between the first open and this one. */
sh_rc sh_file_reopen(const char *path, int *fd, int64_t *bytes)
{
    return open_regular(path, O_RDWR | O_NOFOLLOW, fd, bytes);
}

/* Returns the number of bytes of the next call. */
static int64_t piece(int64_t bytes)
{
    return bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
}

/* Short reads are normal on network file systems; it is an error only if the file ends before `bytes`. */
sh_rc sh_file_read(int fd, const char *path, void *data, int64_t bytes, int64_t offset)
{
    char *to = data;
    while (bytes > 0) {
        ssize_t got = pread(fd, to, (size_t)piece(bytes), offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sh_fail(SH_E_DATA, "read %s at byte %lld: %s", path, (long long)offset, strerror(errno));
        if (got == 0)
            return sh_fail(SH_E_DATA, "%s ends at byte %lld, %lld bytes too early; was it truncated while in use?",
                           path, (long long)offset, (long long)bytes);
        to += got;
        offset += got;
        bytes -= got;
    }
    return SH_OK;
}

sh_rc sh_file_write(int fd, const char *path, const void *data, int64_t bytes, int64_t offset)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t put = pwrite(fd, from, (size_t)piece(bytes), offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return sh_fail(SH_E_DATA, "write %s at byte %lld: %s", path, (long long)offset, strerror(errno));
        from += put;
        offset += put;
        bytes -= put;
    }
    return SH_OK;
}

/* O_EXCL and O_NOFOLLOW: never write into an existing file, or through a link that somebody put there. */
sh_rc sh_file_create(const char *path, int *fd)
{
    int f = open_again(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW);
    if (f < 0)
        return sh_fail(SH_E_DATA, "create %s: %s", path, strerror(errno));
    *fd = f;
    return SH_OK;
}

/* For file systems that cannot reserve space (NFS before 4.2, Lustre on ZFS): at least ask whether there is room now.
 * posix_fallocate would write a byte to each block instead, which takes as long as writing the checkpoint. */
static sh_rc check_room(int fd, const char *path, int64_t bytes)
{
    struct statvfs st;
    if (fstatvfs(fd, &st) != 0)
        return sh_fail(SH_E_DATA, "free space for %s: %s", path, strerror(errno));
    if ((int64_t)(st.f_bavail * st.f_frsize / 1024) < bytes / 1024)
        return sh_fail(SH_E_DATA,
                       "%s needs %lld bytes, but its file system has %lld left; make room, or choose another folder",
                       path, (long long)bytes, (long long)(st.f_bavail * st.f_frsize));
    return SH_OK;
}

/* A disk that is too small is noticed now and not after minutes of writing. Reserving blocks also keeps ranks that
 * write side by side from fragmenting the file. */
sh_rc sh_file_reserve(int fd, const char *path, int64_t bytes)
{
    int status;
    do
        status = fallocate(fd, 0, 0, bytes);
    while (status != 0 && errno == EINTR);
    if (status == 0)
        return SH_OK;
    if (errno == EOPNOTSUPP)
        return check_room(fd, path, bytes);
    return sh_fail(SH_E_DATA, "reserve %lld bytes for %s: %s; make room, or choose another folder", (long long)bytes,
                   path, strerror(errno));
}

static int sync_again(int fd)
{
    int status;
    do
        status = fsync(fd);
    while (status != 0 && errno == EINTR);
    return status;
}

sh_rc sh_file_sync(int fd, const char *path)
{
    /* Only an interrupted fsync is tried again: after a failed one the kernel may have dropped the pages, and a second
     * call would report success. */
    if (sync_again(fd) != 0)
        return sh_fail(SH_E_DATA, "fsync %s: %s", path, strerror(errno));
    return SH_OK;
}
