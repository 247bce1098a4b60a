/* Parameters and optimizer state: initial values, or those of a checkpoint. */
#include "src/run/save/shards.h"

#include "src/optim/groups.h"
#include "src/optim/optim.h"
#include "src/optim/update.h"
#include "src/run/run.h"
#include "src/run/save/frozen.h"
#include "src/run/save/map.h"
#include "src/run/save/stored.h"

#include "io/foreign/hf/load.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/number/rng.h"
#include "src/layout/layout.h"
#include "src/program/saved.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 }; /* elements copied at a time */

/* In pieces, because a parameter may be larger than what the host has left. `buffer` has PIECE elements. */
static void put_constant(struct sh_run *r, float value, struct sh_floats out, int64_t n, float *buffer)
{
    for (int64_t i = 0; i < PIECE; i++)
        buffer[i] = value;
    for (int64_t at = 0; at < n; at += PIECE)
        sh_exec_put_floats(r->exec, sh_floats_at(out, at), buffer, n - at < PIECE ? n - at : PIECE);
}

/* Draw values on the host, not where they are stored: they are few, or are not stored as drawn. */
static void put_drawn(struct sh_run *r, const struct sh_saved *s, int64_t first, int64_t n, struct sh_floats out,
                      float *buffer)
{
    uint64_t key = sh_rng_key(r->cfg.debug.seed, s->name);

    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t here = n - at < PIECE ? n - at : PIECE;

        (s->init == SH_INIT_NORMAL ? sh_rng_fill_normal : sh_rng_fill_uniform)(key, first + at, here, s->init_std,
                                                                               buffer);
        sh_exec_put_floats(r->exec, sh_floats_at(out, at), buffer, here);
    }
}

/* Normal values are made where they are stored. */
static void put_runs(struct sh_run *r, const struct sh_saved *s, struct sh_rng_runs runs, struct sh_floats out,
                     float *buffer)
{
    if (s->init == SH_INIT_NORMAL && !out.packed)
        sh_exec_fill_normal(r->exec, out, sh_rng_key(r->cfg.debug.seed, s->name), runs, s->init_std);
    else
        for (int64_t i = 0; i < runs.count; i++)
            put_drawn(r, s, runs.first + i * runs.stride, runs.n, sh_floats_at(out, i * runs.n), buffer);
}

/* `mine`: elements of the unit, which lie at `out`. */
static void init_stretch(struct sh_run *r, const struct sh_param *param, struct sh_range mine, struct sh_floats out,
                         float *buffer)
{
    const struct sh_saved *s = sh_saved_of(r->p, param);
    int64_t n = mine.end - mine.begin;
    struct sh_rng_runs runs;

    if (s->init == SH_INIT_ZERO || s->init == SH_INIT_ONE) {
        put_constant(r, s->init == SH_INIT_ONE ? 1 : 0, out, n, buffer);
        return;
    }
    for (int64_t at = 0; at < n; at += runs.n * runs.count) {
        runs = sh_saved_run(r->p, param, mine.begin - param->unit_elems + at, n - at);
        put_runs(r, s, runs, sh_floats_at(out, at), buffer);
    }
}

/* The initial values of one parameter. */
struct init {
    struct sh_run *r;
    const struct sh_param *param;
    float *buffer;
};

static void init_look(const struct sh_map_stretch *s, void *arg)
{
    const struct init *i = arg;

    init_stretch(i->r, i->param, s->range, s->state[SH_CKPT_MODEL], i->buffer);
}

static sh_rc init_param(struct sh_run *r, const struct sh_param *param, float *buffer)
{
    struct init i = {.r = r, .param = param, .buffer = buffer};
    struct sh_range mine = sh_map_cut(r->map->unit[param->unit].owned, param);

    return sh_map_visit(r, param->unit, mine, 1u << SH_CKPT_MODEL, true, init_look, &i);
}

/* A matrix of labels that is trained beside adapters, once the base is loaded. */
static bool begins_with_base(const struct sh_run *r, const struct sh_param *param)
{
    return r->base.there && !r->base.lacks_labels && param->trainable &&
           sh_saved_of(r->p, param)->role == SH_PARAM_HEAD;
}

static sh_rc init_params(struct sh_run *r, bool frozen)
{
    float *buffer = sh_calloc(PIECE, sizeof *buffer);
    sh_rc rc = SH_OK;

    for (int i = 0; i < r->p->n_params && rc == SH_OK; i++)
        if (r->p->params[i].trainable != frozen && !begins_with_base(r, &r->p->params[i]))
            rc = init_param(r, &r->p->params[i], buffer);
    free(buffer);
    return rc;
}

/* Initial values are a function of seed, name and index, so that no rank has to send them. The INIT section then
 * derives what else the program keeps, such as compute copies. */
sh_rc sh_run_init_state(struct sh_run *r)
{
    SH_TRY(sh_agree(init_params(r, true)));
    return sh_run_init_trained(r);
}

sh_rc sh_run_init_trained(struct sh_run *r)
{
    SH_TRY(sh_agree(init_params(r, false)));
    sh_exec_run(r->exec, SH_SECTION_INIT);
    return SH_OK;
}

/* Of the output matrix alone. */
static sh_rc init_head(struct sh_run *r)
{
    float *buffer = sh_calloc(PIECE, sizeof *buffer);
    sh_rc rc = SH_OK;

    for (int i = 0; i < r->p->n_params && rc == SH_OK; i++)
        if (sh_saved_of(r->p, &r->p->params[i])->role == SH_PARAM_HEAD)
            rc = init_param(r, &r->p->params[i], buffer);
    free(buffer);
    return rc;
}

/* Of one stretch; `buffer` has PIECE elements. */
static void begin_mean(const struct sh_map_stretch *s, void *arg)
{
    const struct init *i = arg;
    struct sh_floats mean = s->state[i->r->map->n_states - 1];

    for (int64_t at = 0, n = s->range.end - s->range.begin; at < n; at += PIECE) {
        int64_t here = n - at < PIECE ? n - at : PIECE;

        sh_exec_get_floats(i->r->exec, i->buffer, sh_floats_at(s->state[SH_CKPT_MODEL], at), here);
        sh_exec_put_floats(i->r->exec, sh_floats_at(mean, at), i->buffer, here);
    }
}

void sh_run_begin_mean(struct sh_run *r)
{
    struct init i = {.r = r};

    if (r->has_mean || r->p->n_states == r->p->n_optim_states)
        return;
    i.buffer = sh_calloc(PIECE, sizeof *i.buffer);
    sh_map_visit_all(r, true, begin_mean, &i);
    free(i.buffer);
    if (r->step > 0)
        sh_log_info("optimizer.ema_decay: no average was saved, so it begins with the parameters of step %lld",
                    (long long)r->step);
}

static void swap_mean(const struct sh_map_stretch *s, void *arg)
{
    const struct init *i = arg;
    struct sh_floats mean = s->state[i->r->map->n_states - 1], model = s->state[SH_CKPT_MODEL];
    float *values = i->buffer, *means = i->buffer + PIECE;

    for (int64_t at = 0, n = sh_floats_none(mean) ? 0 : s->range.end - s->range.begin; at < n; at += PIECE) {
        int64_t here = n - at < PIECE ? n - at : PIECE;

        sh_exec_get_floats(i->r->exec, values, sh_floats_at(model, at), here);
        sh_exec_get_floats(i->r->exec, means, sh_floats_at(mean, at), here);
        sh_exec_put_floats(i->r->exec, sh_floats_at(model, at), means, here);
        sh_exec_put_floats(i->r->exec, sh_floats_at(mean, at), values, here);
    }
}

/* Ranks of a node may read each other's chunks in place: all have written theirs before any goes on. A save in the
 * background has its own copies as soon as these are made. */
void sh_run_swap_mean(struct sh_run *r)
{
    struct init i = {.r = r, .buffer = sh_calloc(2 * PIECE, sizeof *i.buffer)};

    sh_exec_settle(r->exec);
    sh_exec_copies_wait(r->exec);
    sh_map_visit_all(r, true, swap_mean, &i);
    free(i.buffer);
    sh_mesh_barrier();
    sh_exec_run(r->exec, SH_SECTION_INIT);
}

char *sh_run_checkpoint_folder(const struct sh_run *r)
{
    return sh_path_join(r->folder, r->cfg.checkpoint.folder);
}

/* Of another program's run `sherd ckpt import` knows the model and, from a state folder, the numbers of AdamW. The other
 * keys have defaults, which were nobody's choice: this run changes nothing by its own. */
static void keep_known(const struct sh_config *now, bool moments, struct sh_config *then)
{
    struct sh_config *known = sh_calloc(1, sizeof *known);

    *known = *now;
    known->model = then->model;
    if (moments)
        known->optimizer = then->optimizer;
    *then = *known;
    free(known);
}

/* Keep the checkpoint's own configuration for what training has to say about the change; an unreadable one counts as
 * none. */
static void compare_config(struct sh_run *r, const char *path, const struct sh_ckpt_meta *meta)
{
    struct sh_config *then;

    if (r->mesh->rank != 0)
        return;
    then = sh_calloc(1, sizeof *then);
    free(r->before);
    r->before = NULL;
    if (sh_config_parse(meta->config, strlen(meta->config), path, 0, NULL, then) == SH_OK) {
        /* What an evaluation reads is its task, and no change of the run. */
        if (!r->build.options.training)
            memcpy(then->validation.dataset_path, r->cfg.validation.dataset_path, sizeof then->validation.dataset_path);
        if (then->data.token_weight == SH_MASK_AUTO) /* a run settles it, and older builds had no weights */
            then->data.token_weight = SH_MASK_OFF;
        if (sh_provenance_outside(meta))
            keep_known(&r->cfg, meta->updates > 0, then);
        sh_stored_diff(then, &r->cfg, sh_group_size(&r->mesh->shape, r->mesh->shape.data));
        r->before = then;
    } else {
        free(then);
    }
    sh_error_clear();
}

/* The file is whole, or it would not have been loaded; its neighbours may have been saved without verification too. */
static void say_unverified(const char *path, const struct sh_ckpt_meta *meta)
{
    const char *verified = sh_ckpt_verified(meta);

    if (verified && strcmp(verified, sh_ckpt_verify_name[SH_VERIFY_OFF]) == 0)
        sh_log_info("%s was saved with checkpoint.verify=off: never read back before now", path);
}

/* Read into the pieces of a load. With model_only only the first state is asked for, and the optimizer's stay zero. */
static sh_rc read_file(struct sh_run *r, const char *path, bool model_only, struct sh_ckpt_meta *meta, bool *damaged)
{
    struct sh_ckpt_load_options options = sh_shards_options(r);
    struct sh_ckpt_load_report report;
    char *where = sh_strfmt("load %s", path);
    struct sh_shards s;
    bool home = false, based = r->base.there;
    sh_rc rc;

    options.share = options.share && !r->p->n_slices;
    sh_shards_make(r, SH_SHARDS_LOAD, &s);
    s.set.may_lack = r->p->n_states > r->p->n_optim_states;
    if (r->of_state)
        snprintf(s.set.states.name[SH_CKPT_MODEL], sizeof s.set.states.name[0], "%s", r->of_state);
    if (model_only) {
        sh_shards_leave_states(&s);
        s.set.may_lack = false;
    }
    sh_mesh_own_mpi();
    rc = sh_ckpt_load(path, &s.set, &options, meta, &report);
    if (rc == SH_OK) {
        sh_shards_put(&s);
        r->has_mean = s.set.may_lack && !report.lacks;
        say_unverified(path, meta);
    } else {
        rc = sh_shards_failed(&s, rc, where, &home);
    }
    sh_shards_free(&s);
    free(where);
    /* If a home in a lower tier takes no state, that says nothing about the file: an earlier one would not help. */
    if (damaged)
        *damaged = report.damaged && !home;
    if (rc == SH_OK) {
        rc = sh_frozen_load(r, path, meta->base);
        if (rc != SH_OK)
            sh_ckpt_meta_free(meta);
    }
    if (rc != SH_OK || based || !r->base.there || !r->cfg.model.num_labels)
        return rc;
    /* The base has just brought its own matrix of labels, in place of that of the file. */
    sh_ckpt_meta_free(meta);
    return read_file(r, path, model_only, meta, damaged);
}

/* Whether AdamW had other matrices by the groups of then. These would lack a state, or have an old one. */
static bool moves_matrices(const struct sh_program *p, const char *then)
{
    struct sh_program was = {.n_saved = p->n_saved};
    bool moves;

    was.saved = sh_calloc((size_t)p->n_saved + 1, sizeof *was.saved);
    for (int i = 0; i < p->n_saved; i++) {
        was.saved[i] = p->saved[i];
        was.saved[i].group = 0;
    }
    moves = sh_groups_assign(&was, NULL, then) != SH_OK;
    for (int i = 0; i < p->n_saved && !moves; i++)
        moves = sh_optim_takes(&was, SH_RUNS_MATRICES, &was.saved[i]) !=
                sh_optim_takes(p, SH_RUNS_MATRICES, &p->saved[i]);
    free(was.saved);
    free(was.numbers);
    return moves;
}

static sh_rc check_groups(const struct sh_run *r, const char *path, const char *then)
{
    if (!sh_cfg_is_muon(r->cfg.optimizer.name) || !moves_matrices(r->p, then))
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "%s has states by other optimizer.groups, which say which matrices AdamW updates; give "
                   "--optimizer.groups='%s', or start a new run from its parameters",
                   path, then);
}

/* All ranks have read the same meta data. */
static sh_rc check_optimizer(const struct sh_run *r, const char *path, const struct sh_ckpt_meta *meta)
{
    const char *was, *is = sh_optim_of(r->cfg.optimizer.name)->name;
    bool by_groups = strstr(r->cfg.optimizer.groups, "muon") != NULL;
    struct sh_config then;

    if (!r->build.options.training ||
        sh_config_parse(meta->config, strlen(meta->config), path, 0, NULL, &then) != SH_OK)
        return SH_OK;
    was = sh_optim_of(then.optimizer.name)->name;
    if (was == is)
        return check_groups(r, path, then.optimizer.groups);
    return sh_fail(
        SH_E_USAGE,
        "%s has the state of %s, from which %s cannot continue; give --optimizer.name=%s%s, or start a new run from its "
        "parameters: --checkpoint.initial_load_path and --checkpoint.initial_load_model_only=true in another folder",
        path, was, is, was, by_groups ? " and no group by muon" : "");
}

/* Collective, after a load that failed, with what to report: that the file is another optimizer's, if it is, and not the
 * first state that it lacks; else the error of the load, once more. */
static sh_rc blame_optimizer(const struct sh_run *r, const char *path, sh_rc failed)
{
    char *text = sh_strdup(sh_error_text());
    struct sh_ckpt_meta meta = {0};
    sh_rc rc = sh_ckpt_read_meta(path, &meta);

    rc = sh_agree(rc == SH_OK ? check_optimizer(r, path, &meta) : SH_OK);
    if (rc == SH_OK)
        rc = text[0] ? sh_fail(failed, "%s", text) : failed;
    sh_ckpt_meta_free(&meta);
    free(text);
    return rc;
}

sh_rc sh_run_take(struct sh_run *r, const char *where, struct sh_ckpt_meta *meta)
{
    sh_rc rc = check_optimizer(r, where, meta);

    if (rc == SH_OK)
        rc = sh_provenance_plugins(r, where, meta);
    rc = sh_agree(rc);
    if (rc != SH_OK) {
        sh_ckpt_meta_free(meta);
        return rc;
    }
    r->step = meta->step;
    r->samples = meta->samples;
    r->tokens = meta->tokens;
    r->updates = meta->updates;
    free(r->guard);
    r->guard = sh_strdup(meta->guard ? meta->guard : "");
    sh_run_tokenizer_take(r, meta, false);
    sh_provenance_take(r, meta);
    compare_config(r, where, meta);
    sh_ckpt_meta_free(meta);
    sh_exec_run(r->exec, SH_SECTION_INIT);
    return SH_OK;
}

sh_rc sh_run_load(struct sh_run *r, const char *path, bool *damaged)
{
    struct sh_ckpt_meta meta = {0};
    sh_rc rc = read_file(r, path, false, &meta, damaged);

    if (rc == SH_OK)
        return sh_run_take(r, path, &meta);
    return rc == SH_E_DATA && damaged && !*damaged ? blame_optimizer(r, path, rc) : rc;
}

/* Load parameters, or the adapters upon them, from a folder in Hugging Face's layout. Counters stay at 0: it is a new
 * run. */
static sh_rc load_folder(struct sh_run *r, bool adapter)
{
    const struct sh_ckpt_load_options options = sh_shards_options(r);
    struct sh_shards s;
    bool lacks_labels = false;
    char *family;
    sh_rc rc;

    SH_TRY(sh_config_get(&r->cfg, "model.family", &family));
    sh_shards_make(r, SH_SHARDS_LOAD, &s);
    sh_shards_leave_states(&s);
    rc = sh_agree(sh_shards_borrow(&s));
    if (rc == SH_OK)
        rc = adapter ? sh_hf_load_adapter(r->cfg.lora.adapter_path, &r->cfg, &s.set, &options)
                     : sh_hf_load(r->cfg.hf.assets_path, family, &s.set, &options,
                                  r->build.options.training ? &lacks_labels : NULL);
    if (rc == SH_OK)
        sh_shards_put(&s);
    sh_shards_free(&s);
    free(family);
    if (rc == SH_OK && lacks_labels)
        rc = sh_agree(init_head(r));
    if (rc == SH_OK)
        sh_exec_run(r->exec, SH_SECTION_INIT);
    return rc;
}

sh_rc sh_run_load_hf(struct sh_run *r)
{
    return load_folder(r, false);
}

sh_rc sh_run_load_adapter(struct sh_run *r)
{
    return load_folder(r, true);
}

/* Like sh_run_load(), but only parameters: fine-tuning begins at step 0 with fresh optimizer state. */
sh_rc sh_run_load_model(struct sh_run *r, const char *path)
{
    struct sh_ckpt_meta meta = {0};

    sh_rc rc = SH_OK;

    SH_TRY(read_file(r, path, true, &meta, NULL));
    if (!r->build.options.training) /* a new run may have another activation on purpose */
        rc = sh_agree(sh_provenance_plugins(r, path, &meta));
    sh_run_tokenizer_take(r, &meta, true);
    sh_ckpt_meta_free(&meta);
    SH_TRY(rc);
    sh_exec_run(r->exec, SH_SECTION_INIT);
    return SH_OK;
}
