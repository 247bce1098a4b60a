#include "src/run/save/frozen.h"

#include "io/foreign/hf/adapter.h"
#include "io/foreign/hf/load.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/number/mixsum.h"
#include "src/program/saved.h"
#include "src/run/run.h"
#include "src/run/save/map.h"
#include "src/run/save/newest.h"
#include "src/run/save/shards.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1 << 16 };

bool sh_frozen_any(const struct sh_run *r)
{
    for (int i = 0; i < r->p->n_units; i++)
        if (!r->p->units[i].trainable)
            return true;
    return false;
}

bool sh_frozen_exports_adapters(const struct sh_run *r)
{
    return sh_hf_adapter_fits(&r->cfg);
}

/* ---- sums ---- */

/* Sum elements [from, from + n) of a parameter, which are in memory. */
static uint64_t sum_runs(const struct sh_run *r, const struct sh_param *param, int64_t from, int64_t n, float *data)
{
    struct sh_rng_runs run;
    uint64_t sum = 0;

    for (int64_t at = 0; at < n; at += run.n) {
        run = sh_saved_run(r->p, param, from + at, n - at);
        sum += sh_mixsum((struct sh_floats){.whole = data + at}, run.n,
                         sh_ckpt_base_place(sh_saved_of(r->p, param)->name, run.first));
    }
    return sum;
}

/* The same for elements that lie at `data`. The sums of the parts add up to the same on any mesh. */
static uint64_t sum_of(const struct sh_run *r, const struct sh_param *param, int64_t from, int64_t n,
                       struct sh_floats data)
{
    uint64_t sum = 0;

#pragma omp parallel reduction(+ : sum) if (!r->device->gpu)
    {
        float *buffer = sh_calloc(BLOCK, sizeof *buffer);

#pragma omp for schedule(static)
        for (int64_t at = 0; at < n; at += BLOCK) {
            int64_t here = n - at < BLOCK ? n - at : BLOCK;

            sh_exec_get_floats(r->exec, buffer, sh_floats_at(data, at), here);
            sum += sum_runs(r, param, from + at, here, buffer);
        }
        free(buffer);
    }
    return sum;
}

/* Sum what this rank holds, or with `share` only its share of what its replicas hold too. */
static uint64_t sum_here(const struct sh_run *r, bool share)
{
    uint64_t sum = 0;

    for (int i = 0; i < r->p->n_params; i++) {
        const struct sh_param *param = &r->p->params[i];
        const struct sh_map_unit *m = &r->map->unit[param->unit];
        struct sh_range mine = sh_map_cut(share ? m->written : m->owned, param);

        if (!param->trainable && mine.begin < mine.end)
            sum += sum_of(r, param, mine.begin - param->unit_elems, mine.end - mine.begin,
                          sh_map_state(r->map, param->unit, SH_CKPT_MODEL, mine.begin));
    }
    return sum;
}

/* Add integers modulo 2^64: the sum is the same in any order. In two halves, because a sum of int64 must not
 * overflow. */
static sh_rc sum_over_ranks(uint64_t mine, uint64_t *all)
{
    long long halves[] = {(long long)(mine & UINT32_MAX), (long long)(mine >> 32)};

    SH_TRY(sh_mesh_sum_i64(halves, 2));
    *all = (uint64_t)halves[0] + ((uint64_t)halves[1] << 32);
    return SH_OK;
}

/* ---- the text in a checkpoint ---- */

char *sh_frozen_text(const struct sh_run *r)
{
    return r->base.there ? sh_ckpt_base_text(r->base.sum, r->base.path) : sh_strdup("");
}

/* ---- loading ---- */

/* Whoever reads a checkpoint compares all of its bits, but frozen parameters in bfloat16 or packed keep only some of
 * them. So ranks do not hand these on to each other. */
static sh_rc load_checkpoint(const struct sh_run *r, const char *path, const struct sh_shards *s)
{
    struct sh_ckpt_load_options options = sh_shards_options(r);
    struct sh_ckpt_load_report report;
    struct sh_ckpt_meta meta = {0};

    options.share = options.share && r->p->act == SH_F32 && !r->build.packed;
    sh_mesh_own_mpi();
    SH_TRY(sh_ckpt_load(path, &s->set, &options, &meta, &report));
    sh_ckpt_meta_free(&meta);
    return SH_OK;
}

static sh_rc load_folder(struct sh_run *r, const char *path, const struct sh_shards *s)
{
    const struct sh_ckpt_load_options options = sh_shards_options(r);
    char *family;
    sh_rc rc;

    SH_TRY(sh_config_get(&r->cfg, "model.family", &family));
    rc = sh_hf_load(path, family, &s->set, &options, &r->base.lacks_labels);
    free(family);
    return rc;
}

/* Load the folder of a model (hf), or a checkpoint file. */
static sh_rc load_from(struct sh_run *r, const char *path, bool hf)
{
    struct sh_shards s;
    sh_rc rc;

    sh_shards_make(r, SH_SHARDS_BASE, &s);
    rc = hf ? load_folder(r, path, &s) : load_checkpoint(r, path, &s);
    if (rc == SH_OK)
        sh_shards_put(&s);
    sh_shards_free(&s);
    return rc;
}

/* Follow all links, so that a start in another folder finds the path too. All ranks take rank 0's. */
static sh_rc full_path(const struct sh_run *r, char **path)
{
    char full[PATH_MAX] = "";

    if (r->mesh->rank == 0 && !realpath(*path, full))
        snprintf(full, sizeof full, "%s", *path);
    SH_TRY(sh_mesh_bcast(full, sizeof full, 0));
    free(*path);
    *path = sh_strdup(full);
    return SH_OK;
}

/* Whether it is a folder of a model, as rank 0 sees it. */
static sh_rc look_at(const struct sh_run *r, const char *path, bool *hf)
{
    *hf = r->mesh->rank == 0 && sh_is_folder(path);
    return sh_mesh_bcast(hf, sizeof *hf, 0);
}

/* Choose where the base is loaded from; *path is freed with free(). */
static sh_rc find_source(const struct sh_run *r, const char *of, const char *noted, char **path, bool *hf)
{
    *hf = r->cfg.hf.assets_path[0] && r->cfg.checkpoint.initial_load_in_hf;
    if (*hf)
        *path = sh_strdup(r->cfg.hf.assets_path);
    else if (r->cfg.checkpoint.initial_load_path[0])
        SH_TRY(sh_newest_agree("checkpoint.initial_load_path", r->cfg.checkpoint.initial_load_path, path));
    else if (noted && noted[0]) {
        *path = sh_strdup(noted);
        SH_TRY(look_at(r, *path, hf));
    } else if (of)
        return sh_fail(SH_E_USAGE, "%s does not name its base; give model.hf_assets_path", of);
    else
        return sh_fail(SH_E_USAGE, "lora.rank trains adapters on an existing model: give model.hf_assets_path, or "
                                   "checkpoint.initial_load_path with a checkpoint of the whole model");
    return full_path(r, path);
}

static sh_rc load(struct sh_run *r, const char *of, const char *noted)
{
    char *path = NULL;
    bool hf;
    sh_rc rc;

    SH_TRY_OUT(sh_agree(find_source(r, of, noted, &path, &hf)));
    rc = load_from(r, path, hf);
    if (rc != SH_OK && sh_error_text()[0])
        rc = sh_fail_prefix(rc, "the frozen parameters: ");
    SH_TRY_OUT(rc);
    SH_TRY_OUT(sum_over_ranks(sum_here(r, true), &r->base.sum));
    r->base.here = sum_here(r, false);
    r->base.path = path;
    r->base.there = true;
    return SH_OK;
out:
    free(path);
    return rc;
}

sh_rc sh_frozen_load(struct sh_run *r, const char *of, const char *text)
{
    char *noted = NULL;
    uint64_t sum = 0;
    sh_rc rc = SH_OK;

    if (!sh_frozen_any(r))
        return SH_OK;
    if (text && text[0])
        SH_TRY(sh_ckpt_base_read(of, text, &sum, &noted));
    if (!r->base.there)
        SH_TRY_OUT(load(r, of, noted));
    if (noted && sum != r->base.sum)
        rc = sh_agree(
            r->mesh->rank == 0
                ? sh_fail(SH_E_DATA,
                          "%s was trained on the parameters that were in %s; those in %s%s are different, read "
                          "as %s; another training.mixed_precision_param or lora.quantize_base changes them, "
                          "too",
                          of, noted, r->base.path, strcmp(noted, r->base.path) ? "" : " now",
                          r->build.packed        ? "nf4"
                          : r->p->act == SH_F32  ? "float32"
                          : r->p->act == SH_BF16 ? "bfloat16"
                                                 : "float16")
                : SH_OK);
out:
    free(noted);
    return rc;
}

/* A save reads and writes far more. */
bool sh_frozen_changed(const struct sh_run *r)
{
    return r->base.there && sum_here(r, false) != r->base.here;
}

sh_rc sh_frozen_check(const struct sh_run *r, bool changed)
{
    if (!r->base.there)
        return SH_OK;
    return sh_agree(
        changed ? sh_fail(SH_E_REPLICA,
                          "step %lld: the frozen parameters of rank %d on %s differ from what was loaded; memory or a "
                          "processor has failed silently: leave that node out and continue from the newest checkpoint",
                          (long long)r->step, r->mesh->rank, r->mesh->host)
                : SH_OK);
}
