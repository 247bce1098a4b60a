/* Checkpoints of training: synchronous, or asynchronous from a copy that the plan has room for. */
#include "src/base/mem.h"

#include "src/base/time.h"
#include "src/run/run.h"
#include "src/run/save/frozen.h"
#include "src/run/save/shards.h"
#include "src/run/save/snapshot.h"
#include "src/run/save/stored.h"

#include <stdlib.h>

struct sh_run_async {
    struct sh_ckpt_async *save; /* NULL while the copy is under way */
    struct sh_shards pieces;
    struct sh_ckpt_meta meta;
    char *folder;
    struct sh_ckpt_times times;
    int64_t step, begin_ns, stall_ns;
};

/* The slowest rank decides how long the disks take. */
static sh_rc disk_seconds(const struct sh_ckpt_times *times, double *seconds)
{
    *seconds = times->seconds[SH_CKPT_WRITE] + times->seconds[SH_CKPT_SYNC];
    return sh_mesh_max(seconds, 1);
}

/* The options of a save, as the configuration says. */
static struct sh_ckpt_options options_of(const struct sh_run *r, struct sh_ckpt_times *times)
{
    return (struct sh_ckpt_options){
        .io_method = r->cfg.checkpoint.io,
        .hints = r->cfg.checkpoint.hints,
        .writers_per_node = r->cfg.checkpoint.writers_per_node,
        .ranks_per_node = r->cfg.mesh.ranks_per_node,
        .verify = r->cfg.checkpoint.verify,
        .timeout_seconds = r->cfg.checkpoint.timeout_seconds,
        .threads = r->threads,
        .times = times,
        .lock = r->lock,
        .keep = {.latest = r->cfg.checkpoint.keep_latest_k, .every = r->cfg.checkpoint.keep_every_n}};
}

static bool is_async(const struct sh_run *r)
{
    return r->cfg.checkpoint.async_mode == SH_ASYNC_ASYNC;
}

/* Only an asynchronous save can be impossible on a file system; find that out before the first step. The
 * snapshot's pages are touched here for the same reason. Collective. */
sh_rc sh_run_can_save(struct sh_run *r)
{
    struct sh_ckpt_options options = options_of(r, NULL);
    char *folder;
    sh_rc rc;

    if (!r->cfg.checkpoint.enable || !is_async(r))
        return SH_OK;
    folder = sh_run_checkpoint_folder(r);
    rc = sh_ckpt_async_check(folder, &options);
    free(folder);
    if (rc == SH_OK)
        sh_snapshot_touch(r);
    return rc;
}

static char *notes_of(const struct sh_run *r)
{
    char *tokenizer = sh_run_tokenizer_notes(r->tokenizer, r->hf_config, r->chat_template);
    char *origin = sh_provenance_notes(r);
    char *all = sh_strfmt("%s%s", tokenizer, origin);

    free(tokenizer);
    free(origin);
    return all;
}

sh_rc sh_run_describe(const struct sh_run *r, const char *guard, struct sh_ckpt_meta *meta)
{
    *meta = (struct sh_ckpt_meta){.step = r->step,
                                  .samples = r->samples,
                                  .tokens = r->tokens,
                                  .updates = r->updates,
                                  .base = sh_frozen_text(r),
                                  .guard = sh_strdup(guard)};
    SH_TRY(sh_agree(sh_stored_config(&r->cfg, sh_group_size(&r->mesh->shape, r->mesh->shape.data), &meta->config)));
    meta->notes = notes_of(r);
    return SH_OK;
}

/* The file is complete on return and training has waited for all of it, so stall equals seconds. Damage that storage
 * did to the checkpoint may not happen next time; what it did to the state is lost for good. */
static sh_rc save_now(struct sh_run *r, const struct sh_ckpt_meta *meta, struct sh_run_saved *out)
{
    struct sh_ckpt_times times;
    struct sh_ckpt_options options = options_of(r, &times);
    char *folder = sh_run_checkpoint_folder(r);
    int64_t begin = sh_now_ns();
    struct sh_shards p;
    char where[64];
    sh_rc rc;

    snprintf(where, sizeof where, "step %lld, save", (long long)r->step);
    sh_snapshot_now(r, &p);
    rc = sh_ckpt_save(folder, &p.set, meta, &options, &out->bytes);
    if (rc == SH_OK)
        out->path = sh_strfmt("%s/step-%08lld.h5", folder, (long long)r->step);
    else
        rc = sh_shards_failed(&p, rc, where, &out->lost);
    out->step = r->step;
    out->seconds = out->stall = sh_seconds_since(begin);
    sh_shards_free(&p);
    free(folder);
    return rc == SH_OK ? disk_seconds(&times, &out->disk_seconds) : rc;
}

/* Start writing once the copy is complete. */
static sh_rc begin_writing(struct sh_run *r)
{
    struct sh_run_async *b = r->async;
    struct sh_ckpt_options options = options_of(r, &b->times);

    sh_snapshot_wait(&b->pieces);
    return sh_ckpt_async_begin(b->folder, &b->pieces.set, &b->meta, &options, &b->save);
}

/* Takes over `meta`. From a GPU the copy travels alongside the next step, up to its update; the first poll starts to
 * write it. */
static sh_rc begin_async(struct sh_run *r, struct sh_ckpt_meta *meta)
{
    struct sh_run_async *b = r->async = sh_calloc(1, sizeof *b);

    b->begin_ns = sh_now_ns();
    b->step = r->step;
    b->folder = sh_run_checkpoint_folder(r);
    sh_shards_make(r, SH_SHARDS_SNAPSHOT, &b->pieces);
    b->meta = *meta;
    *meta = (struct sh_ckpt_meta){0};
    sh_snapshot_copy(&b->pieces);
    if (!r->device->gpu)
        SH_TRY(begin_writing(r));
    b->stall_ns = sh_now_ns() - b->begin_ns;
    return SH_OK;
}

/* One save at a time: the plan has room for one snapshot. */
sh_rc sh_run_save(struct sh_run *r, const char *guard, struct sh_run_saved *out)
{
    struct sh_ckpt_meta meta;
    sh_rc rc;

    *out = (struct sh_run_saved){0};
    SH_REQUIRE(!r->async);
    SH_TRY_OUT(sh_run_describe(r, guard, &meta));
    rc = is_async(r) ? begin_async(r, &meta) : save_now(r, &meta, out);
out:
    sh_ckpt_meta_free(&meta);
    return rc;
}

bool sh_run_is_saving(const struct sh_run *r)
{
    return r->async != NULL;
}

/* Collective. Also starts to write a snapshot that has left the GPU meanwhile. With `wait` it returns only when the
 * file is committed; *out is empty until then. */
sh_rc sh_run_save_poll(struct sh_run *r, bool wait, struct sh_run_saved *out)
{
    struct sh_run_async *b = r->async;
    int64_t begin = sh_now_ns(), now;
    bool done;

    *out = (struct sh_run_saved){0};
    if (!b->save)
        SH_TRY(begin_writing(r));
    SH_TRY(sh_ckpt_async_poll(b->save, wait, &done, &out->bytes));
    now = sh_now_ns();
    b->stall_ns += now - begin;
    if (!done)
        return SH_OK;
    sh_ckpt_async_end(b->save); /* the times are complete now */
    b->save = NULL;
    SH_TRY(disk_seconds(&b->times, &out->disk_seconds));
    out->path = sh_strfmt("%s/step-%08lld.h5", b->folder, (long long)b->step);
    out->step = b->step;
    out->seconds = (double)(now - b->begin_ns) / 1e9;
    out->stall = (double)b->stall_ns / 1e9;
    sh_run_save_abandon(r);
    return SH_OK;
}

/* Joins the thread first, because it reads the pieces that are freed here. A file that is not committed is deleted. */
void sh_run_save_abandon(struct sh_run *r)
{
    struct sh_run_async *b = r->async;

    if (!b)
        return;
    sh_ckpt_async_end(b->save);
    sh_shards_free(&b->pieces);
    sh_ckpt_meta_free(&b->meta);
    free(b->folder);
    free(b);
    r->async = NULL;
}
