#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* gethostname */
#endif
#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/folder/folder.h"
#include "io/file/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The lock is fcntl's: the kernel releases it when its process dies, however that happens, and the network file systems
 * of clusters pass it on between nodes. The text in the file only says who the holder is. */
struct sh_ckpt_lock {
    int fd;
    bool held;
};

enum { OWNER_MAX = 256, HOST_MAX = 64 };

/* The nodes that the script of this batch job has lost. */
static const char LOST_NODES[] = "SHERD_LOST_NODES";

static void read_owner(int fd, char owner[OWNER_MAX])
{
    ssize_t n = pread(fd, owner, OWNER_MAX - 1, 0);

    owner[n > 0 ? n : 0] = '\0';
    owner[strcspn(owner, "\n")] = '\0';
}

static sh_rc refuse(const char *owner, const char *path)
{
    return sh_fail(SH_E_DATA,
                   "%s is held by another job (%s); wait for it, stop it, or choose another checkpoint.folder", path,
                   owner[0] ? owner : "which has not identified itself");
}

/* The batch system's id of the job, which a user can look up. */
static const char *job_id(void)
{
    static const char *const names[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "FLUX_JOB_ID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]))
            return getenv(names[i]);
    return "none";
}

/* As Slurm calls it, by which its script does. */
static void name_host(char host[HOST_MAX])
{
    const char *slurm = getenv("SLURMD_NODENAME");

    host[0] = host[HOST_MAX - 1] = '\0';
    if (slurm)
        snprintf(host, HOST_MAX, "%s", slurm);
    else if (gethostname(host, HOST_MAX - 1) != 0)
        host[0] = '\0';
}

/* Replaces the text by this process; only the holder of the lock writes. */
static sh_rc sign(int fd, const char *path)
{
    char host[HOST_MAX], owner[OWNER_MAX];
    int n;

    name_host(host);
    n = snprintf(owner, sizeof owner, "host %s, process %ld, batch job %.100s\n", host, (long)getpid(), job_id());
    if (ftruncate(fd, 0) != 0)
        return sh_fail(SH_E_DATA, "%s: %s", path, strerror(errno));
    return sh_file_write(fd, path, owner, n, 0);
}

static bool is_among(const char *word, const char *words)
{
    size_t n = strlen(word);

    for (const char *at = words; (at = strstr(at, word)) != NULL; at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return true;
    return false;
}

/* Whether the holder is a rank of this very job, on a node that the job has lost: servers keep its lock until they notice. */
static bool is_lost(const char *owner)
{
    const char *lost = getenv(LOST_NODES);
    char host[HOST_MAX], job[101];

    return lost && sscanf(owner, "host %63[^,], process %*d, batch job %100s", host, job) == 2 &&
           strcmp(job, job_id()) == 0 && strcmp(job, "none") != 0 && is_among(host, lost);
}

/* The lock of another file, in the place of the one that a lost rank holds. */
static sh_rc replace(const char *path, struct sh_ckpt_lock *lock)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char *temp = sh_output_temp_name(path);
    int fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
    sh_rc rc = fd >= 0 && fcntl(fd, F_SETLK, &whole) == 0 ? sign(fd, path)
                                                          : sh_fail(SH_E_DATA, "lock %s: %s", temp, strerror(errno));

    if (rc == SH_OK && rename(temp, path) != 0)
        rc = sh_fail(SH_E_DATA, "rename %s: %s", temp, strerror(errno));
    if (rc == SH_OK) {
        close(lock->fd);
        lock->fd = fd;
        lock->held = true;
    } else if (fd >= 0) {
        close(fd);
        unlink(temp);
    }
    free(temp);
    return rc;
}

static sh_rc take_from_lost_or_refuse(const char *path, struct sh_ckpt_lock *lock)
{
    char owner[OWNER_MAX];

    read_owner(lock->fd, owner);
    if (!is_lost(owner))
        return refuse(owner, path);
    sh_log_warn("%s was held by a rank on a node that this job has lost (%s), and is taken over", path, owner);
    return replace(path, lock);
}

/* Three results: held; refused, if another job holds the lock; and neither, on a file system without locks, where only
 * a warning is possible. */
static sh_rc take(const char *path, struct sh_ckpt_lock *lock)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(lock->fd, F_SETLK, &whole) == 0) {
        lock->held = true;
        return sign(lock->fd, path);
    }
    if (errno == EACCES || errno == EAGAIN)
        return take_from_lost_or_refuse(path, lock);
    if (errno != ENOLCK && errno != ENOSYS && errno != EOPNOTSUPP)
        return sh_fail(SH_E_DATA, "lock %s: %s", path, strerror(errno));
    sh_log_warn("%s: this file system has no locks (%s): nothing keeps a second job from writing here, and files left "
                "by killed jobs are not deleted",
                path, strerror(errno));
    return SH_OK;
}

static sh_rc open_and_take(const char *path, struct sh_ckpt_lock *lock)
{
    /* O_NOFOLLOW: a link in a shared folder must not make us truncate somebody's file. */
    lock->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (lock->fd < 0)
        return sh_fail(SH_E_DATA, "open %s: %s", path, strerror(errno));
    return take(path, lock);
}

/* Creates a file like the later ones, so that a folder that cannot be written is noticed before the first step. */
static sh_rc try_to_write(const char *folder)
{
    char *path = sh_ckpt_folder_path(folder, 0), *temp = sh_output_temp_name(path);
    int fd;
    sh_rc rc = sh_file_create(temp, &fd);
    if (rc == SH_OK) {
        close(fd);
        unlink(temp);
    }
    free(path);
    free(temp);
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "checkpoint folder %s cannot be written: ", folder);
}

/* Rank 0. Free with sh_ckpt_unlock(), which also frees a lock that is not held. */
sh_rc sh_ckpt_lock(const char *folder, struct sh_ckpt_lock **out)
{
    SH_TRY(sh_mkdir_private(folder));
    SH_TRY(try_to_write(folder));
    struct sh_ckpt_lock *lock = sh_calloc(1, sizeof *lock);
    char *path = sh_strfmt("%s/.lock", folder);
    sh_rc rc = open_and_take(path, lock);
    free(path);
    if (rc == SH_OK)
        *out = lock;
    else
        sh_ckpt_unlock(lock);
    return rc;
}

bool sh_ckpt_lock_held(const struct sh_ckpt_lock *lock)
{
    return lock && lock->held;
}

/* Opens nothing: to close any other descriptor of the file would give the lock up. */
sh_rc sh_ckpt_lock_check(const struct sh_ckpt_lock *lock, const char *folder)
{
    struct stat mine, there;
    char *path;
    bool same;

    if (!sh_ckpt_lock_held(lock))
        return SH_OK;
    path = sh_strfmt("%s/.lock", folder);
    same = fstat(lock->fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_dev == there.st_dev &&
           mine.st_ino == there.st_ino;
    free(path);
    if (same)
        return SH_OK;
    return sh_fail(SH_E_COMM,
                   "%s/.lock has been replaced or removed: another start of this job may have taken this node for lost",
                   folder);
}

/* The file stays: deleting it would let a third job lock a new file while a second still waits at the old one. */
void sh_ckpt_unlock(struct sh_ckpt_lock *lock)
{
    if (!lock)
        return;
    if (lock->held && ftruncate(lock->fd, 0) != 0)
        sh_log_warn("checkpoint lock: %s", strerror(errno));
    if (lock->fd >= 0)
        close(lock->fd);
    free(lock);
}
