/* The kernel is called directly, not through the C library's functions of the same names: no symbol has to be looked
 * up, and no function can call itself. */
#undef _FORTIFY_SOURCE /* it defines its own functions with these names */
#include "tests/fault/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 1024, PATH_BYTES = 4096, DELAY_NS = 200000000 };

/* clang-format off */
const char *const shim_call_name[SHIM_CALLS + 1] = {
    [SHIM_OPEN] = "open", [SHIM_MKDIR] = "mkdir", [SHIM_WRITE] = "write", [SHIM_READ] = "read", [SHIM_SYNC] = "sync",
    [SHIM_RESIZE] = "resize", [SHIM_RESERVE] = "reserve", [SHIM_RENAME] = "rename", [SHIM_UNLINK] = "unlink",
    [SHIM_CLOSE] = "close", [SHIM_ANY] = "any",
};
/* clang-format on */

static struct {
    atomic_bool on, begun, met;
    char folder[PATH_BYTES], after[256];
    struct shim_plan plan;
    atomic_long count[SHIM_CALLS + 1];
    atomic_bool watched[FILES]; /* by file descriptor */
    unsigned char order[SHIM_ORDER];
} shim;

void shim_start(const char *folder, const char *after, struct shim_plan plan)
{
    shim.on = false;
    snprintf(shim.folder, sizeof shim.folder, "%s", folder);
    snprintf(shim.after, sizeof shim.after, "%s", after ? after : "");
    shim.plan = plan;
    for (int c = 0; c <= SHIM_CALLS; c++)
        shim.count[c] = 0;
    for (int f = 0; f < FILES; f++)
        shim.watched[f] = false;
    shim.met = false;
    shim.begun = !after;
    shim.on = true;
}

void shim_stop(void)
{
    shim.on = false;
}

long shim_count(enum shim_call call)
{
    return shim.count[call];
}

bool shim_met(void)
{
    return shim.met;
}

enum shim_call shim_order(long i)
{
    return (enum shim_call)shim.order[i];
}

static bool path_watched(const char *path)
{
    if (!shim.on || strncmp(path, shim.folder, strlen(shim.folder)) != 0)
        return false;
    if (!shim.begun && strstr(path, shim.after))
        shim.begun = true;
    return shim.begun;
}

static bool file_watched(int fd)
{
    return shim.on && fd >= 0 && fd < FILES && shim.watched[fd];
}

static void watch(int fd, bool on)
{
    if (fd >= 0 && fd < FILES)
        shim.watched[fd] = on;
}

static void take_time(void)
{
    nanosleep(&(struct timespec){.tv_nsec = DELAY_NS}, NULL);
}

/* SIGUSR1 asks a run to stop. */
static void ask(void)
{
    kill(getpid(), SIGUSR1);
    take_time();
}

/* Count a call, and return the fault for it. Delay and kill happen here because they are the same for all calls. */
static enum shim_fault meet(bool watched, enum shim_call call)
{
    if (!watched)
        return SHIM_NOTHING;
    long n = ++shim.count[call], all = ++shim.count[SHIM_ANY];
    if (all <= SHIM_ORDER)
        shim.order[all - 1] = (unsigned char)call;
    const struct shim_plan *p = &shim.plan;
    long at = p->call == SHIM_ANY ? all : n;
    if (p->fault == SHIM_NOTHING || (p->call != SHIM_ANY && p->call != call))
        return SHIM_NOTHING;
    if (p->fault == SHIM_HANG && call == SHIM_READ && at == p->number - 1)
        ask();
    if (p->lasting ? at < p->number : at != p->number)
        return SHIM_NOTHING;
    shim.met = true;
    if (p->fault == SHIM_KILL)
        kill(getpid(), SIGKILL);
    while (p->fault == SHIM_HANG)
        pause();
    if (p->fault == SHIM_ASK)
        ask();
    if (p->fault == SHIM_DELAY)
        take_time();
    if (p->fault == SHIM_FAIL)
        errno = p->error;
    return p->fault;
}

static bool fails(bool watched, enum shim_call call)
{
    return meet(watched, call) == SHIM_FAIL;
}

static int open_at(int folder, const char *path, int flags, mode_t mode)
{
    bool watched = path_watched(path);
    if (fails(watched, SHIM_OPEN))
        return -1;
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    watch(fd, watched);
    return fd;
}

/* The mode argument exists only if the flags ask for a new file. */
#define OPEN(name, folder, ...)                                                 \
    int name(__VA_ARGS__, int flags, ...)                                       \
    {                                                                           \
        va_list more;                                                           \
        va_start(more, flags);                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                           \
        return open_at(folder, path, flags, mode);                              \
    }
OPEN(open, AT_FDCWD, const char *path)
OPEN(open64, AT_FDCWD, const char *path)
OPEN(openat, folder, int folder, const char *path)
OPEN(openat64, folder, int folder, const char *path)

int close(int fd)
{
    bool watched = file_watched(fd);
    watch(fd, false);
    int status = (int)syscall(SYS_close, fd);
    return fails(watched, SHIM_CLOSE) ? -1 : status;
}

int mkdir(const char *path, mode_t mode)
{
    return fails(path_watched(path), SHIM_MKDIR) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int rename(const char *from, const char *to)
{
    return fails(path_watched(to), SHIM_RENAME) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlink(const char *path)
{
    return fails(path_watched(path), SHIM_UNLINK) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int fsync(int fd)
{
    return fails(file_watched(fd), SHIM_SYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return fails(file_watched(fd), SHIM_SYNC) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

/* A call that knows an offset has two names, one from the days of files below 2 GiB. */
#define TWO_NAMES(type, name, params, result) \
    type name params                          \
    {                                         \
        return result;                        \
    }                                         \
    type name##64 params                      \
    {                                         \
        return result;                        \
    }
TWO_NAMES(int, ftruncate, (int fd, off_t bytes),
          fails(file_watched(fd), SHIM_RESIZE) ? -1 : (int)syscall(SYS_ftruncate, fd, bytes))
TWO_NAMES(int, fallocate, (int fd, int mode, off_t at, off_t bytes),
          fails(file_watched(fd), SHIM_RESERVE) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, bytes))
TWO_NAMES(int, posix_fallocate, (int fd, off_t at, off_t bytes), /* the error is its result */
          fails(file_watched(fd), SHIM_RESERVE) || syscall(SYS_fallocate, fd, 0, at, bytes) != 0 ? errno : 0)

/* at < 0: at the file's position. */
static ssize_t move(enum shim_call call, int fd, const struct iovec *part, int n, off_t at)
{
    if (at < 0)
        return syscall(call == SHIM_READ ? SYS_readv : SYS_writev, fd, part, n);
    return syscall(call == SHIM_READ ? SYS_preadv : SYS_pwritev, fd, part, n, at, 0L);
}

static ssize_t move_half(enum shim_call call, int fd, const struct iovec *part, off_t at)
{
    struct iovec half = {part->iov_base, (part->iov_len + 1) / 2};
    return move(call, fd, &half, 1, at);
}

static ssize_t sum(const struct iovec *part, int n)
{
    ssize_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += (ssize_t)part[i].iov_len;
    return bytes;
}

/* Flip a bit in the middle of the first part. A write must not change the caller's memory, which may be
 * needed again. */
static ssize_t move_flipped(enum shim_call call, int fd, const struct iovec *part, int n, off_t at)
{
    size_t bytes = part->iov_len;
    if (call == SHIM_READ) {
        ssize_t got = move(call, fd, part, n, at);
        if (got > 0)
            ((unsigned char *)part->iov_base)[(size_t)got < bytes ? (size_t)got / 2 : bytes / 2] ^= 4;
        return got;
    }
    unsigned char *copy = aligned_alloc(4096, bytes / 4096 * 4096 + 4096); /* O_DIRECT needs whole pages */
    memcpy(copy, part->iov_base, bytes);
    copy[bytes / 2] ^= 4;
    struct iovec changed = {copy, bytes};
    ssize_t put = move(call, fd, &changed, 1, at);
    free(copy);
    return put;
}

static ssize_t transfer(enum shim_call call, int fd, const struct iovec *part, int n, off_t at)
{
    switch (meet(file_watched(fd), call)) {
    case SHIM_FAIL: return -1;
    case SHIM_SHORT: return move_half(call, fd, part, at);
    case SHIM_LOSE: return sum(part, n);
    case SHIM_FLIP: return move_flipped(call, fd, part, n, at);
    default: return move(call, fd, part, n, at);
    }
}

static ssize_t transfer_one(enum shim_call call, int fd, const void *data, size_t bytes, off_t at)
{
    struct iovec part = {(void *)(size_t)data, bytes};
    return transfer(call, fd, &part, 1, at);
}

ssize_t read(int fd, void *data, size_t bytes)
{
    return transfer_one(SHIM_READ, fd, data, bytes, -1);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    return transfer_one(SHIM_WRITE, fd, data, bytes, -1);
}

ssize_t readv(int fd, const struct iovec *part, int n)
{
    return transfer(SHIM_READ, fd, part, n, -1);
}

ssize_t writev(int fd, const struct iovec *part, int n)
{
    return transfer(SHIM_WRITE, fd, part, n, -1);
}

TWO_NAMES(ssize_t, pread, (int fd, void *data, size_t bytes, off_t at), transfer_one(SHIM_READ, fd, data, bytes, at))
TWO_NAMES(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t at),
          transfer_one(SHIM_WRITE, fd, data, bytes, at))
TWO_NAMES(ssize_t, preadv, (int fd, const struct iovec *part, int n, off_t at), transfer(SHIM_READ, fd, part, n, at))
TWO_NAMES(ssize_t, pwritev, (int fd, const struct iovec *part, int n, off_t at), transfer(SHIM_WRITE, fd, part, n, at))
