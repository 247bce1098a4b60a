#include "src/base/file.h"

#include "src/base/mem.h"
#include "src/base/temp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The most that users other than the owner may do with an output. */
enum { OPEN_TO_OTHERS = 0644 };

/* Must be the first call after the one that failed: other calls may change errno. */
static sh_rc fail_errno(const char *what, const char *path)
{
    return sh_fail(errno == ENOMEM ? SH_E_MEMORY : SH_E_DATA, "%s %s: %s", what, path, strerror(errno));
}

/* The caller frees the result. */
char *sh_path_join(const char *folder, const char *name)
{
    size_t len = strlen(folder);
    if (len == 0 || name[0] == '/')
        return sh_strdup(name);
    return sh_strfmt("%s%s%s", folder, folder[len - 1] == '/' ? "" : "/", name);
}

static sh_rc make_folder(const char *path, mode_t mode)
{
    struct stat st;
    if (mkdir(path, mode) == 0)
        return SH_OK;
    int why = errno; /* on some file systems EROFS or EACCES comes before EEXIST */
    bool there = stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode))
        return SH_OK;
    if (why == EEXIST)
        return sh_fail(SH_E_DATA, "folder %s: %s", path,
                       there ? "a file has this name" : "a symbolic link to something that does not exist");
    errno = why;
    return fail_errno("create folder", path);
}

bool sh_is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static sh_rc make_folders(const char *path, mode_t mode)
{
    sh_rc rc = SH_OK;
    char *prefix = sh_strdup(path);
    for (char *p = prefix; *p != '\0'; p++) {
        /* Each prefix in turn, except the empty one before a leading slash. */
        if (*p != '/' || p == prefix)
            continue;
        *p = '\0';
        SH_TRY_OUT(make_folder(prefix, mode));
        *p = '/';
    }
    rc = make_folder(prefix, mode);
out:
    free(prefix);
    return rc;
}

sh_rc sh_mkdir_p(const char *path)
{
    return make_folders(path, 0755);
}

sh_rc sh_mkdir_private(const char *path)
{
    return make_folders(path, 0750);
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

/* Called before any memory is allocated: a file of 1 TB given by mistake is refused, not read. */
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
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* refuse a FIFO instead of waiting for it */
    if (fd < 0)
        return fail_errno("open", path);
    sh_rc rc = SH_OK;
    SH_TRY_OUT(check_size(fd, path, max_bytes, &size));
    /* One more byte, zero, so that text can be used as a string. */
    buf = sh_calloc(size + 1, 1);
    SH_TRY_OUT(read_all(fd, path, buf, size, &got));
    *data = buf;
    buf = NULL;
    /* May be less than the size: the file may have shrunk. */
    if (bytes != NULL)
        *bytes = got;
out:
    free(buf);
    close(fd);
    return rc;
}

/* write() may write less than it is given: on signals, on full disks, and beyond 2 GiB. */
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

/* Only an interrupted fsync may be retried: after a failed one the kernel may have dropped the pages. */
static int sync_again(int fd)
{
    int rc;
    do {
        rc = fsync(fd);
    } while (rc != 0 && errno == EINTR);
    return rc;
}

sh_rc sh_output_sync(const char *path)
{
    char *folder = sh_strdup(path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder ? 1 : 0] = '\0'; /* the folder of "/x" is "/" */
    int fd;
    do
        fd = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    sh_rc rc = SH_OK;
    /* EINVAL: the file system has no fsync for folders and needs none */
    if (fd < 0 || (sync_again(fd) != 0 && errno != EINVAL))
        rc = sh_fail(SH_E_DATA, "%s is complete, but its name may not survive a power failure: fsync %s: %s", path,
                     slash != NULL ? folder : ".", strerror(errno));
    if (fd >= 0)
        close(fd);
    free(folder);
    return rc;
}

/* The name must not be guessable, since others may be able to write into the folder. */
static uint64_t random_bits(void)
{
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) == (ssize_t)sizeof bits)
        return bits;
    /* Early in the boot there may be no randomness yet; O_EXCL still refuses an existing name. */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec << 32 ^ (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 40;
}

char *sh_output_temp_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    return sh_strfmt("%.*s.%s.%016llx.tmp", (int)(base - path), path, base, (unsigned long long)random_bits());
}

/* Network file systems let signals interrupt an open. O_NONBLOCK: refuse a FIFO instead of waiting for it. */
static int open_again(const char *path, int flags, mode_t mode)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, mode & OPEN_TO_OTHERS);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* One message per reason, with the cure. */
static sh_rc refuse_output(const char *path, mode_t mode)
{
    if (S_ISLNK(mode))
        return sh_fail(SH_E_DATA,
                       "%s is a symbolic link, and outputs are not written through links; remove it, or name "
                       "the file itself",
                       path);
    return sh_fail(SH_E_DATA, "%s is not a regular file, so no output is written there; name a file", path);
}

/* Only files are replaced: otherwise root could turn /dev/null into a file. */
static sh_rc check_replaced(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? SH_OK : fail_errno("create", path);
    return S_ISREG(st.st_mode) ? SH_OK : refuse_output(path, st.st_mode);
}

/* Through /proc, because the plain way (AT_EMPTY_PATH) is for root only. */
static bool link_open(int fd, const char *name)
{
    char open_file[64];
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, open_file, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
}

/* A file without a name in the folder of `temp`; it vanishes with the process, whatever ends that. -1: the file system
 * has no such files, or cannot name one later, which another, empty one shows: that must not come out after hours. */
static int open_unnamed(const char *temp, mode_t mode)
{
    const char *slash = strrchr(temp, '/');
    char *folder = slash ? sh_strfmt("%.*s", (int)(slash - temp) + 1, temp) : sh_strdup(".");
    int fd = open_again(folder, O_RDWR | O_TMPFILE, mode);
    int other = fd < 0 ? -1 : open_again(folder, O_RDWR | O_TMPFILE, mode);
    bool can = other >= 0 && link_open(other, temp) && unlink(temp) == 0;
    free(folder);
    if (other >= 0)
        close(other);
    if (can)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

sh_rc sh_new_file_create(const char *path, mode_t mode, struct sh_new_file *out)
{
    SH_TRY(check_replaced(path));
    sh_temp_sweep(path);
    struct sh_new_file f = {.temp = sh_output_temp_name(path)};
    f.fd = open_unnamed(f.temp, mode);
    if (f.fd < 0) {
        f.fd = open_again(f.temp, O_RDWR | O_CREAT | O_EXCL, mode);
        f.named = f.fd >= 0;
    }
    if (f.fd < 0) {
        sh_rc rc = fail_errno("create", path);
        free(f.temp);
        return rc;
    }
    if (f.named)
        sh_temp_add(f.temp, f.fd);
    f.path = sh_strdup(path);
    *out = f;
    return SH_OK;
}

sh_rc sh_new_file_name(struct sh_new_file *f)
{
    if (f->named)
        return SH_OK;
    sh_temp_add(f->temp, f->fd);
    f->named = link_open(f->fd, f->temp);
    return f->named ? SH_OK : fail_errno("name", f->temp);
}

/* Compares device and inode: whether it is the same file, whatever its name. */
static bool is_name_of(const char *path, int fd)
{
    struct stat name, file;
    return lstat(path, &name) == 0 && fstat(fd, &file) == 0 && name.st_dev == file.st_dev && name.st_ino == file.st_ino;
}

/* A name can be swapped between the check and the rename, but an open file cannot: so check again afterwards. */
sh_rc sh_output_publish(int fd, const char *temp, const char *path)
{
    if (!is_name_of(temp, fd))
        return sh_fail(SH_E_DATA, "%s is no longer the file that was written: another process changes its folder",
                       temp);
    if (rename(temp, path) != 0)
        return sh_fail(SH_E_DATA, "rename %s to %s: %s", temp, path, strerror(errno));
    if (!is_name_of(path, fd)) {
        (void)unlink(path);
        return sh_fail(SH_E_DATA,
                       "%s was swapped for another file at the moment of its rename and was deleted: another process "
                       "changes its folder",
                       path);
    }
    return sh_output_sync(path);
}

/* The data goes to disk before the name: after a crash the name refers to the old file or the new one, never to an
 * empty one. */
sh_rc sh_new_file_commit(struct sh_new_file *f)
{
    sh_rc rc = sh_new_file_name(f);
    if (rc != SH_OK)
        goto out;
    if (sync_again(f->fd) != 0)
        SH_TRY_OUT(fail_errno("fsync", f->temp));
    SH_TRY_OUT(check_replaced(f->path));
    SH_TRY_OUT(sh_output_publish(f->fd, f->temp, f->path));
    f->named = false;
out:
    sh_new_file_abandon(f);
    return rc;
}

void sh_new_file_abandon(struct sh_new_file *f)
{
    /* A path means that the file was created here and is still open; a second call does nothing. */
    if (f->path != NULL && f->fd >= 0)
        close(f->fd);
    if (f->named)
        unlink(f->temp);
    if (f->temp)
        sh_temp_drop(f->temp);
    free(f->path);
    free(f->temp);
    *f = (struct sh_new_file){.fd = -1};
}

sh_rc sh_write_file_atomic(const char *path, const void *data, size_t bytes)
{
    struct sh_new_file f;
    SH_TRY(sh_new_file_create(path, OPEN_TO_OTHERS, &f));
    sh_rc rc = write_all(f.fd, f.temp, data, bytes);
    if (rc == SH_OK)
        return sh_new_file_commit(&f);
    sh_new_file_abandon(&f);
    return rc;
}

/* Truncates after the check of the file and not with O_TRUNC, which would empty a file that is refused a moment
 * later. */
static sh_rc check_output(int fd, const char *path, const char *how)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return fail_errno("stat", path);
    if (!S_ISREG(st.st_mode))
        return refuse_output(path, st.st_mode);
    return how[0] != 'w' || ftruncate(fd, 0) == 0 ? SH_OK : fail_errno("empty", path);
}

/* A full disk cuts a line anywhere; the next one must not become a part of it. */
static bool is_torn(int fd)
{
    off_t bytes = lseek(fd, 0, SEEK_END);
    char last = '\n';

    return bytes > 0 && pread(fd, &last, 1, bytes - 1) == 1 && last != '\n';
}

sh_rc sh_open_output(const char *path, const char *how, FILE **out)
{
    /* Always O_APPEND, so that lines of two processes do not overwrite each other. */
    int fd = open_again(path, O_RDWR | O_CREAT | O_APPEND, OPEN_TO_OTHERS);
    if (fd < 0 && (errno == ELOOP || errno == ENXIO)) /* a link; a FIFO without a reader, or a socket */
        return refuse_output(path, errno == ELOOP ? S_IFLNK : S_IFIFO);
    if (fd < 0)
        return fail_errno("open", path);
    sh_rc rc = check_output(fd, path, how);
    FILE *f = rc == SH_OK ? fdopen(fd, "a") : NULL;
    if (rc == SH_OK && f == NULL)
        rc = fail_errno("open", path);
    if (rc != SH_OK) {
        close(fd);
        return rc;
    }
    if (is_torn(fd))
        fputc('\n', f);
    *out = f;
    return SH_OK;
}
