#include "io/foreign/hf/export.h"

#include "io/checkpoint/file/digest.h"
#include "io/checkpoint/file/index.h"
#include "io/foreign/hf/adapter.h"
#include "io/foreign/hf/base.h"
#include "io/foreign/hf/config/config.h"
#include "io/foreign/hf/spread.h"
#include "io/foreign/hf/state.h"
#include "io/foreign/hf/stacked.h"
#include "io/foreign/safetensors/write.h"
#include "io/move/stages.h"
#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/config/family.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Names of types as in config.json's dtype. */
static const struct {
    int file_type;
    const char *name;
} types[SH_MOVE_TYPES] = {[SH_MOVE_F32] = {SH_ST_F32, "float32"},
                          [SH_MOVE_F16] = {SH_ST_F16, "float16"},
                          [SH_MOVE_BF16] = {SH_ST_BF16, "bfloat16"}};

/* Files that accompany the weights and do not follow from them. */
/* clang-format off */
static const char *const beside[] = {
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json",
};
/* clang-format on */

/* Make an entry of the layout, without a place. */
static struct sh_st_entry describe(const struct sh_ckpt_tensor *t, enum sh_move_type type)
{
    struct sh_st_entry e = {.type = types[type].file_type, .ndim = t->ndim, .elems = t->elems};
    snprintf(e.name, sizeof e.name, "%.*s", (int)sizeof e.name - 1, t->name);
    memcpy(e.dim, t->dim, (size_t)t->ndim * sizeof *t->dim);
    return e;
}

/* Make config.json from our configuration, and from the source for what only it knows. */
static sh_rc print_config(const struct sh_config *cfg, const struct sh_hf_export *o, char **text)
{
    char *source;
    sh_rc rc;
    if (!o->source[0])
        return sh_hf_config_write_kept(cfg, types[o->type].name, o->kept, text);
    source = sh_path_join(o->source, "config.json");
    rc = sh_hf_config_write(cfg, types[o->type].name, source, text);
    free(source);
    return rc;
}

static sh_rc write_beside(const struct sh_st_writing *w, const struct sh_config *cfg, const struct sh_hf_export *o)
{
    const char *from = o->source[0] ? o->source : o->tokenizer;
    char *text;
    sh_rc rc;
    SH_TRY(print_config(cfg, o, &text));
    /* Small files are written last, by rank 0 only. */
    rc = sh_st_writing_note(w, "config.json", text);
    free(text);
    for (size_t i = 0; rc == SH_OK && from && i < sizeof beside / sizeof *beside; i++)
        rc = sh_st_writing_copy(w, from, beside[i]);
    return rc;
}

/* An export by all ranks; one from a file is an export by one process of pieces that are not in memory. */
struct export
{
    const char *folder;
    const char *file; /* put everything in one file of this name; NULL: name files like save_pretrained() */
    const struct sh_config *cfg;
    const struct sh_ckpt_set *set;
    const struct sh_ckpt_meta *meta; /* for a state folder */
    int n_states;                    /* that are exported */
    const struct sh_hf_export *options;
    sh_rc (*beside)(const struct export *x); /* writes small files, after the tensors */
    struct sh_hf_base *base;                 /* for a merge */
    struct sh_hf_spread spread;              /* the layout's tensors, in its order */
    struct sh_move_far far;                  /* its numbers: state, then piece */
    struct sh_st_writing w;
};

static sh_rc beside_model(const struct export *x)
{
    return write_beside(&x->w, x->cfg, x->options);
}

static sh_rc beside_state(const struct export *x)
{
    SH_TRY(beside_model(x));
    char *text = sh_hf_state_text(x->cfg, x->meta, &x->spread);
    sh_rc rc = sh_st_writing_note(&x->w, SH_HF_STATE_FILE, text);
    free(text);
    return rc;
}

static sh_rc beside_adapter(const struct export *x)
{
    char *text;
    SH_TRY(sh_hf_adapter_write(x->cfg, x->options->base, &text));
    sh_rc rc = sh_st_writing_note(&x->w, SH_HF_ADAPTER_CONFIG, text);
    free(text);
    return rc;
}

static sh_rc beside_merged(const struct export *x)
{
    SH_TRY(sh_hf_base_check(x->base));
    return beside_model(x);
}

/* Local, with the same result on all ranks. */
static sh_rc lay_out(void *arg)
{
    struct export *x = arg;
    const struct sh_hf_family *f;
    SH_TRY(sh_hf_family_to_write(sh_family_of(x->cfg->model.family)->name, &f));
    SH_TRY(sh_hf_spread_make(f, x->set, NULL, &x->spread));
    int64_t n = (int64_t)x->spread.n * x->n_states;
    struct sh_st_entry *e = sh_calloc((size_t)n + 1, sizeof *e);
    for (int64_t i = 0; i < n; i++)
        e[i] = describe(&x->spread.part[i % x->spread.n], x->options->type);
    /* Files of at most max_shard_bytes. */
    sh_rc rc = sh_st_writing_begin(&x->w, x->folder, e, n, sh_hf_state_stem, x->n_states,
                                   x->file ? INT64_MAX : x->options->max_shard_bytes, (int)x->options->verify);
    if (rc == SH_OK && x->file)
        snprintf(x->w.layout.index.file[0].name, sizeof x->w.layout.index.file[0].name, "%s", x->file);
    free(e);
    return rc;
}

/* Rank 0 creates the folder and the files; the other ranks open them after share_name(). */
static sh_rc create(void *arg)
{
    return sh_st_writing_create(&((struct export *)arg)->w);
}

/* Collective: the temporary name is random, so all ranks use rank 0's. */
static sh_rc share_name(void *arg)
{
    struct export *x = arg;
    return sh_mesh_bcast(x->w.temp, sizeof x->w.temp, 0);
}

static sh_rc get_far(void *arg, int number, int64_t first, int64_t n, float *to)
{
    const struct sh_ckpt_set *set = ((const struct export *)arg)->set;
    int piece = number % set->n_pieces;
    return set->far->get(set->far->arg, piece, number / set->n_pieces, first - set->pieces[piece].begin, n, to);
}

/* Neighbours in a tensor are neighbours in a file, up to its end: elements of a state from `at` on, of [at, end), that
 * are one range of a file. *place: the range's first byte. What is not in memory is read block by block, so a range that begins inside
 * a block ends with it. */
static int64_t stretch(const struct export *x, int state, int tensor, int64_t at, int64_t end, bool far, int *file,
                       int64_t *place)
{
    const struct sh_st_entry *entry = x->w.layout.index.entry + (int64_t)state * x->spread.n;
    int64_t into, n;
    int k = sh_hf_spread_part(&x->spread, tensor, at, &into), last = x->spread.first[tensor + 1];
    *file = entry[k].file;
    *place = entry[k].at + into * sh_move_type_bytes(x->options->type);
    n = entry[k].elems - into;
    while (n < end - at && ++k < last && entry[k].file == *file)
        n += entry[k].elems;
    if (far && at % SH_CKPT_BLOCK_ELEMS && n > SH_CKPT_BLOCK_ELEMS - at % SH_CKPT_BLOCK_ELEMS)
        n = SH_CKPT_BLOCK_ELEMS - at % SH_CKPT_BLOCK_ELEMS;
    return n < end - at ? n : end - at;
}

struct parts {
    struct sh_move_part *part;
    int n, cap;
};

static void add_piece(const struct export *x, int state, int piece, struct parts *to)
{
    const struct sh_ckpt_piece *p = &x->set->pieces[piece];
    bool far = sh_floats_none(p->data[state]);
    for (int64_t at = p->begin, end = at + p->elems, here; at < end; at += here) {
        to->part = sh_grow(to->part, to->n, &to->cap, sizeof *to->part);
        struct sh_move_part *part = &to->part[to->n++];
        *part = (struct sh_move_part){.name = x->set->tensors[p->tensor].name,
                                      .type = x->options->type,
                                      .first = at,
                                      .data = sh_floats_at(p->data[state], at - p->begin),
                                      .far = far ? &x->far : NULL,
                                      .number = state * x->set->n_pieces + piece};
        here = part->elems = stretch(x, state, p->tensor, at, end, far, &part->file, &part->at);
    }
}

/* Write this rank's pieces of the states, converted to the export's type. Messages have the names of the model's
 * tensors. */
static sh_rc put(void *arg)
{
    struct export *x = arg;
    struct parts parts = {0};
    x->far = (struct sh_move_far){.get = get_far, .arg = x};
    for (int s = 0; s < x->n_states; s++)
        for (int i = 0; i < x->set->n_pieces; i++)
            add_piece(x, s, i, &parts);
    sh_rc rc = sh_st_writing_put(&x->w, parts.part, parts.n);
    free(parts.part);
    return rc;
}

/* Each rank syncs what it has written: other nodes cannot sync this node's page cache. */
static sh_rc sync_files(void *arg)
{
    return sh_st_writing_sync(&((struct export *)arg)->w);
}

/* Each rank compares what it has written; nothing with verify=off. */
static sh_rc compare(void *arg)
{
    return sh_st_writing_compare(&((struct export *)arg)->w);
}

/* Called when all ranks have synced and compared; rank 0 writes the small files and renames the folder. */
static sh_rc commit(void *arg)
{
    struct export *x = arg;
    SH_TRY(x->beside(x));
    return sh_st_writing_commit(&x->w);
}

static sh_rc compare_pieces(void *arg)
{
    return sh_ckpt_set_covers(((struct export *)arg)->set);
}

static const struct sh_move_stage stages[] = {
    {.name = "comparing what the ranks hold", .run = compare_pieces},
    {.name = "laying out the files", .local = true, .run = lay_out},
    {.name = "creating the files", .local = true, .rank0 = true, .run = create},
    {.name = "sending their folder", .run = share_name},
    {.name = "writing the weights", .local = true, .run = put},
    {.name = "fsync", .local = true, .run = sync_files},
    {.name = "reading the weights back", .local = true, .run = compare},
    {.name = "giving the folder its name", .local = true, .rank0 = true, .run = commit},
};

/* A failure in any stage leaves no folder behind. */
static sh_rc run(struct export *x)
{
    struct sh_move_stages s = {.stage = stages, .n = sizeof stages / sizeof *stages, .arg = x};
    sh_move_stages_open(&s, sh_strfmt("writing %s", x->folder), x->options->timeout_seconds);
    sh_rc rc = sh_move_stages_run(&s);
    sh_move_stages_close(&s);
    sh_st_writing_end(&x->w);
    sh_hf_spread_free(&x->spread);
    return rc;
}

sh_rc sh_hf_export(const char *folder, const struct sh_config *cfg, const struct sh_ckpt_set *set,
                   const struct sh_hf_export *options)
{
    struct export x = {
        .folder = folder, .cfg = cfg, .set = set, .options = options, .beside = beside_model, .n_states = 1};
    return run(&x);
}

/* AdamW's, in the order of the stems, and the same numbers for all parameters. */
static sh_rc check_moments(const char *checkpoint, const struct sh_config *cfg, const struct sh_ckpt_states *states)
{
    bool same = states->n == sh_ckpt_states_1.n && cfg->optimizer.name == SH_OPTIM_ADAMW; /* Muon has some of them */
    if (cfg->optimizer.groups[0])
        return sh_fail(SH_E_USAGE,
                       "%s: its parameters have groups (optimizer.groups), which a state folder does not have",
                       checkpoint);
    for (int i = 0; same && i < states->n; i++)
        same = strcmp(states->name[i], sh_ckpt_states_1.name[i]) == 0;
    return same ? SH_OK
                : sh_fail(SH_E_USAGE, "%s: its states are not AdamW's exp_avg and exp_avg_sq, which a state folder has",
                          checkpoint);
}

/* One process: each block is read when it is written, so a model larger than memory can be exported. */
static sh_rc run_far(struct export *x, struct sh_ckpt_set set, const struct sh_ckpt_far *far)
{
    struct sh_ckpt_piece *pieces = sh_ckpt_pieces_far(&set);
    set.far = far;
    x->set = &set;
    sh_rc rc = run(x);
    free(pieces);
    return rc;
}

/* ---- from a file ---- */

struct source {
    const char *path;
    struct sh_ckpt_index index;
    int fd, state;              /* the number of the one that is exported as the parameters */
    struct sh_hf_stacks stacks; /* adapters of experts */
};

/* Elements of an adapter that lies in another order in the folder. Each range of the folder needs all of the tensor,
 * which has a few blocks. */
static sh_rc read_turned(const struct source *f, const struct sh_ckpt_entry *e, int64_t at, int64_t n, float *to)
{
    float *all = sh_calloc((size_t)e->elems, sizeof *all);
    sh_rc rc = sh_ckpt_index_read_range(&f->index, f->fd, f->path, f->state, e, 0, e->elems, all);
    if (rc == SH_OK)
        sh_hf_stacked_turn(e->dim, all, at, n, to);
    free(all);
    return rc;
}

/* Whole blocks but for the ends of files, and compared with their digests. */
static sh_rc read_range(void *arg, int tensor, int s, int64_t at, int64_t n, float *to)
{
    const struct source *f = arg;
    if (sh_hf_stacked_is_turned(&f->stacks, f->index.entry[tensor].name))
        return read_turned(f, &f->index.entry[tensor], at, n, to);
    if (s == SH_CKPT_MODEL)
        s = f->state;
    return sh_ckpt_index_read_range(&f->index, f->fd, f->path, s, &f->index.entry[tensor], at, n, to);
}

/* Name and shape of a tensor in the folder. PEFT puts a prefix of two words before the model's names. */
static struct sh_ckpt_tensor tensor_there(const struct source *f, const struct sh_ckpt_entry *e, bool adapter)
{
    struct sh_ckpt_tensor t = {.ndim = e->ndim, .elems = e->elems};
    char name[sizeof e->name];
    memcpy(t.dim, e->dim, sizeof t.dim);
    snprintf(name, sizeof name, "%s", e->name);
    if (adapter)
        sh_hf_stacked_to_file(&f->stacks, name, sizeof name, &t.ndim, t.dim);
    t.name = sh_strfmt("%s%s", adapter ? SH_HF_ADAPTER_PREFIX : "", name);
    return t;
}

/* The file does not have the roles of tensors. Errors: SH_E_DATA: its tensors are not those of its configuration. */
static sh_rc find_roles(const struct source *f, const struct sh_ckpt_set *model, struct sh_ckpt_tensor *t)
{
    for (int64_t i = 0; i < f->index.n; i++) {
        int k = 0;
        while (k < model->n_tensors && strcmp(model->tensors[k].name, t[i].name) != 0)
            k++;
        if (k == model->n_tensors)
            return sh_fail(SH_E_DATA, "%s: %s is not a tensor of the model that its configuration describes", f->path,
                           t[i].name);
        t[i].role = model->tensors[k].role;
    }
    return SH_OK;
}

static sh_rc copy_all(struct source *f, struct export *x)
{
    struct sh_ckpt_tensor *t = sh_calloc((size_t)f->index.n + 1, sizeof *t);
    struct sh_ckpt_set set = {.states = f->index.states, .tensors = t, .n_tensors = (int)f->index.n};
    for (int64_t i = 0; i < f->index.n; i++)
        t[i] = tensor_there(f, &f->index.entry[i], x->options->adapter);
    sh_rc rc = x->options->moments ? find_roles(f, x->options->moments, t) : SH_OK;
    if (rc == SH_OK)
        rc = run_far(x, set, &(struct sh_ckpt_far){.get = read_range, .arg = f});
    for (int64_t i = 0; i < f->index.n; i++)
        free((void *)(uintptr_t)t[i].name);
    free(t);
    return rc;
}

sh_rc sh_hf_export_file(const char *checkpoint, const char *folder, const struct sh_config *cfg,
                        const struct sh_hf_export *options)
{
    struct source f = {.path = checkpoint, .fd = -1};
    if (options->adapter)
        f.stacks = sh_hf_stacks_of(cfg);
    struct export x = {.folder = folder,
                       .file = options->adapter ? SH_HF_ADAPTER_FILE : NULL,
                       .cfg = cfg,
                       .options = options,
                       .meta = &f.index.meta,
                       .n_states = options->moments ? SH_HF_STATES : 1,
                       .beside = options->adapter   ? beside_adapter
                                 : options->moments ? beside_state
                                                    : beside_model};
    sh_rc rc = sh_ckpt_index_read(checkpoint, &f.index);
    if (rc == SH_OK)
        rc = sh_ckpt_index_state(&f.index, checkpoint, options->state, &f.state);
    if (rc == SH_OK)
        f.index.n = sh_ckpt_index_models(&f.index);
    if (rc == SH_OK && options->moments)
        rc = check_moments(checkpoint, cfg, &f.index.states);
    if (rc == SH_OK)
        rc = sh_ckpt_index_open_data(&f.index, checkpoint, &f.fd);
    if (rc == SH_OK)
        rc = copy_all(&f, &x);
    sh_ckpt_index_free(&f.index);
    if (f.fd >= 0)
        close(f.fd);
    return rc;
}

/* ---- merging an adapter checkpoint into its base ---- */

static sh_rc read_merged(void *arg, int tensor, int s, int64_t at, int64_t n, float *to)
{
    (void)s;
    return sh_hf_base_read(arg, tensor, at, n, to);
}

sh_rc sh_hf_merge_file(const char *checkpoint, const char *folder, const struct sh_config *cfg,
                       const struct sh_ckpt_set *set, const struct sh_hf_export *options)
{
    struct sh_hf_base base;
    struct export x = {
        .folder = folder, .cfg = cfg, .options = options, .beside = beside_merged, .base = &base, .n_states = 1};
    sh_rc rc = sh_hf_base_open(checkpoint, options->state, options->base, options->packed, cfg, set, &base);
    if (rc == SH_OK)
        rc = run_far(&x, *set, &(struct sh_ckpt_far){.get = read_merged, .arg = &base});
    sh_hf_base_close(&base);
    return rc;
}
