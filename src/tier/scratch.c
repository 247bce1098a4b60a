#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_TMPFILE, O_DIRECT, statx */
#endif
#include "src/tier/scratch.h"

#include "io/file/file.h"
#include "src/base/mem.h"
#include "src/tier/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Anyone who may write to the folder may put something there: the name is random, and a file that already has it is not
 * opened. The name is removed before the first byte is written: a kill between the two leaves an empty file. -1 with
 * errno. */
static int open_and_unlink(const char *folder)
{
    char *name = sh_path_join(folder, "scratch"), *path = sh_output_temp_name(name);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600), error = errno;

    if (fd >= 0 && unlink(path) != 0) {
        error = errno;
        close(fd);
        fd = -1;
    }
    free(name);
    free(path);
    errno = error;
    return fd;
}

/* O_EXCL with O_TMPFILE: the file can never get a name. The error for a file system without such files varies:
 * EOPNOTSUPP from systems that know the flag, EISDIR and ENOENT from those that see a folder opened for writing. After
 * any error the other way may be tried; if the cause is a different one, that fails as well. */
static int open_unnamed(const char *folder)
{
    int fd;

    do
        fd = open(folder, O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, 0600);
    while (fd < 0 && errno == EINTR);
    return fd >= 0 ? fd : open_and_unlink(folder);
}

/* Ask the file system what it requires, if the kernel can tell (Linux 6.1). Otherwise the first transfer shows it. */
static bool takes_pages(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx st;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && st.stx_mask & STATX_DIOALIGN)
        return st.stx_dio_mem_align > 0 && st.stx_dio_mem_align <= SH_TIER_ALIGN && st.stx_dio_offset_align > 0 &&
               st.stx_dio_offset_align <= SH_TIER_ALIGN;
#else
    (void)fd;
#endif
    return true;
}

/* The flag is set afterwards: a failed open would not tell whether the flag or the missing name was the reason. */
static sh_rc go_past_cache(int fd, const char *folder)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0 || !takes_pages(fd))
        return sh_fail(
            SH_E_DATA,
            "%s: its file system cannot transfer %d bytes past the page cache (O_DIRECT), so data put there would "
            "stay in memory; choose a folder on a local disk",
            folder, SH_TIER_ALIGN);
    return SH_OK;
}

/* Beyond the limit the kernel would not only fail the write, but also send SIGXFSZ. */
static sh_rc check_limit(const char *folder, int64_t bytes)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && (uint64_t)bytes > limit.rlim_cur)
        return sh_fail(
            SH_E_DATA,
            "a scratch file in %s needs %lld bytes, but files of this process may have %llu; raise the limit "
            "(ulimit -f)",
            folder, (long long)bytes, (unsigned long long)limit.rlim_cur);
    return SH_OK;
}

static sh_rc prepare(int fd, const char *folder, int64_t bytes)
{
    char *name = sh_strfmt("a scratch file in %s", folder);
    sh_rc rc = go_past_cache(fd, folder);

    if (rc == SH_OK)
        rc = check_limit(folder, bytes);
    if (rc == SH_OK && bytes > 0)
        rc = sh_file_reserve(fd, name, bytes);
    free(name);
    return rc;
}

sh_rc sh_tier_scratch_open(const char *folder, int64_t bytes, int *fd)
{
    int made = open_unnamed(folder);
    sh_rc rc;

    if (made < 0)
        return sh_fail(SH_E_DATA, "create a scratch file in %s: %s; choose a writable folder", folder, strerror(errno));
    rc = prepare(made, folder, bytes);
    if (rc != SH_OK)
        close(made);
    else
        *fd = made;
    return rc;
}
