#include "io/foreign/hf/load.h"

#include "io/foreign/hf/adapter.h"
#include "io/foreign/hf/config/config.h"
#include "io/foreign/hf/names.h"
#include "io/foreign/hf/stacked.h"
#include "io/move/parts.h"
#include "io/move/stages.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/number/nf4.h"
#include "src/config/family.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

struct load {
    const char *folder, *family;
    const struct sh_config *adapter; /* the folder has adapters, which this describes; NULL: it has a model */
    const struct sh_ckpt_set *set;
    const struct sh_ckpt_load_options *options;
    int rank, world;
    bool may_lack; /* the matrix of labels */
    struct sh_st_index index;
    struct sh_hf_match match;
    struct sh_move_parts parts;
    struct sh_move_replicas replicas;
    struct sh_hf_files files;
    struct sh_move_stages stages;
};

/* Rank 0 reads all headers: 1000 ranks that open 100 files each would be a load on the metadata server. */
static sh_rc read_index(void *arg)
{
    struct load *l = arg;
    struct sh_hf_stacks stacks;
    if (!l->adapter) {
        l->may_lack = l->may_lack && sh_hf_config_predicts(l->folder);
        return sh_st_index_read(l->folder, &l->index);
    }
    stacks = sh_hf_stacks_of(l->adapter);
    SH_TRY(sh_hf_adapter_check(l->folder, l->adapter));
    SH_TRY(sh_st_index_read_one(l->folder, SH_HF_ADAPTER_FILE, &l->index));
    /* Strip the prefix to get the names of the model's modules; a name without it is not a tensor of the model. */
    for (int64_t i = 0; i < l->index.n; i++) {
        char *name = l->index.entry[i].name;
        size_t n = strlen(SH_HF_ADAPTER_PREFIX);
        if (strncmp(name, SH_HF_ADAPTER_PREFIX, n) == 0)
            memmove(name, name + n, strlen(name + n) + 1);
        sh_hf_stacked_from_file(&stacks, &l->index.entry[i]);
    }
    return sh_st_index_sort(&l->index, l->folder);
}

static sh_rc share_index(void *arg)
{
    struct load *l = arg;
    SH_TRY(sh_st_index_share(&l->index, l->rank));
    SH_TRY(sh_mesh_bcast(&l->may_lack, sizeof l->may_lack, 0));
    sh_hf_files_make(&l->files, l->folder, &l->index);
    return SH_OK;
}

/* Runs on rank 0, by path, before any file is opened for its data. */
static sh_rc look_at_owners(void *arg)
{
    struct load *l = arg;
    for (int64_t i = 0; i < l->index.n_files; i++)
        SH_TRY(sh_ckpt_trusted(l->files.path[i], l->options->trust));
    return SH_OK;
}

/* Local, with the same result on all ranks because all have the same index. */
static sh_rc match(void *arg)
{
    struct load *l = arg;
    SH_TRY(sh_hf_match(l->folder, &l->index, l->set, l->family, l->may_lack, &l->match));
    if (l->match.lacks_labels)
        sh_log_info("%s holds a language model: %s%sscore.weight is the run's own", l->folder,
                    l->match.dropped ? l->match.dropped->name : "", l->match.dropped ? " is left out, and " : "");
    return SH_OK;
}

/* Add a part for blocks [first, first + n) of the codes or scales of a packed weight. Returns 1. */
static int add_blocks(const struct sh_st_entry *e, enum sh_move_type type, int64_t first, int64_t n,
                      struct sh_floats data, const struct sh_move_nested *nested, struct sh_move_part *part)
{
    *part = (struct sh_move_part){.name = e->name,
                                  .type = type,
                                  .file = e->file,
                                  .first = first,
                                  .elems = n,
                                  .data = data,
                                  .at = e->at + first * sh_move_type_bytes(type),
                                  .nested = nested};
    return 1;
}

/* Add the parts of a stretch of a packed weight, which consists of whole blocks. Returns the number of parts. */
static int add_packed(const struct sh_hf_nf4 *w, int64_t first, int64_t n, struct sh_floats data,
                      struct sh_move_part *part)
{
    first /= SH_NF4_ELEMS;
    n /= SH_NF4_ELEMS;
    int parts = add_blocks(w->codes, SH_MOVE_CODES, first, n, data, NULL, part);
    return parts +
           add_blocks(w->scales, w->nested ? SH_MOVE_NESTED : SH_MOVE_SCALES, first, n, data, &w->table, part + parts);
}

/* Elements [first, first + n) of part k of the folder. */
struct stretch {
    int k;
    int64_t first, n;
};

/* The stretch that begins at element `at` of a piece's tensor and goes to the end of the part, or of the piece. */
static struct stretch stretch_at(const struct load *l, const struct sh_ckpt_piece *p, int64_t at)
{
    struct stretch s;
    s.k = sh_hf_spread_part(&l->match.spread, p->tensor, at, &s.first);
    int64_t rest = l->match.spread.part[s.k].elems - s.first, left = p->begin + p->elems - at;
    s.n = rest < left ? rest : left;
    return s;
}

/* Add the parts of one piece to an array with room for them. Returns the number of parts. */
static int add_piece(const struct load *l, const struct sh_ckpt_piece *p, struct sh_move_part *part)
{
    struct stretch s;
    int n = 0;
    for (int64_t at = p->begin; at < p->begin + p->elems; at += s.n) {
        struct sh_floats data = sh_floats_at(p->data[SH_CKPT_MODEL], at - p->begin);
        s = stretch_at(l, p, at);
        const struct sh_st_entry *e = l->match.entry[s.k];
        if (l->match.nf4[s.k])
            n += add_packed(l->match.nf4[s.k], s.first, s.n, data, part + n);
        else
            part[n++] = (struct sh_move_part){.name = e->name,
                                              .type = sh_hf_move_type(e),
                                              .file = e->file,
                                              .at = e->at + s.first * sh_st_type_bytes(e->type),
                                              .elems = s.n,
                                              .first = s.first,
                                              .data = data};
    }
    return n;
}

/* At most as many as stretches, times two if they are packed. */
static size_t count_most(const struct load *l)
{
    size_t n = 1;
    for (int i = 0; i < l->set->n_pieces; i++) {
        const struct sh_ckpt_piece *p = &l->set->pieces[i];
        int64_t into;
        n += 2 * (size_t)(sh_hf_spread_part(&l->match.spread, p->tensor, p->begin + p->elems - 1, &into) -
                          sh_hf_spread_part(&l->match.spread, p->tensor, p->begin, &into) + 1);
    }
    return n;
}

/* Whether a tensor's elements have another order in the file, so that it is read as a whole. */
static bool is_turned(const struct load *l, int tensor)
{
    return l->set->tensors[tensor].role == SH_PARAM_EXPERT_LORA_B;
}

static bool is_missing(const struct load *l, const struct sh_ckpt_piece *p)
{
    return l->match.lacks_labels && l->set->tensors[p->tensor].role == SH_PARAM_HEAD;
}

/* A stack in MXFP4 is one part, and all pieces of it. */
static bool is_mxfp4(const struct load *l, const struct sh_ckpt_piece *p)
{
    return l->match.mxfp4[l->match.spread.first[p->tensor]].blocks != NULL;
}

/* Find the places in the files of this rank's pieces of the parameters. The folder has no optimizer state, which stays
 * unchanged. */
static sh_rc plan_reads(void *arg)
{
    struct load *l = arg;
    struct sh_move_part *part = sh_calloc(count_most(l), sizeof *part);
    int n = 0;
    for (int i = 0; i < l->set->n_pieces; i++)
        /* Pieces without memory belong to another rank. */
        if (!sh_floats_none(l->set->pieces[i].data[SH_CKPT_MODEL]) && !is_turned(l, l->set->pieces[i].tensor) &&
            !is_mxfp4(l, &l->set->pieces[i]) && !is_missing(l, &l->set->pieces[i]))
            n += add_piece(l, &l->set->pieces[i], part + n);
    sh_rc rc = sh_move_parts_make(part, n, &l->parts);
    free(part);
    return rc;
}

/* Open only the files in which this rank has a part. */
static sh_rc open_files(void *arg)
{
    struct load *l = arg;
    for (int i = 0; i < l->parts.n_chunks; i++)
        SH_TRY(sh_hf_files_open(&l->files, l->parts.chunk[i].file));
    return SH_OK;
}

/* Read the small tensors that are needed to unpack the weights of which this rank has a part. */
static sh_rc read_packing(void *arg)
{
    struct load *l = arg;
    struct stretch s;
    for (const struct sh_ckpt_piece *p = l->set->pieces; p < l->set->pieces + l->set->n_pieces; p++)
        for (int64_t at = p->begin; at < p->begin + p->elems; at += s.n) {
            s = stretch_at(l, p, at);
            if (l->match.nf4[s.k])
                SH_TRY(sh_hf_nf4_read(l->match.nf4[s.k], l->folder, &l->match.spread.part[s.k], &l->files));
        }
    return SH_OK;
}

/* As in io/checkpoint/load.c: ranks that read the same parts share the reading. Packed weights are excluded: codes and
 * scales go to the same place in memory, which would be passed on while one of the two has not been read yet. */
static sh_rc find_replicas(void *arg)
{
    struct load *l = arg;
    return l->options->share && !l->match.n_packed ? sh_move_replicas_find(sh_move_parts_wish(&l->parts), &l->replicas)
                                                   : SH_OK;
}

/* Replicas read together; a rank without replicas reads its chunks in any order. */
static sh_rc read_data(void *arg)
{
    struct load *l = arg;
    if (l->replicas.size == 1)
        return sh_move_parts_read(&l->parts, l->files.file);
    sh_move_deadline_wait(l->stages.deadline); /* it meets the replicas on the way */
    return sh_move_parts_read_together(&l->parts, l->files.file, &l->replicas);
}

/* Read a tensor whose elements have another order in the file, and put them into the pieces from number `first` on that
 * are of this tensor. */
static sh_rc read_one_turned(struct load *l, int first)
{
    int tensor = l->set->pieces[first].tensor;
    const struct sh_st_entry *e = l->match.entry[l->match.spread.first[tensor]];
    float *there = sh_calloc(2 * (size_t)e->elems, sizeof *there), *here = there + e->elems;
    int64_t bad = e->elems;
    sh_rc rc = sh_hf_files_floats(&l->files, e, 0, e->elems, there, &bad);
    if (rc == SH_OK && bad < e->elems)
        rc = sh_fail(SH_E_DATA, "%s: %s has a number that is not finite", l->files.path[e->file], e->name);
    sh_hf_stacked_turn_back(l->set->tensors[tensor].dim, there, here);
    for (int i = first; i < l->set->n_pieces && rc == SH_OK; i++) {
        const struct sh_ckpt_piece *p = &l->set->pieces[i];
        if (p->tensor == tensor && !sh_floats_none(p->data[SH_CKPT_MODEL]))
            sh_floats_put(p->data[SH_CKPT_MODEL], p->elems, here + p->begin);
    }
    free(there);
    return rc;
}

/* Each rank reads such tensors itself: they are adapters, of some megabytes. */
static sh_rc read_turned(void *arg)
{
    struct load *l = arg;
    bool *done = sh_calloc((size_t)l->set->n_tensors + 1, sizeof *done);
    sh_rc rc = SH_OK;
    for (int i = 0; i < l->set->n_pieces && rc == SH_OK; i++) {
        const struct sh_ckpt_piece *p = &l->set->pieces[i];
        if (!is_turned(l, p->tensor) || done[p->tensor] || sh_floats_none(p->data[SH_CKPT_MODEL]))
            continue;
        done[p->tensor] = true;
        rc = read_one_turned(l, i);
    }
    free(done);
    return rc;
}

/* In whole blocks of what may pack the weight again. */
static sh_rc unpack_piece(struct load *l, const struct sh_ckpt_piece *p)
{
    enum { SOME = 1 << 22 };
    float *room = sh_calloc(SOME, sizeof *room);
    sh_rc rc = SH_OK;
    for (int64_t at = 0, n; at < p->elems && rc == SH_OK; at += n) {
        n = p->elems - at < SOME ? p->elems - at : SOME;
        rc = sh_hf_match_read(&l->match, &l->files, p->tensor, p->begin + at, n, "", room);
        if (rc == SH_OK)
            sh_floats_put(sh_floats_at(p->data[SH_CKPT_MODEL], at), n, room);
    }
    free(room);
    return rc;
}

static sh_rc read_mxfp4(void *arg)
{
    struct load *l = arg;
    for (int i = 0; i < l->set->n_pieces; i++)
        if (!sh_floats_none(l->set->pieces[i].data[SH_CKPT_MODEL]) && is_mxfp4(l, &l->set->pieces[i]))
            SH_TRY(unpack_piece(l, &l->set->pieces[i]));
    return SH_OK;
}

/* Each rank compares its share of the elements. Both may be in files of which it has no other part. */
static sh_rc compare_copy(void *arg)
{
    struct load *l = arg;
    return sh_hf_copy_compare(l->folder, &l->match, &l->files, l->rank, l->world);
}

static const struct sh_move_stage stages[] = {
    {.name = "reading headers and index", .local = true, .rank0 = true, .run = read_index},
    {.name = "sending the index", .run = share_index},
    {.name = "looking at its owner", .local = true, .rank0 = true, .run = look_at_owners},
    {.name = "matching tensors", .local = true, .run = match},
    {.name = "planning the reads", .local = true, .run = plan_reads},
    {.name = "opening the files", .local = true, .run = open_files},
    {.name = "reading how weights are packed", .local = true, .run = read_packing},
    {.name = "reading the adapters of experts", .local = true, .run = read_turned},
    {.name = "unpacking experts", .local = true, .run = read_mxfp4},
    {.name = "comparing output matrix and embedding", .local = true, .run = compare_copy},
    {.name = "finding replicas", .run = find_replicas},
    {.name = "reading the weights", .local = true, .run = read_data},
};

/* Also called after a failure at any stage. */
static void clean(struct load *l)
{
    sh_hf_files_close(&l->files);
    sh_move_replicas_free(&l->replicas);
    sh_move_parts_free(&l->parts);
    sh_hf_match_free(&l->match);
    sh_st_index_free(&l->index);
}

static sh_rc run(struct load *l, bool *lacks_labels)
{
    l->replicas = sh_move_replicas_alone();
    l->stages = (struct sh_move_stages){.stage = stages, .n = sizeof stages / sizeof *stages, .arg = l};
    sh_mesh_world(&l->rank, &l->world);
    sh_move_stages_open(&l->stages, sh_strfmt("loading %s", l->folder), l->options->timeout_seconds);
    sh_rc rc = sh_move_stages_run(&l->stages);
    sh_move_stages_close(&l->stages);
    if (lacks_labels)
        *lacks_labels = l->match.lacks_labels;
    clean(l);
    return rc;
}

/* Collective. Loads the parameters of a folder into the pieces of `set`. */
sh_rc sh_hf_load(const char *folder, const char *family, const struct sh_ckpt_set *set,
                 const struct sh_ckpt_load_options *options, bool *lacks_labels)
{
    struct load l = {
        .folder = folder, .family = family, .set = set, .options = options, .may_lack = lacks_labels != NULL};
    return run(&l, lacks_labels);
}

sh_rc sh_hf_load_adapter(const char *folder, const struct sh_config *cfg, const struct sh_ckpt_set *set,
                         const struct sh_ckpt_load_options *options)
{
    struct load l = {.folder = folder,
                     .family = sh_family_of(cfg->model.family)->name,
                     .set = set,
                     .options = options,
                     .adapter = cfg};
    return run(&l, NULL);
}
