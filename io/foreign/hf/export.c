#include "io/foreign/hf/export.h"

#include "io/checkpoint/digest.h"
#include "io/checkpoint/index.h"
#include "io/file/file.h"
#include "io/foreign/hf/adapter.h"
#include "io/foreign/hf/base.h"
#include "io/foreign/hf/config.h"
#include "io/foreign/hf/stream.h"
#include "io/move/stages.h"
#include "src/base/mem.h"
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
static struct sh_st_entry describe(const char *name, int ndim, const int64_t *dim, int64_t elems,
                                   enum sh_move_type type)
{
    struct sh_st_entry e = {.type = types[type].file_type, .ndim = ndim, .elems = elems};
    snprintf(e.name, sizeof e.name, "%.*s", (int)sizeof e.name - 1, name);
    memcpy(e.dim, dim, (size_t)ndim * sizeof *dim);
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

/* ---- from memory, by all ranks ---- */

struct export
{
    const char *folder;
    const struct sh_config *cfg;
    const struct sh_ckpt_set *set;
    const struct sh_hf_export *options;
    int rank;
    struct sh_st_writing w;
};

/* Local, with the same result on all ranks. */
static sh_rc lay_out(void *arg)
{
    struct export *x = arg;
    const struct sh_ckpt_set *set = x->set;
    struct sh_st_entry *e = sh_calloc((size_t)set->n_tensors + 1, sizeof *e);
    for (int i = 0; i < set->n_tensors; i++)
        e[i] = describe(set->tensors[i].name, set->tensors[i].ndim, set->tensors[i].dim, set->tensors[i].elems,
                        x->options->type);
    /* Files of at most max_shard_bytes. */
    sh_rc rc =
        sh_st_writing_begin(&x->w, x->folder, e, set->n_tensors, x->options->max_shard_bytes, (int)x->options->verify);
    free(e);
    return rc;
}

/* Rank 0 creates the folder and the files; the other ranks open them after share_name(). */
static sh_rc create(void *arg)
{
    struct export *x = arg;
    return x->rank == 0 ? sh_st_writing_create(&x->w) : SH_OK;
}

/* Collective: the temporary name is random, so all ranks use rank 0's. */
static sh_rc share_name(void *arg)
{
    struct export *x = arg;
    return sh_mesh_bcast(x->w.temp, sizeof x->w.temp, 0);
}

/* Write this rank's pieces of the parameters, converted to the export's type. */
static sh_rc put(void *arg)
{
    struct export *x = arg;
    struct sh_move_part *part = sh_calloc((size_t)x->set->n_pieces + 1, sizeof *part);
    for (int i = 0; i < x->set->n_pieces; i++) {
        const struct sh_ckpt_piece *p = &x->set->pieces[i];
        const struct sh_st_entry *e = &x->w.layout.index.entry[p->tensor];
        part[i] = (struct sh_move_part){.name = e->name,
                                        .type = x->options->type,
                                        .file = e->file,
                                        .at = e->at + p->begin * sh_move_type_bytes(x->options->type),
                                        .elems = p->elems,
                                        .first = p->begin,
                                        .data = p->data[SH_CKPT_MODEL]};
    }
    sh_rc rc = sh_st_writing_put(&x->w, part, x->set->n_pieces);
    free(part);
    return rc;
}

/* Each rank syncs what it has written: other nodes cannot sync this node's page cache. */
static sh_rc sync_files(void *arg)
{
    struct export *x = arg;
    return sh_st_writing_sync(&x->w);
}

/* Each rank compares what it has written; nothing with verify=off. */
static sh_rc compare(void *arg)
{
    struct export *x = arg;
    return sh_st_writing_compare(&x->w);
}

/* Called when all ranks have synced and compared; rank 0 renames the folder. */
static sh_rc commit(void *arg)
{
    struct export *x = arg;
    if (x->rank != 0)
        return SH_OK;
    SH_TRY(write_beside(&x->w, x->cfg, x->options));
    return sh_st_writing_commit(&x->w);
}

static const struct sh_move_stage stages[] = {
    {.name = "laying out the files", .local = true, .run = lay_out},
    {.name = "creating the files", .local = true, .run = create},
    {.name = "sending their folder", .run = share_name},
    {.name = "writing the weights", .local = true, .run = put},
    {.name = "fsync", .local = true, .run = sync_files},
    {.name = "reading the weights back", .local = true, .run = compare},
    {.name = "giving the folder its name", .local = true, .run = commit},
};

/* Collective. A failure in any stage leaves no folder behind. */
sh_rc sh_hf_export(const char *folder, const struct sh_config *cfg, const struct sh_ckpt_set *set,
                   const struct sh_hf_export *options)
{
    struct export x = {.folder = folder, .cfg = cfg, .set = set, .options = options};
    struct sh_move_stages run = {.stage = stages, .n = sizeof stages / sizeof *stages, .arg = &x};
    int world;
    sh_mesh_world(&x.rank, &world);
    sh_move_stages_open(&run, sh_strfmt("writing %s", folder), options->timeout_seconds);
    sh_rc rc = sh_move_stages_run(&run);
    sh_move_stages_close(&run);
    sh_st_writing_end(&x.w);
    return rc;
}

/* ---- from a file ---- */

struct source {
    const char *path;
    struct sh_ckpt_index index;
    int fd;
    const struct sh_config *cfg;
    const struct sh_hf_export *options;
};

/* Read a block and compare it with its digest. */
static sh_rc read_block(void *arg, int tensor, int64_t first, int64_t n, float *out, void *spare)
{
    const struct source *f = arg;
    (void)spare;
    return sh_ckpt_index_read_block(&f->index, f->fd, f->path, SH_CKPT_MODEL, &f->index.entry[tensor],
                                    first / SH_CKPT_BLOCK_ELEMS, out, &n);
}

static sh_rc beside_model(void *arg, const struct sh_st_writing *w)
{
    const struct source *f = arg;
    return write_beside(w, f->cfg, f->options);
}

static sh_rc beside_adapter(void *arg, const struct sh_st_writing *w)
{
    const struct source *f = arg;
    char *text;
    SH_TRY(sh_hf_adapter_write(f->cfg, f->options->base, &text));
    sh_rc rc = sh_st_writing_note(w, SH_HF_ADAPTER_CONFIG, text);
    free(text);
    return rc;
}

/* Names of adapters get the prefix of two words that PEFT puts before the model's names. */
static sh_rc copy_all(struct source *f, const char *folder)
{
    bool adapter = f->options->adapter;
    struct sh_hf_stream out = {.folder = folder,
                               .from = f->path,
                               .options = f->options,
                               .arg = f,
                               .read = read_block,
                               .beside = adapter ? beside_adapter : beside_model,
                               .file = adapter ? SH_HF_ADAPTER_FILE : NULL};
    SH_TRY(sh_ckpt_index_read(f->path, &f->index));
    SH_TRY(sh_ckpt_index_open_data(&f->index, f->path, &f->fd));
    struct sh_st_entry *e = sh_calloc((size_t)f->index.n + 1, sizeof *e);
    for (int64_t i = 0; i < f->index.n; i++) {
        char name[SH_ST_NAME_MAX + sizeof SH_HF_ADAPTER_PREFIX];
        snprintf(name, sizeof name, "%s%s", adapter ? SH_HF_ADAPTER_PREFIX : "", f->index.entry[i].name);
        e[i] = describe(name, f->index.entry[i].ndim, f->index.entry[i].dim, f->index.entry[i].elems, f->options->type);
    }
    out.tensor = e;
    out.n = f->index.n;
    sh_rc rc = sh_hf_stream_out(&out);
    free(e);
    return rc;
}

/* One process, without MPI: converts a checkpoint block by block, so a model larger than memory can be exported. */
sh_rc sh_hf_export_file(const char *checkpoint, const char *folder, const struct sh_config *cfg,
                        const struct sh_hf_export *options)
{
    struct source f = {.path = checkpoint, .fd = -1, .cfg = cfg, .options = options};
    sh_rc rc = copy_all(&f, folder);
    sh_ckpt_index_free(&f.index);
    if (f.fd >= 0)
        close(f.fd);
    return rc;
}

/* ---- merging an adapter checkpoint into its base ---- */

struct merging {
    struct sh_hf_base base;
    const struct sh_config *cfg;
    const struct sh_hf_export *options;
};

static sh_rc read_merged(void *arg, int tensor, int64_t first, int64_t n, float *out, void *spare)
{
    return sh_hf_base_read(&((struct merging *)arg)->base, tensor, first, n, out, spare);
}

/* Runs before the folder gets its name. */
static sh_rc beside_merged(void *arg, const struct sh_st_writing *w)
{
    const struct merging *m = arg;
    SH_TRY(sh_hf_base_check(&m->base));
    return write_beside(w, m->cfg, m->options);
}

static sh_rc merge(struct merging *m, const char *checkpoint, const char *folder, const struct sh_ckpt_set *set)
{
    struct sh_hf_stream out = {.folder = folder,
                               .from = checkpoint,
                               .options = m->options,
                               .arg = m,
                               .read = read_merged,
                               .beside = beside_merged,
                               .n = set->n_tensors};
    SH_TRY(sh_hf_base_open(checkpoint, m->options->base, m->options->packed, m->cfg, set, &m->base));
    struct sh_st_entry *e = sh_calloc((size_t)set->n_tensors + 1, sizeof *e);
    for (int i = 0; i < set->n_tensors; i++)
        e[i] = describe(set->tensors[i].name, set->tensors[i].ndim, set->tensors[i].dim, set->tensors[i].elems,
                        m->options->type);
    out.tensor = e;
    sh_rc rc = sh_hf_stream_out(&out);
    free(e);
    return rc;
}

sh_rc sh_hf_merge_file(const char *checkpoint, const char *folder, const struct sh_config *cfg,
                       const struct sh_ckpt_set *set, const struct sh_hf_export *options)
{
    struct merging m = {.cfg = cfg, .options = options};
    sh_rc rc = merge(&m, checkpoint, folder, set);
    sh_hf_base_close(&m.base);
    return rc;
}
