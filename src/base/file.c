#include "src/base/file.h"

#include "src/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sh_rc fail_errno(const char *what, const char *path)
{
    return sh_fail(errno == ENOMEM ? SH_E_MEMORY : SH_E_DATA, "%s %s: %s", what, path, strerror(errno));
}

char *sh_path_join(const char *folder, const char *name)
{
    size_t len = strlen(folder);
    if (len == 0 || name[0] == '/')
        return sh_strdup(name);
    return sh_strfmt("%s%s%s", folder, folder[len - 1] == '/' ? "" : "/", name);
}

static sh_rc make_folder(const char *path)
{
    struct stat st;
    if (mkdir(path, 0777) == 0)
        return SH_OK;
    int why = errno; /* on some file systems EROFS or EACCES comes before EEXIST */
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return SH_OK;
    errno = why;
    return fail_errno("create folder", path);
}

sh_rc sh_mkdir_p(const char *path)
{
    sh_rc rc = SH_OK;
    char *prefix = sh_strdup(path);
    for (char *p = prefix; *p != '\0'; p++) {
        if (*p != '/' || p == prefix)
            continue;
        *p = '\0';
        SH_TRY_OUT(make_folder(prefix));
        *p = '/';
    }
    rc = make_folder(prefix);
out:
    free(prefix);
    return rc;
}

/* Up to `room` bytes, fewer only at the end of the file. */
static sh_rc read_all(int fd, const char *path, char *buf, size_t room, size_t *got)
{
    size_t n = 0;
    while (n < room) {
        ssize_t r = read(fd, buf + n, room - n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return fail_errno("read", path);
        if (r == 0)
            break;
        n += (size_t)r;
    }
    *got = n;
    return SH_OK;
}

static sh_rc check_size(int fd, const char *path, size_t max_bytes, size_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return fail_errno("stat", path);
    if (!S_ISREG(st.st_mode))
        return sh_fail(SH_E_DATA, "read %s: not a regular file", path);
    if ((uintmax_t)st.st_size > max_bytes)
        return sh_fail(SH_E_DATA, "read %s: %jd bytes, more than the %zu allowed here", path, (intmax_t)st.st_size,
                       max_bytes);
    *bytes = (size_t)st.st_size;
    return SH_OK;
}

sh_rc sh_read_file(const char *path, size_t max_bytes, char **data, size_t *bytes)
{
    size_t size = 0, got = 0;
    char *buf = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must be refused, not waited for */
    if (fd < 0)
        return fail_errno("open", path);
    sh_rc rc = SH_OK;
    SH_TRY_OUT(check_size(fd, path, max_bytes, &size));
    buf = sh_calloc(size + 1, 1);
    SH_TRY_OUT(read_all(fd, path, buf, size, &got));
    *data = buf;
    buf = NULL;
    if (bytes != NULL)
        *bytes = got;
out:
    free(buf);
    close(fd);
    return rc;
}

static sh_rc write_all(int fd, const char *path, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t w = write(fd, data, bytes);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return fail_errno("write", path);
        data += w;
        bytes -= (size_t)w;
    }
    return SH_OK;
}

static sh_rc write_synced(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_errno("create", path);
    sh_rc rc = write_all(fd, path, data, bytes);
    if (rc == SH_OK && fsync(fd) != 0)
        rc = fail_errno("fsync", path);
    if (close(fd) != 0 && rc == SH_OK) /* network file systems report a full disk here */
        rc = fail_errno("close", path);
    return rc;
}

/* The rename itself is only on disk when the folder is. */
static sh_rc sync_folder_of(const char *path)
{
    char *folder = sh_strdup(path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder ? 1 : 0] = '\0'; /* the folder of "/x" is "/" */
    int fd = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sh_rc rc = SH_OK;
    /* EINVAL: a file system that has no fsync of folders and needs none */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        rc = fail_errno("fsync the folder of", path);
    if (fd >= 0)
        close(fd);
    free(folder);
    return rc;
}

sh_rc sh_write_file_atomic(const char *path, const void *data, size_t bytes)
{
    char *tmp = sh_strfmt("%s.tmp", path);
    sh_rc rc = SH_OK;
    SH_TRY_OUT(write_synced(tmp, data, bytes));
    if (rename(tmp, path) != 0)
        SH_TRY_OUT(fail_errno("rename to", path));
    SH_TRY_OUT(sync_folder_of(path));
out:
    if (rc != SH_OK)
        unlink(tmp);
    free(tmp);
    return rc;
}
