#include "src/run/save/provenance.h"

#include "io/data/data.h"
#include "io/foreign/hf/adapter.h"
#include "io/foreign/safetensors/digest.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/plugin/plugin.h"
#include "src/run/run.h"
#include "src/run/save/frozen.h"
#include "src/run/save/newest.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Names of the lines in the notes of a checkpoint. */
static const char begun_note[] = "begun", data_note[] = "data", plugins_note[] = "plugins";

static const char initial_values[] = "initial values";

/* ---- digests ---- */

static sh_rc digest_tensors(const char *folder, const char *file, uint64_t *digest)
{
    struct sh_st_index index;
    sh_rc rc;

    SH_TRY(file ? sh_st_index_read_one(folder, file, &index) : sh_st_index_read(folder, &index));
    rc = sh_st_digest(folder, &index, digest);
    sh_st_index_free(&index);
    return rc;
}

static sh_rc digest_folder(const char *folder, uint64_t *digest)
{
    return digest_tensors(folder, NULL, digest);
}

static sh_rc digest_adapter(const char *folder, uint64_t *digest)
{
    return digest_tensors(folder, SH_HF_ADAPTER_FILE, digest);
}

/* For each kind its word in the note, and how it is recognised. */
static const struct {
    const char *word;
    sh_rc (*digest)(const char *path, uint64_t *digest);
} kinds[] = {
    [SH_FROM_VALUES] = {initial_values, NULL},
    [SH_FROM_CHECKPOINT] = {"checkpoint", sh_ckpt_digest},
    [SH_FROM_FOLDER] = {"model", digest_folder},
    [SH_FROM_ADAPTER] = {"adapters", digest_adapter},
};

/* ---- what the configuration names ---- */

/* A checkpoint under adapters is their base, which has a sum of its own (frozen.h), unless a folder is the base. */
enum sh_provenance_kind sh_provenance_of(const struct sh_run *r)
{
    bool frozen = sh_frozen_any(r), hf = r->cfg.hf.assets_path[0] && r->cfg.checkpoint.initial_load_in_hf;

    if (r->cfg.checkpoint.initial_load_path[0] && (!frozen || hf))
        return SH_FROM_CHECKPOINT;
    if (frozen)
        return r->cfg.lora.adapter_path[0] ? SH_FROM_ADAPTER : SH_FROM_VALUES;
    return hf ? SH_FROM_FOLDER : SH_FROM_VALUES;
}

/* Whoever names nothing continues a run however it began. A folder of which only the architecture is taken asks for
 * initial values. */
static bool names_nothing(const struct sh_run *r, enum sh_provenance_kind kind)
{
    return kind == SH_FROM_VALUES && (sh_frozen_any(r) || !r->cfg.hf.assets_path[0]);
}

/* The key that names the beginning, and its value. */
static const char *key_of(const struct sh_run *r, enum sh_provenance_kind kind, const char **given)
{
    switch (kind) {
    case SH_FROM_CHECKPOINT:
        *given = r->cfg.checkpoint.initial_load_path;
        return r->cfg.checkpoint.initial_load_model_only ? "--init-from" : "checkpoint.initial_load_path";
    case SH_FROM_ADAPTER: *given = r->cfg.lora.adapter_path; return "lora.adapter_path";
    case SH_FROM_FOLDER: *given = r->cfg.hf.assets_path; return "model.hf_assets_path";
    default: *given = initial_values; return "checkpoint.initial_load_in_hf";
    }
}

/* ---- paths ---- */

/* Follow the links of all that is there; what is gone keeps its name. */
static char *full_path(const char *path)
{
    const char *slash = strrchr(path, '/');
    char full[PATH_MAX], *front, *all;

    if (realpath(path, full))
        return sh_strdup(full);
    if (slash == path || strcmp(path, ".") == 0)
        return sh_strdup(path);
    front = slash ? sh_strfmt("%.*s", (int)(slash - path), path) : sh_strdup(".");
    all = full_path(front);
    free(front);
    front = all;
    all = sh_path_join(front, slash ? slash + 1 : path);
    free(front);
    return all;
}

/* Whether `path` is `other` or lies in it. */
static bool lies_in(const char *path, const char *other)
{
    char *full = full_path(other);
    size_t n = strlen(full);
    bool in;

    while (n > 1 && full[n - 1] == '/')
        n--;
    in = strncmp(path, full, n) == 0 && (path[n] == '\0' || path[n] == '/');
    free(full);
    return in;
}

/* A folder may have newer checkpoints by now: the one that the run began from counts, if it is there. */
static sh_rc find_checkpoint(const char *given, const char *began, char **path)
{
    const char *name = strrchr(began, '/');
    struct stat st;
    char *folder;

    if (!name || stat(given, &st) != 0 || !S_ISDIR(st.st_mode))
        return sh_newest_find(given, path);
    SH_TRY(sh_newest_folder(given, &folder));
    *path = sh_path_join(folder, name + 1);
    free(folder);
    if (access(*path, F_OK) == 0)
        return SH_OK;
    free(*path);
    return sh_newest_find(given, path);
}

/* ---- the note of the beginning: "initial values", or kind, digest, and the path to the end of the line ---- */

/* A name with a line's end would make a second note. */
static sh_rc describe(enum sh_provenance_kind kind, const char *path, char **text)
{
    uint64_t digest;
    char *full;

    if (kind == SH_FROM_VALUES) {
        *text = sh_strdup(initial_values);
        return SH_OK;
    }
    SH_TRY(kinds[kind].digest(path, &digest));
    full = full_path(path);
    *text =
        sh_strfmt("%s %016llx %s", kinds[kind].word, (unsigned long long)digest, strpbrk(full, "\r\n") ? path : full);
    free(full);
    return SH_OK;
}

/* The path in a note, or "" at its end. */
static const char *path_in(const char *begun)
{
    const char *space = strchr(begun, ' ');

    space = space ? strchr(space + 1, ' ') : NULL;
    return space ? space + 1 : begun + strlen(begun);
}

static bool is_same(const char *begun, const char *now)
{
    size_t n = (size_t)(path_in(begun) - begun);

    return n == (size_t)(path_in(now) - now) && memcmp(begun, now, n) == 0;
}

/* ---- saving and loading ---- */

/* Give all ranks the text of rank 0. */
static sh_rc share(const struct sh_run *r, char **text)
{
    int64_t bytes = r->mesh->rank == 0 ? (int64_t)strlen(*text) + 1 : 0;

    SH_TRY(sh_mesh_bcast(&bytes, sizeof bytes, 0));
    if (r->mesh->rank != 0) {
        free(*text);
        *text = sh_calloc((size_t)bytes, 1);
    }
    return sh_mesh_bcast(*text, (long)bytes, 0);
}

sh_rc sh_provenance_begin(struct sh_run *r, const char *path)
{
    free(r->provenance.begun);
    r->provenance.begun = NULL;
    SH_TRY(sh_agree(r->mesh->rank == 0 ? describe(sh_provenance_of(r), path, &r->provenance.begun) : SH_OK));
    return share(r, &r->provenance.begun);
}

static sh_rc describe_data(const struct sh_data *data, char **text)
{
    char said[SH_DATA_TEXT];

    SH_TRY(sh_data_text(data, said));
    *text = sh_strdup(said);
    return SH_OK;
}

sh_rc sh_provenance_data(struct sh_run *r, const struct sh_data *data)
{
    SH_TRY(sh_agree(r->mesh->rank == 0 ? describe_data(data, &r->provenance.data) : SH_OK));
    return share(r, &r->provenance.data);
}

void sh_provenance_take(struct sh_run *r, const struct sh_ckpt_meta *meta)
{
    free(r->provenance.begun);
    free(r->provenance.data_then);
    r->provenance.begun = sh_ckpt_note(meta, begun_note);
    r->provenance.data_then = sh_ckpt_note(meta, data_note);
}

static char *line_of(const char *name, const char *text)
{
    return text ? sh_strfmt("%s: %s\n", name, text) : sh_strdup("");
}

char *sh_provenance_notes(const struct sh_run *r)
{
    char *plugins = sh_plugin_text(), *begun = line_of(begun_note, r->provenance.begun);
    char *data = line_of(data_note, r->provenance.data), *used = line_of(plugins_note, plugins);
    char *all = sh_strfmt("%s%s%s", begun, data, used);

    free(begun);
    free(data);
    free(used);
    free(plugins);
    return all;
}

/* Compared as text: names and sums. */
sh_rc sh_provenance_plugins(const struct sh_run *r, const char *path, const struct sh_ckpt_meta *meta)
{
    char *then = sh_ckpt_note(meta, plugins_note), *now = sh_plugin_text();
    const char *was = then ? then : "no plug-ins", *is = now ? now : "no plug-ins";
    bool same = strcmp(was, is) == 0;
    sh_rc rc = SH_OK;

    if (!same && !r->cfg.plugin.allow_change)
        rc = sh_fail(SH_E_USAGE,
                     "plugin.files: %s was saved with %s, but this run has %s; give what it was saved with, or "
                     "--allow-plugin-change (--plugin.allow_change=true)",
                     path, was, is);
    else if (!same && r->mesh->rank == 0)
        sh_log_warn("%s was saved with %s; it is loaded with %s", path, was, is);
    free(then);
    free(now);
    return rc;
}

void sh_provenance_free(struct sh_provenance *o)
{
    free(o->begun);
    free(o->data);
    free(o->data_then);
}

/* ---- the check ---- */

/* Compare by content, wherever it lies now. */
static sh_rc compare(enum sh_provenance_kind kind, const char *given, const char *begun, bool *same)
{
    char *path = NULL, *now = NULL;
    sh_rc rc;

    SH_TRY_OUT(kind == SH_FROM_CHECKPOINT ? find_checkpoint(given, path_in(begun), &path) : SH_OK);
    SH_TRY_OUT(describe(kind, path ? path : given, &now));
    *same = is_same(begun, now);
out:
    free(path);
    free(now);
    return rc;
}

/* What cannot be read is refused, too, with the reason. */
static sh_rc refuse(const char *key, const char *given, const char *checkpoint, const char *begun)
{
    const char *began = path_in(begun);
    char *why = sh_error_text()[0] ? sh_strfmt(" (%s)", sh_error_text()) : sh_strdup("");
    bool changed = began[0] && !why[0] && lies_in(began, given);
    sh_rc rc;

    sh_error_clear();
    if (changed)
        rc = sh_fail(SH_E_USAGE,
                     "%s: %s belongs to a run that began from %s, whose numbers are different now; for a new run give "
                     "another job.dump_folder",
                     key, checkpoint, began);
    else
        rc = sh_fail(SH_E_USAGE,
                     "%s: %s belongs to a run that began from %s, not from %s%s; to continue it, name that or nothing; "
                     "for a new run, give another job.dump_folder",
                     key, checkpoint, began[0] ? began : begun, given, why);
    free(why);
    return rc;
}

static sh_rc judge(const struct sh_run *r, enum sh_provenance_kind kind, const char *checkpoint, const char *begun)
{
    const char *given, *key = key_of(r, kind, &given), *began = path_in(begun);
    bool same = began[0] && access(began, F_OK) != 0 && lies_in(began, given);

    if (!same && compare(kind, given, begun, &same) != SH_OK)
        same = false;
    if (!same)
        return refuse(key, given, checkpoint, begun);
    if (began[0])
        sh_log_info("%s: used at step 0, when this run began from %s; it continues from its own checkpoint", key,
                    began);
    return SH_OK;
}

/* Read the notes of the newest checkpoint that can be read: the load falls back to it, too, and says what is wrong with
 * newer ones. *path is NULL if there is none. Nothing is read of a file that may not be trusted; the load refuses it. */
static sh_rc read_newest(const char *folder, enum sh_cfg_trust trust, char **path, struct sh_ckpt_meta *meta)
{
    int64_t step = INT64_MAX;

    for (;;) {
        SH_TRY(sh_ckpt_newest_before(folder, step, path));
        if (!*path || (sh_ckpt_trusted(*path, trust) == SH_OK && sh_ckpt_read_meta(*path, meta) == SH_OK))
            return SH_OK;
        sh_error_clear();
        step = sh_ckpt_step_of(*path);
        free(*path);
    }
}

bool sh_provenance_outside(const struct sh_ckpt_meta *meta)
{
    char *from = sh_ckpt_note(meta, "parameters"); /* of an average too, which has the configuration of a run */
    bool outside = from && (strncmp(from, "of a state folder", 17) == 0 || strncmp(from, "of a folder", 11) == 0);

    free(from);
    return outside;
}

sh_rc sh_provenance_check(const struct sh_run *r, const char *folder)
{
    enum sh_provenance_kind kind = sh_provenance_of(r);
    struct sh_ckpt_meta meta = {0};
    const char *given, *key = key_of(r, kind, &given);
    char *path, *begun;
    sh_rc rc = SH_OK;

    if (names_nothing(r, kind))
        return SH_OK;
    SH_TRY(read_newest(folder, r->cfg.checkpoint.trust, &path, &meta));
    begun = sh_ckpt_note(&meta, begun_note);
    if (begun)
        rc = judge(r, kind, path, begun);
    else if (path)
        sh_log_info(
            sh_provenance_outside(&meta)
                ? "%s: the run goes on from %s, which `sherd ckpt import` made; not compared with %s"
                : "%s: %s was saved by a version that did not note what a run begins from; not compared with %s",
            key, path, given);
    free(begun);
    free(path);
    sh_ckpt_meta_free(&meta);
    return rc;
}
