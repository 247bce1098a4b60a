/* The checkpoint folder: one for all nodes, writable, and large enough. */
#include "src/tools/doctor/doctor.h"

#include "io/file/file.h"
#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/plan/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* Network file systems show a new file to the other nodes with some delay. */
enum { TRIES = 50, PAUSE_NS = 100000000, NAMES = 400 };

/* Rank 0 makes the folders as training would, and puts a file into them. */
static sh_rc leave_mark(const struct sh_doctor *d, char *path)
{
    if (d->mesh->rank != 0)
        return SH_OK;
    SH_TRY(sh_mkdir_p(d->cfg->job.dump_folder)); /* with the modes that training gives them */
    SH_TRY(sh_mkdir_private(d->folder));
    return sh_write_file_atomic(path, path, strlen(path));
}

/* Waits up to five seconds. */
static bool sees(const char *path)
{
    for (int i = 0; i < TRIES; i++) {
        if (access(path, R_OK) == 0)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return false;
}

/* The name is unique to this job, so a folder of the same name on another file system cannot contain it. */
static char *mark_path(const struct sh_doctor *d)
{
    long long id = (long long)time(NULL) * 1000003 + getpid();
    char *name, *path;

    /* Rank 0's number, so that all ranks look for the same file. */
    if (sh_mesh_bcast(&id, sizeof id, 0) != SH_OK)
        sh_stop(SH_E_COMM);
    name = sh_strfmt(".doctor-%llx", id);
    path = sh_path_join(d->folder, name);
    free(name);
    return path;
}

/* Collective. A file made by rank 0 must be visible to the first rank of every node. */
sh_rc sh_doctor_folder(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    uint64_t *seen = sh_calloc((size_t)d->mesh->n_nodes, sizeof *seen);
    char *path = mark_path(d), names[NAMES];
    bool failed;
    sh_rc rc;

    SH_TRY_OUT(sh_doctor_any_failed(d, leave_mark(d, path), row, &failed));
    if (failed)
        goto out;
    SH_TRY_OUT(sh_doctor_of_nodes_u64(d, sh_doctor_leads(d) && sees(path), seen));
    if (sh_doctor_nodes_but(d, seen, true, NAMES, names))
        sh_doctor_bad(row, SH_E_DATA, "%s is not the same folder on %s; put job.dump_folder on a shared file system",
                      d->folder, names);
    else
        sh_doctor_good(row, "%s, one for all nodes", d->folder);
out:
    /* Also after a failure; if nothing was made, there is nothing to delete. */
    if (d->mesh->rank == 0)
        unlink(path);
    free(path);
    free(seen);
    return rc;
}

/* Space that is free for this user: f_bavail, not f_bfree, which includes root's reserve. */
static sh_rc free_bytes(const char *folder, double *bytes)
{
    struct statvfs fs;

    if (statvfs(folder, &fs) != 0)
        return sh_fail(SH_E_DATA, "%s: %s", folder, strerror(errno));
    *bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    return SH_OK;
}

/* Counts float32 parameters and two moments, for the checkpoints that are kept and the one being written. */
sh_rc sh_doctor_space(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    const struct sh_adapters adapters = sh_request_adapters(d->cfg);
    double one = 12.0 * (double)sh_model_trained(&d->cfg->model, &adapters), room = 0;
    int kept = d->cfg->checkpoint.keep_latest_k;
    char have[SH_STR_SHORT], want[SH_STR_SHORT];
    bool failed;

    SH_TRY(sh_doctor_any_failed(d, d->mesh->rank == 0 ? free_bytes(d->folder, &room) : SH_OK, row, &failed));
    if (failed)
        return SH_OK;
    SH_TRY(sh_mesh_bcast(&room, sizeof room, 0));
    sh_str_bytes((int64_t)room, have);
    sh_str_bytes((int64_t)one, want);
    /* Not even one fits: the first save would fail. */
    if (d->cfg->checkpoint.enable && room < one)
        sh_doctor_bad(row, SH_E_DATA, "%s free, but one checkpoint takes %s", have, want);
    else if (d->cfg->checkpoint.enable && room < one * (kept + 1))
        sh_doctor_note(row, "%s free: too little for %d checkpoints of %s each plus one more", have, kept, want);
    else
        sh_doctor_good(row, "%s free; a checkpoint takes %s", have, want);
    return SH_OK;
}
