/* sherd ckpt export and import: between a checkpoint and a folder of transformers. */
#include "src/cmd/cmd.h"

#include "io/file/outside.h"
#include "io/foreign/hf/config/config.h"
#include "io/foreign/hf/export.h"
#include "io/foreign/hf/import.h"
#include "io/foreign/hf/state.h"
#include "io/foreign/safetensors/index.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/pass/build.h"
#include "src/plan/request.h"
#include "src/program/saved.h"
#include "src/run/save/newest.h"
#include "src/run/save/stored.h"
#include "src/run/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The options are in the table of `ckpt`, since export and import are its verbs. */
static const char *option(const struct sh_cmd_args *args, const char *name)
{
    return sh_cmd_option(sh_cmd_find("ckpt"), args, name);
}

/* There is no default folder: the output may be as large as the model. */
static sh_rc wants_output(const char *verb, const char *out)
{
    return out ? SH_OK : sh_fail(SH_E_USAGE, "sherd ckpt %s: where should it go? give -o FOLDER", verb);
}

/* The options as the keys that they stand for, so that the configuration checks them. */
enum { OVERRIDES = 4 };
static int list_overrides(const struct sh_cmd_args *args, char *out[OVERRIDES])
{
    static const char *const rows[][2] = {{"--dtype", "checkpoint.export_dtype"},
                                          {"--max-shard-size", "checkpoint.max_shard_size"},
                                          {"--verify", "checkpoint.verify"}};
    int n = 0;

    out[n++] = sh_strdup("checkpoint.last_save_in_hf=true");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (option(args, rows[i][0]))
            out[n++] = sh_strfmt("%s=%s", rows[i][1], option(args, rows[i][0]));
    return n;
}

/* The model comes from the file, but verify does not: the file records how its own save was verified. */
static sh_rc read_config(const struct sh_cmd_args *args, const char *file, const struct sh_ckpt_meta *meta,
                         struct sh_config *cfg)
{
    char *overrides[OVERRIDES], *name = sh_strfmt("%s (its configuration)", file);
    /* The overrides are freed below, whatever happens in between. */
    int n = list_overrides(args, overrides);
    sh_rc rc = sh_config_parse(meta->config, strlen(meta->config), name, n, (const char *const *)overrides, cfg);

    if (rc == SH_OK && !option(args, "--verify"))
        cfg->checkpoint.verify = SH_VERIFY_DISK;
    while (n > 0)
        free(overrides[--n]);
    free(name);
    return rc;
}

/* What --hf gives, or what the checkpoint records about the folder from which the model came. */
struct beside {
    char *hash, *hf_config; /* from the notes */
    char *tokenizer;        /* folder */
};

static void find_beside(const char *source, const struct sh_ckpt_meta *meta, const struct sh_config *cfg,
                        struct beside *b)
{
    const char *name = cfg->hf.tokenizer;

    sh_run_tokenizer_kept(meta, &b->hash, &b->hf_config);
    b->tokenizer = b->hash ? sh_run_tokenizer_folder(name, b->hash) : NULL;
    if (!source && b->hash && !b->tokenizer && strcmp(b->hash, name) != 0)
        sh_log_warn(
            "the folder gets no tokenizer: that of the checkpoint, %s, does not exist or has changed; --hf DIR names "
            "another folder that has it",
            name);
}

/* List the tensors of a model, as its program declares them. */
static void list_tensors(const struct sh_program *p, struct sh_ckpt_tensor *t)
{
    for (int i = 0; i < p->n_saved; i++) {
        const struct sh_saved *s = &p->saved[i];

        t[i] = (struct sh_ckpt_tensor){.name = s->name, .ndim = s->ndim, .elems = s->elems, .role = s->role};
        for (int d = 0; d < t[i].ndim; d++)
            t[i].dim[d] = s->dim[d];
    }
}

/* The word decides which weights the adapters are added to, so an unknown word is refused here. */
static sh_rc check_merge_base(const char *form, bool merges)
{
    if (!form)
        return SH_OK;
    if (!merges)
        return sh_fail(SH_E_USAGE, "sherd ckpt export: --merge-base has no effect without --merge");
    if (strcmp(form, "none") && strcmp(form, "nf4"))
        return sh_fail(SH_E_USAGE, "sherd ckpt export: --merge-base is none or nf4, like lora.quantize_base");
    return SH_OK;
}

/* The moments go on from the numbers that they were made with, so those are whole as well. */
static sh_rc check_moments(const struct sh_cmd_args *args)
{
    static const char *const others[] = {"--adapter", "--merge", "--dtype", "--state"};

    for (size_t i = 0; option(args, "--moments") && i < sizeof others / sizeof *others; i++)
        if (option(args, others[i]))
            return sh_fail(SH_E_USAGE, "sherd ckpt export: --moments writes a whole state in float32; leave out %s",
                           others[i]);
    return SH_OK;
}

/* Check that the request matches what the file holds. *base: the base that the file names. */
static sh_rc check_request(const struct sh_cmd_args *args, const char *file, const struct sh_ckpt_meta *meta,
                           char **base)
{
    bool adapter = option(args, "--adapter"), merge = option(args, "--merge");
    uint64_t sum;

    if (adapter && (merge || option(args, "-o")))
        return sh_fail(SH_E_USAGE, "sherd ckpt export: --adapter DIR writes only adapters; leave out %s",
                       merge ? "--merge" : "-o");
    if (meta->base[0] && !adapter && !merge)
        return sh_fail(SH_E_USAGE,
                       "%s has adapters only; give --adapter DIR for a folder of PEFT, or --merge -o DIR for the model "
                       "with them",
                       file);
    if (!meta->base[0] && (adapter || merge || option(args, "--base")))
        return sh_fail(SH_E_USAGE, "%s has a whole model and no adapters; leave out %s", file,
                       adapter ? "--adapter"
                       : merge ? "--merge"
                               : "--base");
    return meta->base[0] ? sh_ckpt_base_read(file, meta->base, &sum, base) : SH_OK;
}

/* Mark the tensors that a run packs, by the pass that the run uses. The run was accepted, so the pass refuses
 * nothing. */
static void mark_packed(const struct sh_config *cfg, const struct sh_model_batch *batch, const struct sh_ckpt_tensor *t,
                        int n, bool *packed)
{
    struct sh_program *p = sh_program_create(SH_F32);

    sh_model_emit(&cfg->model, batch, p);
    for (int i = 0; i < p->n_units; i++)
        sh_program_freeze(p, i);
    (void)sh_pass_pack(&(struct sh_build){.packed = true}, p);
    for (int i = 0; i < p->n_params; i++)
        for (int k = 0; k < n && p->units[p->params[i].unit].packed; k++)
            packed[k] = packed[k] || !strcmp(t[k].name, sh_saved_of(p, &p->params[i])->name);
    sh_program_destroy(p);
}

/* --base is the folder of a model, a checkpoint, or a folder of checkpoints. The caller frees *path. */
static sh_rc find_base(const char *given, char **path)
{
    if (sh_st_has_weights(given)) {
        *path = sh_strdup(given);
        return SH_OK;
    }
    return sh_newest_find(given, path);
}

/* The tensors of a model, from a program for one sequence, which declares them without any data. */
struct model {
    struct sh_program *p;
    struct sh_ckpt_tensor *tensors;
    bool *packed;
    struct sh_ckpt_set set;
};

static void open_model(const struct sh_config *cfg, struct model *m)
{
    const struct sh_model_batch batch = {.batch = 1, .seq = 1, .out = SH_MODEL_LOSS};

    m->p = sh_program_create(SH_F32);
    sh_model_emit(&cfg->model, &batch, m->p);
    m->tensors = sh_calloc((size_t)m->p->n_saved + 1, sizeof *m->tensors);
    m->packed = sh_calloc((size_t)m->p->n_saved + 1, sizeof *m->packed);
    list_tensors(m->p, m->tensors);
    if (cfg->lora.quantize_base == SH_QUANTIZE_NF4)
        mark_packed(cfg, &batch, m->tensors, m->p->n_saved, m->packed);
    m->set = (struct sh_ckpt_set){
        .states = sh_ckpt_states_1, .tensors = m->tensors, .n_tensors = m->p->n_saved, .packed = m->packed};
}

static void close_model(struct model *m)
{
    free(m->packed);
    free(m->tensors);
    sh_program_destroy(m->p);
}

static sh_rc write_folder(const struct sh_cmd_args *args, const char *file, const char *out,
                          const struct sh_config *cfg, struct sh_hf_export options)
{
    struct model m;
    sh_rc rc;

    open_model(cfg, &m);
    options.moments = option(args, "--moments") ? &m.set : NULL;
    rc = option(args, "--merge") ? sh_hf_merge_file(file, out, cfg, &m.set, &options)
                                 : sh_hf_export_file(file, out, cfg, &options);
    close_model(&m);
    return rc;
}

/* Everything that may be refused is checked first; writing a model may take long. */
static sh_rc export(const struct sh_cmd_args *args, const char *file, const struct sh_ckpt_meta *meta, const char *out)
{
    const char *source = option(args, "--hf"), *base = option(args, "--base"),
               *merge_base = option(args, "--merge-base");
    struct beside beside = {0};
    char *noted = NULL, *given = NULL;
    struct sh_config cfg;
    const char *state;
    sh_rc rc;

    SH_TRY_OUT(sh_cmd_state(sh_cmd_find("ckpt"), args, &state));
    SH_TRY_OUT(check_merge_base(merge_base, option(args, "--merge")));
    SH_TRY_OUT(check_moments(args));
    SH_TRY_OUT(check_request(args, file, meta, &noted));
    if (base)
        SH_TRY_OUT(find_base(base, &given));
    SH_TRY_OUT(read_config(args, file, meta, &cfg));
    find_beside(source, meta, &cfg, &beside);
    const struct sh_hf_export options = {.type = (enum sh_move_type)cfg.checkpoint.export_dtype,
                                         .max_shard_bytes = cfg.checkpoint.max_shard_size,
                                         .verify = cfg.checkpoint.verify,
                                         .source = source ? source : "",
                                         .kept = beside.hf_config,
                                         .tokenizer = beside.tokenizer,
                                         .adapter = option(args, "--adapter") != NULL,
                                         .state = state,
                                         .packed = merge_base && strcmp(merge_base, "nf4") == 0,
                                         .base = given ? given : noted};
    rc = write_folder(args, file, out, &cfg, options);
out:
    free(beside.hash);
    free(beside.hf_config);
    free(beside.tokenizer);
    free(noted);
    free(given);
    return rc;
}

/* Prints the folder, so that a script can use it. */
sh_rc sh_cmd_ckpt_export(const struct sh_cmd_args *args, const char *file)
{
    const char *adapter = option(args, "--adapter"), *out = adapter ? adapter : option(args, "-o");
    struct sh_ckpt_meta meta = {0};
    sh_rc rc;

    SH_TRY(wants_output("export", out));
    SH_TRY(sh_ckpt_read_meta(file, &meta));
    rc = export(args, file, &meta, out);
    sh_ckpt_meta_free(&meta);
    if (rc == SH_OK)
        printf("%s\n", out);
    return rc;
}

/* ---- import ---- */

/* A folder of transformers, and of a state folder also what state.json says. */
struct import {
    const char *from, *to;
    struct sh_hf_import_options options;
    struct sh_hf_state state; /* with options.moments */
};

/* The keys that a run needs in order to go on as the other trainer would have. */
enum { STATE_KEYS = 6 };
static void list_keys(const struct sh_hf_state *s, char *keys[STATE_KEYS])
{
    keys[0] = sh_strfmt("optimizer.lr=%.17g", s->lr);
    keys[1] = sh_strfmt("optimizer.beta1=%.17g", s->beta1);
    keys[2] = sh_strfmt("optimizer.beta2=%.17g", s->beta2);
    keys[3] = sh_strfmt("optimizer.eps=%.17g", s->eps);
    keys[4] = sh_strfmt("optimizer.weight_decay=%.17g", s->weight_decay);
    keys[5] = sh_strdup("optimizer.name=AdamW");
}

/* The notes of the checkpoint: its origin, and what exports and users of the tokenizer need to know about that
 * folder. */
static sh_rc list_notes(const struct import *m, struct sh_config *cfg, char **notes)
{
    char hash[SH_RUN_HASH] = "", *hf_config = NULL, *kept;

    SH_TRY(sh_run_tokenizer_find(cfg, hash, &hf_config));
    kept = sh_run_tokenizer_notes(hash, hf_config, NULL);
    *notes = m->options.moments ? sh_strfmt("parameters: of a state folder: %s\n%s", m->state.source, kept)
                                : sh_strfmt("parameters: of a folder of transformers\n%s", kept);
    free(hf_config);
    free(kept);
    return SH_OK;
}

/* To standard error, as the path of the file is the output. */
static void say_how_to_go_on(const struct sh_hf_state *s, const struct sh_config *cfg)
{
    sh_log_info("step %lld, %lld updates, with moments; a run goes on as that one did with --optimizer.lr=%.9g "
                "--optimizer.beta1=%.9g --optimizer.beta2=%.9g --optimizer.eps=%.9g --optimizer.weight_decay=%.9g "
                "--optimizer.decay_all=%s, and its schedule of the learning rate",
                (long long)s->step, (long long)s->updates, s->lr, s->beta1, s->beta2, s->eps, s->weight_decay,
                cfg->optimizer.decay_all ? "true" : "false");
    if (s->samples < 0)
        sh_log_info("it is not known which data that run has used: the data starts from its beginning");
}

static struct sh_ckpt_meta meta_of(const struct import *m)
{
    const struct sh_hf_state *s = &m->state;

    if (!m->options.moments)
        return (struct sh_ckpt_meta){0}; /* as before the first step */
    return (struct sh_ckpt_meta){.step = s->step,
                                 .updates = s->updates,
                                 .samples = s->samples < 0 ? 0 : s->samples,
                                 .tokens = s->tokens < 0 ? 0 : s->tokens};
}

static sh_rc import_tensors(const struct import *m, struct sh_config *cfg, const struct sh_program *p)
{
    struct sh_ckpt_tensor *tensors = sh_calloc((size_t)p->n_saved + 1, sizeof *tensors);
    struct sh_ckpt_set set = {.states = sh_ckpt_states_1, .tensors = tensors, .n_tensors = p->n_saved};
    struct sh_ckpt_meta meta = meta_of(m);
    char *family = NULL, *path = NULL;
    sh_rc rc;

    list_tensors(p, tensors);
    SH_TRY_OUT(sh_config_get(cfg, "model.family", &family));
    if (m->options.moments)
        SH_TRY_OUT(sh_hf_import_decays(m->from, family, &set, &m->state, &cfg->optimizer.decay_all));
    SH_TRY_OUT(list_notes(m, cfg, &meta.notes));
    SH_TRY_OUT(sh_stored_config(cfg, 1, &meta.config));
    SH_TRY_OUT(sh_hf_import(m->from, family, &m->options, &set, &meta, m->to, &path));
    printf("%s\n", path);
    if (m->options.moments)
        say_how_to_go_on(&m->state, cfg);
out:
    free(meta.config);
    free(meta.notes);
    free(family);
    free(path);
    free(tensors);
    return rc;
}

/* Where the values of a folder go. */
struct taker {
    sh_config_give_value give;
    void *to;
};

static sh_rc take(void *to, const char *key, const char *text)
{
    const struct taker *t = to;

    SH_TRY(t->give(t->to, key, text));
    return !strcmp(key, "model.num_labels") && !strcmp(text, "1") ? t->give(t->to, "objective.name", "regression")
                                                                  : SH_OK;
}

/* Whether a single value is that of a number or of a reward is not in the folder, and nothing is trained here: the word is
 * that of transformers, which a run from the checkpoint replaces. */
static sh_rc read_folder(const struct sh_config *so_far, const char *place, sh_config_give_value give, void *to)
{
    struct taker t = {give, to};

    return sh_hf_config_read(so_far, place, take, &t);
}

/* The folder's own configuration gives the model, by the same key as in a run; no other part of a configuration is
 * needed. */
static sh_rc import(const struct import *m, const char *ignore)
{
    const struct sh_model_batch batch = {.batch = 1, .seq = 1, .out = SH_MODEL_LOSS};
    char *keys[2 + STATE_KEYS] = {sh_strfmt("model.hf_assets_path=%s", m->from),
                                  sh_strfmt("model.hf_ignore=%s", ignore ? ignore : "")};
    int n = m->options.moments ? 2 + STATE_KEYS : 2;
    struct sh_program *p = NULL;
    struct sh_config cfg;
    struct sh_model model;
    sh_rc rc;

    if (m->options.moments)
        list_keys(&m->state, keys + 2);
    sh_config_folder_hook(read_folder);
    rc = sh_config_load(NULL, n, (const char *const *)keys, &cfg);
    sh_config_folder_hook(sh_hf_config_read);
    SH_TRY_OUT(rc);
    model = cfg.model;
    SH_TRY_OUT(sh_model_check(&model, &batch));
    p = sh_program_create(SH_F32);
    sh_model_emit(&model, &batch, p);
    SH_TRY_OUT(import_tensors(m, &cfg, p));
    if (cfg.model.num_labels == 1)
        sh_log_info(
            "the model gives a text one value, noted as objective.name=regression; to learn from pairs of answers "
            "instead, give a run --objective.name=reward");
out:
    sh_program_destroy(p);
    while (n > 0)
        free(keys[--n]);
    return rc;
}

/* A state folder is read as such, and states in files that cannot be read are not passed over. */
static sh_rc read_state(struct import *m, bool weights_only)
{
    char *path;
    sh_rc rc;

    if (weights_only)
        return SH_OK;
    if (!sh_hf_state_is(m->from))
        return sh_st_has_weights(m->from) ? sh_outside_states(m->from) : SH_OK;
    path = sh_path_join(m->from, SH_HF_STATE_FILE);
    rc = sh_ckpt_trusted(path, m->options.trust);
    free(path);
    SH_TRY(rc);
    m->options.moments = true;
    return sh_hf_state_read(m->from, &m->state);
}

sh_rc sh_cmd_ckpt_import(const struct sh_cmd_args *args, enum sh_cfg_trust trust)
{
    struct import m = {.from = args->positional[1],
                       .to = option(args, "-o"),
                       .options = {.trust = trust, .allow_nan = option(args, "--allow-nan") != NULL}};
    sh_rc rc;

    SH_TRY(wants_output("import", m.to));
    SH_TRY(read_state(&m, option(args, "--weights-only") != NULL));
    rc = import(&m, option(args, "--ignore"));
    sh_hf_state_free(&m.state);
    return rc;
}
