#include "io/hf/export.h"

#include "io/checkpoint/digest.h"
#include "io/checkpoint/index.h"
#include "io/file/file.h"
#include "io/hf/config.h"
#include "io/move/pool.h"
#include "io/move/deadline.h"
#include "io/safetensors/write.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Names as config.json has them in dtype. */
static const struct {
    int file_type;
    const char *name;
} types[SH_MOVE_TYPES] = {
    [SH_MOVE_F32] = {SH_ST_F32, "float32"}, [SH_MOVE_F16] = {SH_ST_F16, "float16"}, [SH_MOVE_BF16] = {SH_ST_BF16, "bfloat16"}};

/* What stands beside the weights and does not follow from them. */
static const char *const beside[] = {
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json",
};

/* An entry of the layout, without a place. */
static struct sh_st_entry describe(const char *name, int ndim, const int64_t *dim, int64_t elems, enum sh_move_type type)
{
    struct sh_st_entry e = {.type = types[type].file_type, .ndim = ndim, .elems = elems};
    snprintf(e.name, sizeof e.name, "%s", name);
    memcpy(e.dim, dim, (size_t)ndim * sizeof *dim);
    return e;
}

/* From our configuration, and what only the source knows. */
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

struct export {
    const char *folder;
    const struct sh_config *cfg;
    const struct sh_ckpt_set *set;
    const struct sh_hf_export *options;
    int rank;
    struct sh_st_writing w;
};

/* Local and equal on all ranks. */
static sh_rc lay_out(struct export *x)
{
    const struct sh_ckpt_set *set = x->set;
    struct sh_st_entry *e = sh_calloc((size_t)set->n_tensors + 1, sizeof *e);
    for (int i = 0; i < set->n_tensors; i++)
        e[i] = describe(set->tensors[i].name, set->tensors[i].ndim, set->tensors[i].dim, set->tensors[i].elems,
                        x->options->type);
    /* Files of at most max_shard_bytes. */
    sh_rc rc = sh_st_writing_begin(&x->w, x->folder, e, set->n_tensors, x->options->max_shard_bytes, (int)x->options->verify);
    free(e);
    return rc;
}

/* Rank 0 makes the folder and the files; the others open them after share_name(). */
static sh_rc create(struct export *x)
{
    return x->rank == 0 ? sh_st_writing_create(&x->w) : SH_OK;
}

/* Collective: the temporary name is random, so rank 0's is everybody's. */
static sh_rc share_name(struct export *x)
{
    return sh_mesh_bcast(x->w.temp, sizeof x->w.temp, 0);
}

/* This rank's pieces of the parameters, converted to the export's type as they are written. */
static sh_rc put(struct export *x)
{
    struct sh_move_part *part = sh_calloc((size_t)x->set->n_pieces + 1, sizeof *part);
    for (int i = 0; i < x->set->n_pieces; i++) {
        const struct sh_ckpt_piece *p = &x->set->pieces[i];
        const struct sh_st_entry *e = &x->w.layout.index.entry[p->tensor];
        part[i] = (struct sh_move_part){.name = e->name, .type = x->options->type, .file = e->file,
                                        .at = e->at + p->begin * sh_move_type_bytes(x->options->type), .elems = p->elems,
                                        .first = p->begin, .data = p->data[SH_CKPT_MODEL]};
    }
    sh_rc rc = sh_st_writing_put(&x->w, part, x->set->n_pieces);
    free(part);
    return rc;
}

/* Each rank what it has written: other nodes cannot sync this one's page cache. */
static sh_rc sync_files(struct export *x)
{
    return sh_st_writing_sync(&x->w);
}

/* Each rank what it has written; nothing with verify=off. */
static sh_rc compare(struct export *x)
{
    return sh_st_writing_compare(&x->w);
}

/* Rank 0, when all ranks have synced and compared. */
static sh_rc commit(struct export *x)
{
    if (x->rank != 0)
        return SH_OK;
    SH_TRY(write_beside(&x->w, x->cfg, x->options));
    return sh_st_writing_commit(&x->w);
}

static const struct {
    const char *name;
    sh_rc (*run)(struct export *);
} stages[] = {
    {"laying out the files", lay_out}, {"creating the files", create},     {"sending their folder", share_name},
    {"writing the weights", put},      {"fsync", sync_files},              {"reading the weights back", compare},
    {"giving the folder its name", commit},
};

/* Collective. Each stage ends with an agreement; a failure at any of them leaves no folder. */
sh_rc sh_hf_export(const char *folder, const struct sh_config *cfg, const struct sh_ckpt_set *set,
                   const struct sh_hf_export *options)
{
    struct export x = {.folder = folder, .cfg = cfg, .set = set, .options = options};
    char *what = sh_strfmt("writing %s", folder);
    sh_rc rc = SH_OK;
    int world;
    sh_mesh_own_mpi();
    sh_mesh_world(&x.rank, &world);
    /* The deadline covers all stages; a rank that waits has some seconds more. */
    struct sh_move_deadline *d = sh_move_deadline_start(what, options->timeout_seconds, x.rank);
    for (size_t i = 0; i < sizeof stages / sizeof *stages && rc == SH_OK; i++) {
        sh_move_deadline_enter(d, stages[i].name);
        rc = stages[i].run(&x);
        sh_move_deadline_wait(d);
        rc = sh_agree(rc);
    }
    sh_move_deadline_stop(d);
    free(what);
    sh_st_writing_end(&x.w);
    return rc;
}

/* ---- from a file ---- */

/* A block of a tensor in the checkpoint, and the tensor in the export that it belongs to. */
struct job {
    const struct sh_ckpt_entry *from;
    const struct sh_st_entry *to;
    int64_t block;
    uint64_t sum;
};

struct copy {
    const char *path;
    struct sh_ckpt_index index;
    int fd;
    const struct sh_hf_export *options;
    struct sh_st_writing w;
    struct job *job;
    int64_t n;
};

/* Blocks are read whole, since their digests are of whole blocks. */
enum { BLOCK_BYTES = SH_CKPT_BLOCK_ELEMS * 4, THREADS = 4 };

/* Where the block goes in the output file, whose elements may have another size. */
static int64_t place_of(const struct job *j)
{
    return j->to->at + j->block * SH_CKPT_BLOCK_ELEMS * sh_st_type_bytes(j->to->type);
}

/* The buffer has room for a block of floats and one of the file. */
static sh_rc copy_block(void *arg, int64_t i, char *buffer)
{
    struct copy *c = arg;
    struct job *j = &c->job[i];
    float *from = (float *)(void *)buffer;
    char *to = buffer + BLOCK_BYTES;
    const struct sh_file_direct *f = &c->w.file[j->to->file];
    int64_t n, bad;
    SH_TRY(sh_ckpt_index_read_block(&c->index, c->fd, c->path, SH_CKPT_MODEL, j->from, j->block, from, &n));
    bad = sh_move_narrow(c->options->type, (struct sh_floats){.whole = from}, n, to);
    /* float16 has the smallest range of the three, so only there can a number be too large. */
    if (bad < n)
        return sh_fail(SH_E_NUMERIC, "%s: element %lld of %s is %g, and float16 ends at 65504; export as bfloat16 or float32",
                       c->path, (long long)(j->block * SH_CKPT_BLOCK_ELEMS + bad), j->to->name, (double)from[bad]);
    j->sum = sh_hash64(to, (size_t)(n * sh_st_type_bytes(j->to->type)));
    return sh_file_write(f->fd, f->path, to, n * sh_st_type_bytes(j->to->type), place_of(j));
}

/* Through direct I/O where it is possible, so that the disk is read and not the cache. */
static sh_rc compare_block(void *arg, int64_t i, char *buffer)
{
    const struct copy *c = arg;
    const struct job *j = &c->job[i];
    const struct sh_file_direct *f = &c->w.file[j->to->file];
    int64_t bytes = sh_ckpt_block_elems(j->from->elems, j->block) * sh_st_type_bytes(j->to->type), at = place_of(j);
    SH_TRY(sh_file_direct_read(f, buffer, at, at + bytes));
    if (sh_hash64(buffer + (at - sh_file_align_down(at)), (size_t)bytes) == j->sum)
        return SH_OK;
    return sh_fail(SH_E_DATA, "%s: bytes of %s are not what was written: is the disk sound?", f->path, j->to->name);
}

/* One job a block: the digests of the checkpoint are by block, so each is verified as it is converted. */
static sh_rc lay_out_copy(struct copy *c, const char *folder)
{
    struct sh_st_entry *e = sh_calloc((size_t)c->index.n + 1, sizeof *e);
    int cap = 0, n = 0;
    for (int64_t i = 0; i < c->index.n; i++)
        e[i] = describe(c->index.entry[i].name, c->index.entry[i].ndim, c->index.entry[i].dim, c->index.entry[i].elems,
                        c->options->type);
    sh_rc rc = sh_st_writing_begin(&c->w, folder, e, c->index.n, c->options->max_shard_bytes, (int)c->options->verify);
    free(e);
    SH_TRY(rc);
    for (int64_t i = 0; i < c->index.n; i++)
        for (int64_t b = 0; b < sh_ckpt_blocks(c->index.entry[i].elems); b++) {
            c->job = sh_grow(c->job, n, &cap, sizeof *c->job);
            c->job[n++] = (struct job){.from = &c->index.entry[i], .to = &c->w.layout.index.entry[i], .block = b};
        }
    c->n = n;
    return SH_OK;
}

/* In order: read and check the index, create, copy in parallel, sync, compare, describe, publish. */
static sh_rc copy_all(struct copy *c, const char *folder, const struct sh_config *cfg)
{
    SH_TRY(sh_ckpt_index_read(c->path, &c->index));
    SH_TRY(sh_ckpt_index_open_data(&c->index, c->path, &c->fd));
    SH_TRY(lay_out_copy(c, folder));
    SH_TRY(sh_st_writing_create(&c->w));
    /* Opened before the pool starts: sh_st_writing_open() is for one thread. */
    for (int i = 0; i < c->w.layout.index.n_files; i++)
        SH_TRY(sh_st_writing_open(&c->w, i));
    SH_TRY(sh_move_pool_run(c->n, THREADS, 2 * BLOCK_BYTES, copy_block, c));
    SH_TRY(sh_st_writing_sync(&c->w));
    /* With verify=off what was written is trusted. */
    if (c->options->verify != SH_VERIFY_OFF)
        SH_TRY(sh_move_pool_run(c->n, THREADS, BLOCK_BYTES + 2 * SH_FILE_ALIGN, compare_block, c));
    SH_TRY(write_beside(&c->w, cfg, c->options));
    return sh_st_writing_commit(&c->w);
}

/* One process, without MPI: converts a checkpoint block by block, so that a model larger than memory can be exported.
 */
sh_rc sh_hf_export_file(const char *checkpoint, const char *folder, const struct sh_config *cfg,
                        const struct sh_hf_export *options)
{
    struct copy c = {.path = checkpoint, .fd = -1, .options = options};
    sh_rc rc = copy_all(&c, folder, cfg);
    sh_st_writing_end(&c.w);
    sh_ckpt_index_free(&c.index);
    if (c.fd >= 0)
        close(c.fd);
    free(c.job);
    return rc;
}
