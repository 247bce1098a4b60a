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
#include <unistd.h>

/* The lock is fcntl's: the kernel releases it when its process dies, however that happens, and the network file systems
 * of clusters pass it on between nodes. The text in the file only says who the holder is. */
struct sh_ckpt_lock {
    int fd;
    bool held;
};

enum { OWNER_MAX = 256 };

static sh_rc refuse(int fd, const char *path)
{
    char owner[OWNER_MAX] = "";
    ssize_t n = pread(fd, owner, sizeof owner - 1, 0);
    owner[n > 0 ? n : 0] = '\0';
    owner[strcspn(owner, "\n")] = '\0';
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

/* Replaces the text by this process; only the holder of the lock writes. */
static sh_rc sign(int fd, const char *path)
{
    char host[64] = "", owner[OWNER_MAX];
    gethostname(host, sizeof host - 1);
    int n = snprintf(owner, sizeof owner, "host %s, process %ld, batch job %.100s\n", host, (long)getpid(), job_id());
    if (ftruncate(fd, 0) != 0)
        return sh_fail(SH_E_DATA, "%s: %s", path, strerror(errno));
    return sh_file_write(fd, path, owner, n, 0);
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
        return refuse(lock->fd, path);
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
