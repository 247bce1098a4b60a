/* The last state of a run as a folder that transformers opens. */
#include "src/run/save/shards.h"

#include "io/foreign/hf/config/config.h"
#include "io/foreign/hf/export.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/run/run.h"
#include "src/run/save/snapshot.h"

#include <stdlib.h>
#include <unistd.h>

static char *folder_of(const struct sh_run *r, int64_t step)
{
    char *checkpoints = sh_run_checkpoint_folder(r), *folder = sh_strfmt("%s/hf-%08lld", checkpoints, (long long)step);

    free(checkpoints);
    return folder;
}

static bool wanted(const struct sh_run *r)
{
    return r->cfg.checkpoint.enable && r->cfg.checkpoint.last_save_in_hf;
}

/* Check before the first step, since the export is done after the last one: a name that is taken, or a model that
 * config.json cannot describe, would otherwise cost the whole run. */
sh_rc sh_run_can_save_hf(const struct sh_run *r)
{
    if (wanted(r))
        SH_TRY(sh_hf_config_can_write(&r->cfg));
    char *folder = folder_of(r, r->cfg.training.steps);
    bool there = wanted(r) && r->step < r->cfg.training.steps && access(folder, F_OK) == 0;
    sh_rc rc = there ? sh_fail(SH_E_USAGE,
                               "%s exists already, and the last save of this run would go there; move it away", folder)
                     : SH_OK;

    free(folder);
    return rc;
}

/* Export from a snapshot if one is planned anyway, as save_now() does. */
static sh_rc export(struct sh_run *r, const char *folder)
{
    char *tokenizer = sh_run_tokenizer_folder(r->cfg.hf.tokenizer, r->tokenizer);
    const struct sh_hf_export options = {.type = (enum sh_move_type)r->cfg.checkpoint.export_dtype,
                                         .max_shard_bytes = r->cfg.checkpoint.max_shard_size,
                                         .verify = r->cfg.checkpoint.verify,
                                         .timeout_seconds = r->cfg.checkpoint.timeout_seconds,
                                         .source = r->cfg.hf.assets_path,
                                         .kept = r->hf_config,
                                         .tokenizer = tokenizer};
    struct sh_shards p;
    sh_rc rc;

    sh_snapshot_now(r, &p);
    sh_shards_leave_states(&p);
    rc = sh_agree(sh_shards_borrow(&p));
    if (rc == SH_OK)
        rc = sh_hf_export(folder, &r->cfg, &p.set, &options);
    sh_shards_free(&p);
    free(tokenizer);
    return rc;
}

/* The folder gets its name when it is complete. */
bool sh_run_owes_hf(const struct sh_run *r)
{
    char *folder = folder_of(r, r->step);
    bool owes = wanted(r) && r->step == r->cfg.training.steps && access(folder, F_OK) != 0;

    free(folder);
    return owes;
}

/* Collective. Only at the last step, and only once: the folder is there when a finished job is started again. All ranks
 * take what rank 0 sees. */
sh_rc sh_run_save_hf(struct sh_run *r)
{
    char *folder = folder_of(r, r->step), *checkpoints = sh_run_checkpoint_folder(r);
    int64_t begin = sh_now_ns();
    bool owes = r->mesh->rank == 0 && sh_run_owes_hf(r);
    sh_rc rc;

    SH_TRY_OUT(sh_mesh_bcast(&owes, sizeof owes, 0));
    if (!owes)
        goto out;
    SH_TRY_OUT(sh_agree(sh_ckpt_lock_check(r->lock, checkpoints)));
    rc = export(r, folder);
    if (rc == SH_OK)
        sh_log_info("step %lld  saved %s for transformers (%.2f s)", (long long)r->step, folder,
                    sh_seconds_since(begin));
    else if (sh_error_text()[0])
        rc = sh_fail_prefix(rc, "the checkpoint is saved, but not in transformers' format: ");
out:
    free(folder);
    free(checkpoints);
    return rc;
}
