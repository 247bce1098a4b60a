/* Which tokenizer belongs to a run and its checkpoints. A checkpoint knows its tokenizer by the hash of a file, not by
 * a path: folders move, and ids of another tokenizer would go through a model without an error and mean nothing. */
#include "src/run/tokenizer.h"

#include "io/foreign/hf/config/config.h"
#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/run/run.h"
#include "src/text/token/token.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_TOKENIZER = 256 << 20 };

/* Names of the lines in the notes of a checkpoint. */
static const char hash_note[] = "tokenizer", config_note[] = "hf_config", template_note[] = "chat_template";

/* The tokenizer of bytes has no file; its name stands for the hash. */
static void name_hash(const struct sh_tokenizer *t, char text[SH_RUN_HASH])
{
    if (t->ops->whole)
        snprintf(text, SH_RUN_HASH, "%016llx", (unsigned long long)t->hash);
    else
        snprintf(text, SH_RUN_HASH, "%s", t->ops->name);
}

/* Take the name from the checkpoint's own configuration; if that cannot be parsed, there is none. */
static void take_name(struct sh_run *r, const struct sh_ckpt_meta *meta)
{
    struct sh_config *then = sh_calloc(1, sizeof *then);

    if (sh_config_parse(meta->config, strlen(meta->config), "checkpoint", 0, NULL, then) == SH_OK)
        memcpy(r->cfg.hf.tokenizer, then->hf.tokenizer, sizeof r->cfg.hf.tokenizer);
    sh_error_clear();
    free(then);
}

/* Combine what the checkpoint says with what the configuration names. A new run may name another tokenizer. */
void sh_run_tokenizer_take(struct sh_run *r, const struct sh_ckpt_meta *meta, bool begins)
{
    bool named = r->cfg.hf.tokenizer[0] != '\0';
    char *hash;

    free(r->hf_config);
    sh_run_tokenizer_kept(meta, &hash, &r->hf_config);
    free(r->chat_template);
    r->chat_template = sh_ckpt_note(meta, template_note);
    r->tokenizer[0] = '\0';
    if (hash && !(begins && named))
        snprintf(r->tokenizer, sizeof r->tokenizer, "%s", hash);
    if (!named)
        take_name(r, meta);
    free(hash);
}

/* Ids of another tokenizer mean other words to this model. */
static sh_rc check_hash(const char *wanted, const struct sh_tokenizer *t)
{
    char hash[SH_RUN_HASH];

    name_hash(t, hash);
    if (!wanted[0] || strcmp(wanted, hash) == 0)
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "%s is not the tokenizer that the checkpoint was trained with: its XXH3 is %s, not %s; name the right one with "
        "--model.tokenizer=DIR",
        t->path, hash, wanted);
}

/* A model may have more words than its tokenizer, so that their number divides well; fewer is another model. */
static sh_rc check(const struct sh_config *cfg, const char *wanted, const struct sh_tokenizer *t)
{
    int words = cfg->model.vocab_size;

    SH_TRY(check_hash(wanted, t));
    if (t->vocab_size > words)
        return sh_fail(SH_E_USAGE, "the tokenizer %s has %d words, the model has %d; it belongs to another model",
                       t->path, t->vocab_size, words);
    return SH_OK;
}

/* The name of the tokenizer. NULL: nobody has named one, and the model's words are not bytes. */
static const char *name_of(const struct sh_run *r, const char *given)
{
    if (given)
        return given;
    if (r->cfg.hf.tokenizer[0])
        return r->cfg.hf.tokenizer;
    return r->cfg.model.vocab_size == 256 ? sh_token_byte.name : NULL;
}

/* Open a tokenizer, and close it again if it does not fit the model. */
static sh_rc open_checked(const struct sh_run *r, const char *name, struct sh_tokenizer **out)
{
    struct sh_tokenizer *t;
    sh_rc rc;

    SH_TRY(sh_tokenizer_open(name, &t));
    rc = check(&r->cfg, r->tokenizer, t);
    if (rc != SH_OK) {
        sh_tokenizer_close(t);
        return rc;
    }
    *out = t;
    return SH_OK;
}

/* If the name was not given as an option, a prefix says which key the failure is about. */
static sh_rc open_given(const struct sh_run *r, const char *given, struct sh_tokenizer **out)
{
    const char *name = name_of(r, given);

    if (!name)
        return sh_fail(
            SH_E_USAGE,
            "the model has %d words, so it is not a byte-level model, but its checkpoint names no tokenizer; give "
            "it with --tokenizer DIR, or --tokenizer byte if it has learned bytes",
            r->cfg.model.vocab_size);
    sh_rc rc = open_checked(r, name, out);
    return rc != SH_OK && !given ? sh_fail_prefix(rc, "model.tokenizer: ") : rc;
}

/* Make just enough of a run to be asked for its tokenizer. */
sh_rc sh_run_tokenizer_of(const struct sh_config *cfg, const char *checkpoint, const char *given,
                          struct sh_tokenizer **out, char **template)
{
    struct sh_run *r;
    struct sh_ckpt_meta meta = {0};
    sh_rc rc;

    SH_TRY(sh_ckpt_trusted(checkpoint, cfg->checkpoint.trust));
    SH_TRY(sh_ckpt_read_meta(checkpoint, &meta));
    r = sh_calloc(1, sizeof *r);
    r->cfg = *cfg;
    sh_run_tokenizer_take(r, &meta, false);
    rc = open_given(r, given, out);
    if (template)
        *template = sh_strdup(r->chat_template ? r->chat_template : "");
    free(r->chat_template);
    free(r->hf_config);
    free(r);
    sh_ckpt_meta_free(&meta);
    return rc;
}

/* Print it in one line, because it becomes a note; the numbers in it stay as they are. */
static sh_rc read_config(const char *folder, char **hf_config)
{
    char *path = sh_path_join(folder, "config.json"), *text;
    json_t *root = NULL;
    sh_rc rc = sh_json_load(path, SH_HF_CONFIG_MAX, &root);

    free(path);
    SH_TRY(rc);
    text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(root);
    free(*hf_config);
    *hf_config = sh_strdup(text ? text : "{}");
    free(text);
    return SH_OK;
}

/* Whether the tokenizer is only that of the model's folder, which may be of a kind that cannot be read here: the ids
 * may have been made elsewhere. */
static bool is_of_folder(const struct sh_config *cfg)
{
    return strcmp(cfg->hf.tokenizer, cfg->hf.assets_path) == 0;
}

/* Open the named tokenizer. *t stays NULL if none is named, or if that of the folder cannot be read. */
static sh_rc open_named(struct sh_config *cfg, const char *wanted, struct sh_tokenizer **t)
{
    sh_rc rc;

    if (!cfg->hf.tokenizer[0])
        return SH_OK;
    rc = sh_tokenizer_open(cfg->hf.tokenizer, t);
    if (rc != SH_OK && is_of_folder(cfg)) {
        sh_log_info("checkpoints will name no tokenizer: %s", sh_error_text());
        sh_error_clear();
        cfg->hf.tokenizer[0] = '\0';
        return SH_OK;
    }
    return rc == SH_OK ? check(cfg, wanted, *t) : sh_fail_prefix(rc, "model.tokenizer: ");
}

/* For import and for rank 0 of a run: find the hash, and config.json of the model's folder if there is one. */
sh_rc sh_run_tokenizer_find(struct sh_config *cfg, char hash[SH_RUN_HASH], char **hf_config)
{
    struct sh_tokenizer *t = NULL;
    sh_rc rc = open_named(cfg, hash, &t);

    if (rc == SH_OK && t)
        name_hash(t, hash);
    sh_tokenizer_close(t);
    return rc == SH_OK && cfg->hf.assets_path[0] ? read_config(cfg->hf.assets_path, hf_config) : rc;
}

/* Give all ranks the text of rank 0, or none. */
static sh_rc share_config(struct sh_run *r)
{
    int64_t bytes = r->mesh->rank == 0 && r->hf_config ? (int64_t)strlen(r->hf_config) + 1 : 0;
    char *text;

    SH_TRY(sh_mesh_bcast(&bytes, sizeof bytes, 0));
    if (bytes == 0)
        return SH_OK;
    text = r->mesh->rank == 0 ? r->hf_config : sh_calloc((size_t)bytes, 1);
    if (text != r->hf_config) {
        free(r->hf_config);
        r->hf_config = text;
    }
    return sh_mesh_bcast(text, (long)bytes, 0);
}

/* The template of the data, which the model learns from now on; otherwise that of the checkpoint stays. */
void sh_run_template_take(struct sh_run *r, const char *of_data)
{
    if (!of_data[0])
        return;
    if (r->chat_template && strcmp(r->chat_template, of_data) != 0 && r->mesh->rank == 0)
        sh_log_info("chat template: %s -> %s, that of the data", r->chat_template, of_data);
    free(r->chat_template);
    r->chat_template = sh_strdup(of_data);
}

/* Rank 0 reads the files; the others could see another version of them. */
sh_rc sh_run_tokenizer_start(struct sh_run *r)
{
    SH_TRY(sh_agree(r->mesh->rank == 0 ? sh_run_tokenizer_find(&r->cfg, r->tokenizer, &r->hf_config) : SH_OK));
    SH_TRY(sh_mesh_bcast(r->tokenizer, sizeof r->tokenizer, 0));
    SH_TRY(sh_mesh_bcast(r->cfg.hf.tokenizer, sizeof r->cfg.hf.tokenizer, 0));
    return share_config(r);
}

/* On rank 0: get the lengths, if there is a tokenizer to ask. */
static sh_rc measure(const struct sh_run *r, const char *name, uint32_t *lengths, int *known)
{
    struct sh_tokenizer *t;
    sh_rc rc = sh_tokenizer_open(name, &t);

    if (rc != SH_OK) {
        sh_log_info("bits per byte are left out: %s", sh_error_text());
        sh_error_clear();
        return SH_OK;
    }
    rc = check(&r->cfg, r->tokenizer, t);
    *known = rc == SH_OK;
    if (*known)
        sh_tokenizer_lengths(t, lengths);
    sh_tokenizer_close(t);
    return rc;
}

/* Bytes of each word, for bits per byte. A tokenizer that is gone costs that figure and nothing else. */
sh_rc sh_run_tokenizer_lengths(struct sh_run *r)
{
    const char *name = name_of(r, NULL);
    size_t words = (size_t)r->cfg.model.vocab_size;
    uint32_t *lengths;
    int known = 0;
    sh_rc rc;

    if (!name)
        return SH_OK;
    lengths = sh_calloc(words, sizeof *lengths);
    SH_TRY_OUT(sh_agree(r->mesh->rank == 0 ? measure(r, name, lengths, &known) : SH_OK));
    SH_TRY_OUT(sh_mesh_bcast(&known, sizeof known, 0));
    SH_TRY_OUT(sh_mesh_bcast(lengths, (long)(words * sizeof *lengths), 0));
out:
    free(r->word_bytes);
    r->word_bytes = rc == SH_OK && known ? lengths : NULL;
    if (!r->word_bytes)
        free(lengths);
    return rc;
}

/* The folder of the tokenizer with this hash: the one that is named, or the one that the file lies in. NULL: it has
 * changed or is gone. */
char *sh_run_tokenizer_folder(const char *name, const char *hash)
{
    struct stat st;
    const char *slash = strrchr(name, '/');
    bool there = stat(name, &st) == 0, is_folder = there && S_ISDIR(st.st_mode);
    char *folder = is_folder ? sh_strdup(name) : slash ? sh_strfmt("%.*s", (int)(slash - name), name) : sh_strdup(".");
    struct sh_tokenizer *t = NULL;
    char found[SH_RUN_HASH] = "";

    if (there && sh_tokenizer_open(folder, &t) == SH_OK)
        name_hash(t, found);
    sh_tokenizer_close(t);
    sh_error_clear();
    if (found[0] && strcmp(found, hash) == 0)
        return folder;
    free(folder);
    return NULL;
}

void sh_run_tokenizer_kept(const struct sh_ckpt_meta *meta, char **hash, char **hf_config)
{
    *hash = sh_ckpt_note(meta, hash_note);
    *hf_config = sh_ckpt_note(meta, config_note);
}

/* Append a line "name: value". */
static void put_note(char **notes, const char *name, const char *value)
{
    char *before = *notes;

    if (!value || !value[0])
        return;
    *notes = sh_strfmt("%s%s: %s\n", before, name, value);
    free(before);
}

char *sh_run_tokenizer_notes(const char *hash, const char *hf_config, const char *chat_template)
{
    char *notes = sh_strdup("");

    put_note(&notes, hash_note, hash);
    put_note(&notes, config_note, hf_config);
    put_note(&notes, template_note, chat_template);
    return notes;
}

/* Path of the tokenizer.json whose ids the model knows, NULL if it has none; freed with free(). model.tokenizer takes
 * precedence over the model's source folder, whose tokenizer may be of a kind that cannot be read here. */
static char *tokenizer_file(const struct sh_config *cfg)
{
    const char *name = cfg->hf.tokenizer[0] ? cfg->hf.tokenizer : cfg->hf.assets_path;
    struct stat st;
    char *path;

    if (!name[0] || strcmp(name, sh_token_byte.name) == 0 || stat(name, &st) != 0)
        return NULL;
    path = S_ISDIR(st.st_mode) ? sh_path_join(name, "tokenizer.json") : sh_strdup(name);
    if (access(path, F_OK) == 0)
        return path;
    free(path);
    return NULL;
}

sh_rc sh_run_tokenizer_hash(const struct sh_config *cfg, uint64_t *hash)
{
    char *path = tokenizer_file(cfg), *text;
    size_t bytes;
    sh_rc rc;

    *hash = 0;
    if (!path)
        return SH_OK;
    rc = sh_read_file(path, MOST_TOKENIZER, &text, &bytes);
    if (rc == SH_OK) {
        *hash = sh_hash64(text, bytes);
        free(text);
    }
    free(path);
    return rc;
}
