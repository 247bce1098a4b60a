/* Decides which checkpoints of a folder stay: the newest `latest`, each step that is a multiple of `every`, and all
 * from the good one on. Example with latest 2 and every 1000, after a save of step 2400, with a save every 200 steps:
 * 1000, 2000, 2200 and 2400 stay. */
#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/file/index.h"
#include "io/checkpoint/folder/folder.h"
#include "io/checkpoint/folder/misnamed.h"
#include "io/file/outside.h"
#include "src/base/mem.h"

#include <stdlib.h>

/* Checkpoints newer than `good` are left alone: this run did not write them, or they are damaged; who knows what they
 * are for. */
bool sh_ckpt_keeps(const struct sh_ckpt_keep *keep, int64_t step, int64_t good, int newer)
{
    return keep->latest == 0 || step >= good || newer < keep->latest || (keep->every > 0 && step % keep->every == 0);
}

/* `only_say` is a dry run. */
static sh_rc drop(const char *folder, const char *name, bool only_say, FILE *out)
{
    if (!only_say)
        SH_TRY(sh_ckpt_folder_remove(folder, name));
    if (out)
        fprintf(out, "%s %s/%s\n", only_say ? "would delete" : "deleted", folder, name);
    return SH_OK;
}

/* A file with another step's name may be the only one of its step, so nothing is inferred from its name. */
static bool is_misnamed(const char *folder, const struct sh_ckpt_found *c, FILE *out)
{
    char *path = sh_strfmt("%s/%s", folder, c->name);
    int64_t step;
    bool is = sh_ckpt_is_misnamed(path, c->step, &step);
    if (is && out)
        fprintf(out, "misnamed, left as it is: %s holds step %lld\n", path, (long long)step);
    free(path);
    return is;
}

/* The good checkpoint itself has just been read or written. Misnamed ones are neither counted nor deleted. */
static sh_rc apply(const char *folder, const struct sh_ckpt_folder *f, const struct sh_ckpt_keep *keep, int64_t good,
                   bool only_say, FILE *out)
{
    int newer = 0;
    for (int i = 0; i < f->n; i++) {
        const struct sh_ckpt_found *c = &f->found[i];
        if (c->step < 0 || c->step > good || (c->step < good && is_misnamed(folder, c, out)))
            continue;
        if (!sh_ckpt_keeps(keep, c->step, good, newer))
            SH_TRY(drop(folder, c->name, only_say, out));
        newer++;
    }
    return SH_OK;
}

/* Local, after a save: step `good` is the one just committed. */
sh_rc sh_ckpt_retain(const char *folder, const struct sh_ckpt_keep *keep, int64_t good)
{
    struct sh_ckpt_folder f;
    if (keep->latest == 0)
        return SH_OK;
    SH_TRY(sh_ckpt_folder_scan(folder, &f));
    sh_rc rc = apply(folder, &f, keep, good, false, NULL);
    sh_ckpt_folder_free(&f);
    return rc;
}

/* Finds the newest checkpoint whose data all matches its digests: nothing older is deleted before it is known. */
static sh_rc find_good(const char *folder, const struct sh_ckpt_folder *f, int64_t *good, FILE *out)
{
    for (int i = 0; i < f->n && f->found[i].step >= 0; i++) {
        char *path = sh_ckpt_folder_path(folder, f->found[i].step);
        sh_rc rc = sh_ckpt_check(path, false);
        free(path);
        if (rc == SH_OK) {
            *good = f->found[i].step;
            return SH_OK;
        }
        fprintf(out, "damaged, left as it is: %s\n", sh_error_text());
    }
    if (f->n == 0)
        SH_TRY(sh_outside_refuse(folder));
    return sh_fail(SH_E_DATA, "%s has no valid checkpoint: nothing is deleted", folder);
}

/* Called with the lock held, so that no job writes a newer one meanwhile. */
static sh_rc prune_locked(const char *folder, const struct sh_ckpt_keep *keep, bool only_say, FILE *out)
{
    struct sh_ckpt_folder f;
    int64_t good = 0;
    SH_TRY(sh_ckpt_folder_scan(folder, &f));
    sh_rc rc = find_good(folder, &f, &good, out);
    if (rc == SH_OK)
        rc = apply(folder, &f, keep, good, only_say, out);
    sh_ckpt_folder_free(&f);
    return rc;
}

/* Files that were never committed are remains of interrupted saves; with the lock held, no save can be running. */
static sh_rc sweep(const char *folder, FILE *out)
{
    int n;
    SH_TRY(sh_ckpt_sweep(folder, &n));
    if (n > 0)
        fprintf(out, "deleted %d unfinished file%s\n", n, n == 1 ? "" : "s");
    return SH_OK;
}

/* For a user, who may name any folder: all data of the newest is compared before an older one is deleted. */
sh_rc sh_ckpt_prune(const char *folder, const struct sh_ckpt_keep *keep, bool only_say, FILE *out)
{
    struct sh_ckpt_lock *lock = NULL;
    struct sh_ckpt_folder f;
    SH_TRY(sh_ckpt_folder_scan(folder, &f)); /* a folder that does not exist is not created */
    sh_ckpt_folder_free(&f);
    SH_TRY(sh_ckpt_lock(folder, &lock));
    sh_rc rc = prune_locked(folder, keep, only_say, out);
    if (rc == SH_OK && !only_say && sh_ckpt_lock_held(lock))
        rc = sweep(folder, out);
    sh_ckpt_unlock(lock);
    return rc;
}
