/* Parameters and optimizer state: initial values, and the way to the checkpoint and back. */
#include "src/run/run.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/rng.h"
#include "src/layout/layout.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 }; /* elements made on the host at a time */

static struct sh_range owned(const struct sh_run *r, const struct sh_unit *u)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;

    return sh_layout_owned(u->elems, m->size[SH_AXIS_SHARD], m->index[SH_AXIS_SHARD]);
}

static struct sh_range range_of(const struct sh_param *param)
{
    return (struct sh_range){param->unit_elems, param->unit_elems + param->elems};
}

static void fill(const struct sh_param *param, uint64_t seed, int64_t first, int64_t n, float *out)
{
    if (param->init == SH_INIT_NORMAL) {
        sh_rng_fill_normal(sh_rng_key(seed, param->name), first, n, param->init_std, out);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = param->init == SH_INIT_ONE ? 1.0f : 0.0f;
}

static void init_param(struct sh_run *r, const struct sh_param *param, float *buffer)
{
    const struct sh_unit *u = &r->p->units[param->unit];
    struct sh_range own = owned(r, u), mine = sh_layout_intersect(own, range_of(param));
    float *master = sh_exec_data(r->exec, u->master);

    for (int64_t at = mine.begin; at < mine.end; at += PIECE) {
        int64_t n = mine.end - at < PIECE ? mine.end - at : PIECE;

        fill(param, r->cfg.debug.seed, at - param->unit_elems, n, buffer);
        r->device->put(master + (at - own.begin), buffer, n * (int64_t)sizeof *buffer);
    }
}

sh_rc sh_run_init_state(struct sh_run *r)
{
    float *buffer = sh_calloc(PIECE, sizeof *buffer);

    for (int i = 0; i < r->p->n_params; i++)
        init_param(r, &r->p->params[i], buffer);
    free(buffer);
    sh_exec_run(r->exec, SH_SECTION_INIT);
    return SH_OK;
}

/* The same description for both directions. Saving: replicas, who all hold the same, share the writing. */
struct set {
    struct sh_ckpt_set set;
    struct sh_ckpt_tensor *tensors;
    struct sh_ckpt_piece *pieces;
};

static void add_piece(const struct sh_run *r, struct set *s, int param_index, bool saving)
{
    const struct sh_param *param = &r->p->params[param_index];
    const struct sh_unit *u = &r->p->units[param->unit];
    const struct sh_mesh_shape *m = &r->mesh->shape;
    struct sh_range own = owned(r, u), part = own, mine;
    const int state[SH_CKPT_STATES] = {u->master, u->exp_avg, u->exp_avg_sq};
    struct sh_ckpt_piece *piece = &s->pieces[s->set.n_pieces];

    if (saving)
        part = sh_layout_split(own, m->size[SH_AXIS_REPLICATE], m->index[SH_AXIS_REPLICATE]);
    mine = sh_layout_intersect(part, range_of(param));
    if (mine.begin == mine.end)
        return;
    *piece = (struct sh_ckpt_piece){.tensor = param_index, .begin = mine.begin - param->unit_elems, .elems = mine.end - mine.begin};
    for (int k = 0; k < SH_CKPT_STATES; k++)
        if (state[k] != SH_NONE)
            piece->data[k] = (float *)sh_exec_data(r->exec, state[k]) + (mine.begin - own.begin);
    s->set.n_pieces++;
}

static void describe(const struct sh_run *r, bool saving, struct set *s)
{
    size_t n = (size_t)r->p->n_params;

    s->tensors = sh_calloc(n, sizeof *s->tensors);
    s->pieces = sh_calloc(n, sizeof *s->pieces);
    s->set = (struct sh_ckpt_set){.tensors = s->tensors, .n_tensors = r->p->n_params, .pieces = s->pieces};
    for (int i = 0; i < r->p->n_params; i++) {
        const struct sh_param *param = &r->p->params[i];

        s->tensors[i] = (struct sh_ckpt_tensor){.name = param->name, .ndim = param->ndim, .elems = param->elems};
        for (int k = 0; k < param->ndim; k++)
            s->tensors[i].dim[k] = param->dim[k];
        add_piece(r, s, i, saving);
    }
}

static void forget(struct set *s)
{
    free(s->tensors);
    free(s->pieces);
}

char *sh_run_checkpoint_folder(const struct sh_run *r)
{
    return sh_path_join(r->folder, r->cfg.checkpoint.folder);
}

sh_rc sh_run_save(struct sh_run *r, const char *guard, char **path, int64_t *bytes)
{
    struct sh_ckpt_meta meta = {.step = r->step, .samples = r->samples, .tokens = r->tokens, .updates = r->updates,
                                .guard = (char *)(uintptr_t)guard};
    struct sh_ckpt_keep keep = {.latest = r->cfg.checkpoint.keep_latest_k, .every = r->cfg.checkpoint.keep_every_n};
    struct sh_ckpt_options options = {.road = r->cfg.checkpoint.io, .hints = r->cfg.checkpoint.hints,
                                      .timeout_seconds = r->cfg.checkpoint.timeout_seconds};
    char *folder = sh_run_checkpoint_folder(r);
    struct set s;
    sh_rc rc;

    describe(r, true, &s);
    SH_TRY_OUT(sh_agree(sh_config_print(&r->cfg, &meta.config)));
    rc = sh_ckpt_save_as(folder, &s.set, &meta, &options, bytes);
    if (rc == SH_OK)
        rc = sh_agree(r->mesh->rank == 0 ? sh_ckpt_retain(folder, &keep, r->step) : SH_OK);
    if (rc == SH_OK)
        *path = sh_strfmt("%s/step-%08lld.h5", folder, (long long)r->step);
out:
    forget(&s);
    free(meta.config);
    free(folder);
    return rc;
}

static void say_what_differs(const struct sh_run *r, const char *path, const struct sh_ckpt_meta *meta)
{
    static const char *const skip[] = {"job", "mesh", "parallelism", "activation_checkpoint", "checkpoint", "metrics",
                                       "profiling", "comm", "memory", NULL};
    struct sh_config then;

    if (r->mesh->rank != 0)
        return;
    if (sh_config_parse(meta->config, strlen(meta->config), path, 0, NULL, &then) == SH_OK)
        sh_config_diff(&then, &r->cfg, skip, stderr);
    sh_error_clear();
}

static sh_rc read_file(struct sh_run *r, const char *path, bool model_only, struct sh_ckpt_meta *meta, bool *damaged)
{
    struct sh_ckpt_load_report report;
    struct set s;
    sh_rc rc;

    describe(r, false, &s);
    for (int i = 0; model_only && i < s.set.n_pieces; i++)
        s.pieces[i].data[SH_CKPT_EXP_AVG] = s.pieces[i].data[SH_CKPT_EXP_AVG_SQ] = NULL;
    rc = sh_ckpt_load_report(path, &s.set, meta, &report);
    forget(&s);
    if (damaged)
        *damaged = report.damaged;
    return rc;
}

sh_rc sh_run_load(struct sh_run *r, const char *path, bool *damaged)
{
    struct sh_ckpt_meta meta = {0};

    SH_TRY(read_file(r, path, false, &meta, damaged));
    r->step = meta.step;
    r->samples = meta.samples;
    r->tokens = meta.tokens;
    r->updates = meta.updates;
    free(r->guard);
    r->guard = sh_strdup(meta.guard ? meta.guard : "");
    say_what_differs(r, path, &meta);
    sh_ckpt_meta_free(&meta);
    sh_exec_run(r->exec, SH_SECTION_INIT);
    return SH_OK;
}

sh_rc sh_run_load_model(struct sh_run *r, const char *path)
{
    struct sh_ckpt_meta meta = {0};

    SH_TRY(read_file(r, path, true, &meta, NULL));
    sh_ckpt_meta_free(&meta);
    sh_exec_run(r->exec, SH_SECTION_INIT);
    return SH_OK;
}
