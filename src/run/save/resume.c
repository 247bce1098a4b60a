/* What a run starts from. A damaged checkpoint is named, and the one before it is taken instead; if all are damaged,
 * the run is refused, because a fresh start would quietly throw away the training behind them. */
#include "src/run/run.h"

#include "io/file/outside.h"
#include "io/foreign/safetensors/write.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/run/kept/kept.h"
#include "src/run/save/frozen.h"
#include "src/run/save/newest.h"
#include "src/run/save/provenance.h"

#include <stdlib.h>

/* `never` still loads what initial_load_path names; it only ignores the run's own folder. */
static bool resumes(const struct sh_run *r)
{
    return r->cfg.checkpoint.resume != SH_RESUME_NEVER;
}

/* All ranks take what rank 0 has found: a folder may look different from another node for a moment. */
static sh_rc share_path(const struct sh_run *r, char **path)
{
    char buffer[SH_CONFIG_PATH_MAX * 2] = "";

    if (r->mesh->rank == 0 && *path)
        snprintf(buffer, sizeof buffer, "%s", *path);
    SH_TRY(sh_mesh_bcast(buffer, sizeof buffer, 0));
    free(*path);
    *path = buffer[0] ? sh_strdup(buffer) : NULL;
    return SH_OK;
}

/* Find the newest checkpoint of a step before `step`, on all ranks; *path is NULL if there is none. */
static sh_rc find(const struct sh_run *r, const char *folder, int64_t step, char **path)
{
    *path = NULL;
    SH_TRY(sh_agree(r->mesh->rank == 0 ? sh_ckpt_newest_before(folder, step, path) : SH_OK));
    return share_path(r, path);
}

/* `never` in a folder that holds checkpoints would mix two runs: the next start would continue from the older one. */
static sh_rc check_resume_key(const struct sh_run *r, const char *folder, const char *newest)
{
    const struct sh_config *cfg = &r->cfg;

    if (cfg->checkpoint.resume == SH_RESUME_MUST && !newest && !cfg->checkpoint.initial_load_path[0])
        return sh_fail(SH_E_DATA, "checkpoint.resume=must, but there is no checkpoint in %s", folder);
    if (cfg->checkpoint.resume == SH_RESUME_NEVER && cfg->checkpoint.enable && newest)
        return sh_fail(
            SH_E_USAGE,
            "checkpoint.resume=never, but %s belongs to another run; choose another job.dump_folder, or delete it",
            newest);
    return SH_OK;
}

/* Only a run that continues is compared with what the configuration says that it begins from. */
static sh_rc check_start(const struct sh_run *r, const char *folder, const char *newest)
{
    SH_TRY(check_resume_key(r, folder, newest));
    return newest && resumes(r) ? sh_provenance_check(r, folder) : SH_OK;
}

sh_rc sh_run_check_named(const struct sh_config *cfg)
{
    const char *named = cfg->checkpoint.initial_load_path;
    char *folder, *own = NULL;
    sh_rc rc;

    if (!named[0])
        return SH_OK;
    folder = sh_path_join(cfg->job.dump_folder, cfg->checkpoint.folder);
    rc = cfg->checkpoint.resume == SH_RESUME_NEVER ? SH_OK : sh_ckpt_newest(folder, &own);
    if (rc == SH_OK && !own)
        rc = sh_newest_exists(named);
    free(own);
    free(folder);
    return rc;
}

/* Refuse before anything is created in the folder. */
static sh_rc check_before_start(const struct sh_run *r, const char *folder)
{
    char *newest = NULL;
    sh_rc rc;

    SH_TRY(find(r, folder, INT64_MAX, &newest));
    rc = sh_agree(r->mesh->rank == 0 ? check_start(r, folder, newest) : SH_OK);
    free(newest);
    return rc;
}

/* Warn now, not when the next job of the chain wants to continue. */
static void warn_of_others(const struct sh_run *r, const char *folder)
{
    if (sh_ckpt_trusted(folder, r->cfg.checkpoint.trust) == SH_OK)
        return;
    sh_log_warn("a later start will not load the checkpoints of this one: %s", sh_error_text());
    sh_error_clear();
}

static sh_rc sweep(const char *folder, int *n)
{
    SH_TRY(sh_ckpt_sweep(folder, n));
    sh_st_writing_sweep(folder, "hf-", n);
    return SH_OK;
}

/* Whoever holds the lock is the only one to write here, so unfinished files belong to nobody any more. */
static sh_rc lock_and_sweep(struct sh_run *r, const char *folder)
{
    int n = 0;

    SH_TRY(sh_ckpt_lock(folder, &r->lock));
    warn_of_others(r, folder);
    if (sh_ckpt_lock_held(r->lock))
        SH_TRY(sweep(folder, &n));
    if (n > 0)
        sh_log_info("deleted %d unfinished checkpoint file%s of ended jobs from %s", n, n == 1 ? "" : "s", folder);
    return SH_OK;
}

/* The rank that knows the reason says it; the others have an empty text. */
static void say_skipped(void)
{
    if (sh_error_text()[0])
        sh_log_warn("checkpoint passed over: %s", sh_error_text());
    sh_error_clear();
}

/* Load *path, or the newest one before it that is whole. *path becomes the one that was loaded. Collective: `damaged`
 * and what find() returns are the same on all ranks. */
static sh_rc load_or_earlier(struct sh_run *r, const char *folder, char **path)
{
    bool damaged;
    sh_rc rc;

    while ((rc = sh_run_load(r, *path, &damaged)) == SH_E_DATA && damaged) {
        char *earlier;

        /* No earlier one: the error of the damaged one stands. */
        if (find(r, folder, sh_ckpt_step_of(*path), &earlier) != SH_OK || !earlier)
            return rc;
        say_skipped();
        free(*path);
        *path = earlier;
    }
    return rc;
}

/* A rollback loads once more, so there may be an older path. */
static void note_path(char **at, const char *path)
{
    free(*at);
    *at = sh_strdup(path);
}

/* Load the file that the configuration names. This is only for a folder without checkpoints: a job that is started
 * again resumes from its own. */
static sh_rc load_named(struct sh_run *r)
{
    char *path;
    sh_rc rc;

    SH_TRY(sh_newest_agree("checkpoint.initial_load_path", r->cfg.checkpoint.initial_load_path, &path));
    if (r->cfg.checkpoint.initial_load_model_only) {
        SH_TRY_OUT(sh_run_load_model(r, path));
        note_path(&r->parameters_from, path);
        sh_log_info("a new run with the parameters of %s", path);
    } else {
        SH_TRY_OUT(sh_run_load(r, path, NULL));
        note_path(&r->resumed_from, path);
        sh_log_info("resumed from %s at step %lld", path, (long long)r->step);
    }
    rc = sh_provenance_begin(r, path);
out:
    free(path);
    return rc;
}

/* States of an optimizer in the folder may be what the user is after. */
static void warn_of_states(const char *folder)
{
    if (sh_outside_states(folder) == SH_OK)
        return;
    sh_log_warn("%s", sh_error_text());
    sh_error_clear();
}

/* Without weights a run would begin with random ones, which nobody asked for. */
static sh_rc load_hf(struct sh_run *r)
{
    const char *folder = r->cfg.hf.assets_path;

    SH_TRY(sh_run_load_hf(r));
    if (r->mesh->rank == 0)
        warn_of_states(folder);
    note_path(&r->parameters_from, folder);
    sh_log_info("a new run with the parameters of %s", folder);
    return sh_provenance_begin(r, folder);
}

/* Load adapters that PEFT has saved. */
static sh_rc load_adapter(struct sh_run *r)
{
    SH_TRY(sh_run_load_adapter(r));
    note_path(&r->parameters_from, r->cfg.lora.adapter_path);
    sh_log_info("begins with the adapters of %s", r->cfg.lora.adapter_path);
    return sh_provenance_begin(r, r->cfg.lora.adapter_path);
}

/* Values that are drawn; those of a base are loaded already. */
static sh_rc draw(struct sh_run *r)
{
    SH_TRY(sh_frozen_any(r) ? sh_run_init_trained(r) : sh_run_init_state(r));
    return sh_provenance_begin(r, NULL);
}

/* Nothing will be left of such a run but its speed. */
static bool only_measures(const struct sh_run *r)
{
    const struct sh_config *cfg = &r->cfg;

    return !cfg->checkpoint.enable && !(cfg->hf.assets_path[0] && cfg->checkpoint.initial_load_in_hf) &&
           !cfg->checkpoint.initial_load_path[0];
}

static sh_rc load_base(struct sh_run *r)
{
    SH_TRY(sh_frozen_load(r, NULL, NULL));
    sh_log_info("a new run on the frozen parameters of %s", r->base.path);
    if (sh_provenance_of(r) == SH_FROM_VALUES)
        note_path(&r->parameters_from, r->base.path);
    return SH_OK;
}

/* First the base, if some parameters are frozen; then those that are trained. */
static sh_rc begin_anew(struct sh_run *r)
{
    static sh_rc (*const load[])(struct sh_run *) = {[SH_FROM_VALUES] = draw,
                                                     [SH_FROM_CHECKPOINT] = load_named,
                                                     [SH_FROM_FOLDER] = load_hf,
                                                     [SH_FROM_ADAPTER] = load_adapter};

    if (sh_frozen_any(r) && only_measures(r)) {
        sh_log_info("nothing names a model and nothing is saved: a new run of adapters on initial values");
        return sh_run_init_state(r);
    }
    if (sh_frozen_any(r))
        SH_TRY(load_base(r));
    return load[sh_provenance_of(r)](r);
}

/* Note the path that load_or_earlier() ended with. */
static sh_rc load_newest(struct sh_run *r, const char *folder, char **path)
{
    SH_TRY(load_or_earlier(r, folder, path));
    note_path(&r->resumed_from, *path);
    sh_log_info("resumed from %s at step %lld", *path, (long long)r->step);
    return SH_OK;
}

/* A generation in memory that is newer than the newest file comes before it. */
static sh_rc load_near(struct sh_run *r, const char *newest, bool *loaded)
{
    struct sh_ckpt_meta meta = {0};

    SH_TRY(sh_kept_load(r, newest ? sh_ckpt_step_of(newest) : -1, &meta, loaded));
    if (!*loaded)
        return SH_OK;
    r->has_mean = true;
    SH_TRY(sh_run_take(r, "the near checkpoint", &meta));
    r->unsaved = true;
    note_path(&r->resumed_from, SH_METRICS_FROM_MEMORY);
    sh_log_info("resumed from the near checkpoint of step %lld, in memory", (long long)r->step);
    return SH_OK;
}

/* With `own`, a checkpoint of the run's own folder comes first: a job that is started again must not start over; with
 * `near`, one in memory comes before it. */
sh_rc sh_run_load_start(struct sh_run *r, bool own, bool near)
{
    char *folder = sh_run_checkpoint_folder(r), *path = NULL;
    bool loaded = false;
    sh_rc rc = SH_OK;

    r->unsaved = r->has_mean = false;
    if (r->goes_on)
        path = sh_strdup(r->goes_on);
    else if (own)
        rc = find(r, folder, INT64_MAX, &path);
    if (rc == SH_OK && near)
        rc = load_near(r, path, &loaded);
    if (rc == SH_OK && loaded)
        rc = SH_OK;
    else if (rc == SH_OK && path)
        rc = load_newest(r, folder, &path);
    else if (rc == SH_OK)
        rc = begin_anew(r);
    if (rc == SH_OK)
        sh_run_begin_mean(r);
    free(path);
    free(folder);
    return rc;
}

/* Collective. First the refusals, then the lock, then the sweep of unfinished files, then the load: nothing is deleted
 * before it is known that the folder belongs to this run. */
sh_rc sh_run_start_state(struct sh_run *r)
{
    char *folder = sh_run_checkpoint_folder(r);
    sh_rc rc;

    SH_TRY_OUT(check_before_start(r, folder));
    if (r->cfg.checkpoint.enable)
        SH_TRY_OUT(sh_agree(r->mesh->rank == 0 ? lock_and_sweep(r, folder) : SH_OK));
    rc = sh_run_load_start(r, resumes(r), resumes(r));
out:
    free(folder);
    return rc;
}
