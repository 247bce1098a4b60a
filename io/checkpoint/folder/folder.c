#include "io/checkpoint/folder/folder.h"

#include "io/checkpoint/checkpoint.h"
#include "io/file/file.h"
#include "io/file/outside.h"
#include "src/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The step in a name like step-00001000.h5; -1 for all other files, unfinished ones included. */
static int64_t step_of_name(const char *name)
{
    /* strtoll() accepts more than it should, such as any number of leading zeros. Printing the step again and comparing
     * is the exact test. */
    char again[64];
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    errno = 0;
    long long step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08lld.h5", step);
    return errno == 0 && strcmp(again, name) == 0 ? step : -1;
}

/* Matches ".step-00001000.h5.<16 hex digits>.tmp", as made by sh_output_temp_name(), and the files that MPI-IO puts
 * next to such a file and leaves there when it is killed: Open MPI appends ".data.<rank>" and ".metadata.<rank>" to the
 * whole name. */
static bool is_unfinished(const char *name)
{
    char base[64];
    const char *end = name[0] == '.' ? strstr(name, ".h5.") : NULL; /* end of the step's name, except for its h5 */
    if (!end || end + 3 - name > (ptrdiff_t)sizeof base)
        return false;
    snprintf(base, sizeof base, "%.*s", (int)(end + 2 - name), name + 1);
    return step_of_name(base) >= 0 && strspn(end + 4, "0123456789abcdef") == 16 && strncmp(end + 20, ".tmp", 4) == 0;
}

/* Unfinished files have step -1 and come last. */
static int newest_first(const void *a, const void *b)
{
    const struct sh_ckpt_found *x = a, *y = b;
    return x->step != y->step ? (x->step < y->step) - (x->step > y->step) : strcmp(x->name, y->name);
}

/* Lists only Sherd's own files, newest first. The caller frees them with sh_ckpt_folder_free(). */
sh_rc sh_ckpt_folder_scan(const char *folder, struct sh_ckpt_folder *out)
{
    DIR *dir = opendir(folder);
    int cap = 0;
    if (!dir) {
        int why = errno;
        if (why == ENOTDIR)
            SH_TRY(sh_outside_refuse(folder));
        return sh_fail(SH_E_DATA, "checkpoint folder %s: %s", folder, strerror(why));
    }
    *out = (struct sh_ckpt_folder){0};
    for (struct dirent *d; (d = readdir(dir));) {
        int64_t step = step_of_name(d->d_name);
        if (step < 0 && !is_unfinished(d->d_name))
            continue;
        out->found = sh_grow(out->found, out->n, &cap, sizeof *out->found);
        out->found[out->n++] = (struct sh_ckpt_found){.name = sh_strdup(d->d_name), .step = step};
    }
    closedir(dir);
    if (out->n > 0)
        qsort(out->found, (size_t)out->n, sizeof *out->found, newest_first);
    return SH_OK;
}

void sh_ckpt_folder_free(struct sh_ckpt_folder *f)
{
    for (int i = 0; i < f->n; i++)
        free(f->found[i].name);
    free(f->found);
    *f = (struct sh_ckpt_folder){0};
}

char *sh_ckpt_folder_path(const char *folder, int64_t step)
{
    return sh_strfmt("%s/step-%08lld.h5", folder, (long long)step);
}

int64_t sh_ckpt_step_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return step_of_name(slash ? slash + 1 : path);
}

/* A folder that does not exist yet contains no checkpoint, which is not an error: the first job of a chain starts that
 * way. */
sh_rc sh_ckpt_newest_before(const char *folder, int64_t step, char **path)
{
    struct sh_ckpt_folder f = {0};
    *path = NULL;
    if (access(folder, F_OK) != 0 && errno == ENOENT)
        return SH_OK;
    SH_TRY(sh_ckpt_folder_scan(folder, &f));
    for (int i = 0; i < f.n && !*path; i++)
        if (f.found[i].step >= 0 && f.found[i].step < step)
            *path = sh_ckpt_folder_path(folder, f.found[i].step);
    sh_ckpt_folder_free(&f);
    return SH_OK;
}

sh_rc sh_ckpt_newest(const char *folder, char **path)
{
    return sh_ckpt_newest_before(folder, INT64_MAX, path);
}

/* The file is renamed before it is deleted: if the process is killed between the two, the rest is an unfinished file,
 * which the next sweep removes, and never half a checkpoint under its name. */
sh_rc sh_ckpt_folder_remove(const char *folder, const char *name)
{
    char *path = sh_strfmt("%s/%s", folder, name), *hidden = sh_output_temp_name(path);
    sh_rc rc = SH_OK;
    if (rename(path, hidden) != 0 || unlink(hidden) != 0)
        rc = sh_fail(SH_E_DATA, "delete %s: %s", path, strerror(errno));
    free(path);
    free(hidden);
    return rc;
}

/* Deletes the files of killed jobs. Only for the holder of the lock. */
sh_rc sh_ckpt_sweep(const char *folder, int *n)
{
    struct sh_ckpt_folder f;
    sh_rc rc = SH_OK;
    SH_TRY(sh_ckpt_folder_scan(folder, &f));
    *n = 0;
    for (int i = 0; i < f.n && rc == SH_OK; i++) {
        char *path = sh_strfmt("%s/%s", folder, f.found[i].name);
        if (f.found[i].step < 0 && unlink(path) != 0)
            rc = sh_fail(SH_E_DATA, "delete the unfinished %s: %s", path, strerror(errno));
        *n += f.found[i].step < 0;
        free(path);
    }
    sh_ckpt_folder_free(&f);
    return rc;
}
