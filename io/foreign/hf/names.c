#include "io/foreign/hf/names.h"

#include "io/foreign/hf/config/family.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPARED = 1 << 18 }; /* floats at a time */

struct matcher {
    const char *folder;
    const struct sh_st_index *index;
    const struct sh_ckpt_set *set;
    const struct sh_hf_spread *spread;
    const char *prefix, *head;
    bool more;   /* blocks after the model's last are left out */
    bool shares; /* some blocks may read keys and values of others */
    bool bare;   /* no name in the folder has the prefix */
    bool lacks;  /* it has no matrix of labels, and need not */
    bool *used;  /* [index->n] */
};

static bool has_prefix(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Base classes save names without the prefix of the class with a head. A folder has the prefix on all names or
 * on none. */
static bool is_bare(const struct matcher *m)
{
    for (int64_t i = 0; i < m->index->n; i++)
        if (has_prefix(m->index->entry[i].name, m->prefix))
            return false;
    return true;
}

/* Return the folder's name for a name of the model. */
static const char *name_there(const struct matcher *m, const char *name)
{
    return m->bare && has_prefix(name, m->prefix) ? name + strlen(m->prefix) : name;
}

static bool is_there(const void *arg, const char *name)
{
    const struct matcher *m = arg;
    return sh_st_index_find(m->index, name_there(m, name)) != NULL;
}

/* The number of missing tensors distinguishes another model from a damaged folder. */
static sh_rc missing(const struct matcher *m, const struct sh_ckpt_tensor *t)
{
    char shape[100];
    int n = 0;
    for (int i = 0; i < m->spread->n; i++)
        /* Only counted for the message. */
        n += !is_there(m, m->spread->part[i].name);
    return sh_fail(SH_E_DATA, "%s: %d of the model's tensors are missing, the first of them %s %s%s", m->folder, n,
                   name_there(m, t->name), sh_str_shape(t->ndim, t->dim, shape),
                   t->role != SH_PARAM_HEAD ? ""
                   : strcmp(t->name, "score.weight") == 0
                       ? "; AutoModelForSequenceClassification.from_pretrained() adds one, and save_pretrained() "
                         "writes a folder with it"
                       : "; if it is the embedding, say model.tie_word_embeddings=true");
}

/* Match name, shape and type. *out points into the index. For a packed weight, also find the tensors that belong
 * to it.
 *   frozen  in  the weight may be packed */
static sh_rc match_part(const struct matcher *m, const struct sh_ckpt_tensor *t, bool frozen,
                        const struct sh_st_entry **out, struct sh_hf_nf4 **packed, struct sh_hf_mxfp4 *mxfp4)
{
    const struct sh_st_entry *e = sh_st_index_find(m->index, name_there(m, t->name));
    char have[100], want[100];
    if (sh_hf_nf4_is(m->index, name_there(m, t->name))) {
        *packed = sh_calloc(1, sizeof **packed);
        *out = e;
        return sh_hf_nf4_match(m->folder, m->index, name_there(m, t->name), t, frozen, m->used, *packed);
    }
    if (sh_param_info(t->role)->experts && sh_hf_mxfp4_is(m->index, name_there(m, t->name))) {
        SH_TRY(sh_hf_mxfp4_match(m->folder, m->index, name_there(m, t->name), t, m->used, mxfp4));
        *out = mxfp4->blocks;
        return SH_OK;
    }
    if (!e)
        return missing(m, t);
    if (e->ndim != t->ndim || memcmp(e->dim, t->dim, (size_t)t->ndim * sizeof *t->dim) != 0)
        return sh_fail(SH_E_DATA, "%s: %s has shape %s, but %s wants %s", m->folder, e->name,
                       sh_str_shape(e->ndim, e->dim, have),
                       sh_param_info(t->role)->adapter ? "an adapter of this model" : "this model",
                       sh_str_shape(t->ndim, t->dim, want));
    if (e->type != SH_ST_F32 && e->type != SH_ST_F16 && e->type != SH_ST_BF16)
        return sh_fail(SH_E_DATA, "%s: %s is %s; parameters are F32, F16 or BF16", m->folder, e->name,
                       sh_st_type_name(e->type));
    m->used[e - m->index->entry] = true;
    *out = e;
    return SH_OK;
}

/* Buffers that classes compute from their configuration and save with the parameters: frequencies and masks. */
static bool is_buffer(const char *name)
{
    static const char *const ends[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

/* Suggest the nearest name of the model: most unexpected names are spelling differences between versions. */
static sh_rc unexpected(const struct matcher *m, const struct sh_st_entry *e)
{
    const char **names = sh_calloc((size_t)m->spread->n + 1, sizeof *names), *near;
    char shape[100];
    for (int i = 0; i < m->spread->n; i++)
        names[i] = m->spread->part[i].name;
    /* A different spelling is the usual reason. */
    near = sh_str_nearest(e->name, m->spread->n, names);
    sh_rc rc = sh_fail(SH_E_DATA, "%s: %s %s is not a tensor of this model%s%s", m->folder, e->name,
                       sh_str_shape(e->ndim, e->dim, shape), near ? "; nearest is " : "", near ? near : "");
    free(names);
    return rc;
}

/* Returns NULL if there is none: a set of adapters has no embedding. */
static const struct sh_st_entry *find_embedding(const struct matcher *m, const struct sh_hf_match *match)
{
    for (int i = 0; i < m->spread->n; i++)
        if (m->spread->part[i].role == SH_PARAM_EMBED)
            return match->entry[i];
    return NULL;
}

static sh_rc take_head(const struct matcher *m, const struct sh_st_entry *head, struct sh_hf_match *out)
{
    const struct sh_st_entry *of = find_embedding(m, out);

    if (!of || head->ndim != of->ndim || head->elems != of->elems || head->dim[0] != of->dim[0] ||
        (head->type != SH_ST_F32 && head->type != SH_ST_F16 && head->type != SH_ST_BF16))
        return unexpected(m, head);
    out->copy = head;
    out->of = of;
    return SH_OK;
}

/* The number of the block that a tensor is of; -1: it is of none. */
static int block_of(const struct matcher *m, const char *name)
{
    int block;
    return sscanf(has_prefix(name, m->prefix) ? name + strlen(m->prefix) : name, "layers.%d.", &block) == 1 ? block
                                                                                                            : -1;
}

static int last_block(const struct matcher *m)
{
    int last = -1;
    for (int i = 0; i < m->spread->n; i++)
        if (block_of(m, m->spread->part[i].name) > last)
            last = block_of(m, m->spread->part[i].name);
    return last;
}

static bool has_part(const struct matcher *m, const char *name)
{
    for (int i = 0; i < m->spread->n; i++)
        if (strcmp(m->spread->part[i].name, name) == 0)
            return true;
    return false;
}

/* What would make keys and values in a block that reads those of another: folders may have it, and nobody reads it. All
 * blocks with keys of their own have a norm of them. */
static bool is_unread(const struct matcher *m, const char *name)
{
    static const char *const words[] = {"k_proj.", "v_proj.", "k_norm."};
    const char *at = strstr(name, ".self_attn.");
    int block = block_of(m, name);
    char norm[256];

    if (!m->shares || block < 0 || block > last_block(m) || !at)
        return false;
    snprintf(norm, sizeof norm, "%slayers.%d.self_attn.k_norm.weight", m->prefix, block);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (has_prefix(at + strlen(".self_attn."), words[i]))
            return !has_part(m, norm);
    return false;
}

/* Check the tensors that the model did not ask for: buffers are fine, the output matrix of a tied model is compared
 * later, blocks that predict further words are named and left out, as is what no block reads, and the rest is refused. */
static sh_rc match_rest(const struct matcher *m, struct sh_hf_match *out)
{
    int last = last_block(m), later = 0, unread = 0;
    for (int64_t i = 0; i < m->index->n; i++) {
        const struct sh_st_entry *e = &m->index->entry[i];
        if (m->used[i] || is_buffer(e->name))
            continue;
        if (m->more && last >= 0 && block_of(m, e->name) > last) {
            later++;
            continue;
        }
        if (is_unread(m, e->name)) {
            unread++;
            continue;
        }
        if (m->lacks && strcmp(e->name, m->head) == 0)
            out->dropped = e;
        else
            SH_TRY(strcmp(e->name, m->head) == 0 ? take_head(m, e, out) : unexpected(m, e));
    }
    if (later)
        sh_log_info(
            "%s: %d tensors of blocks after the last one are left out: they predict further words, which is not "
            "computed here",
            m->folder, later);
    if (unread)
        sh_log_info("%s: %d tensors of keys and values are left out: their blocks read those of others", m->folder,
                    unread);
    return SH_OK;
}

/* First match the tensors that the model needs, then check the folder's other tensors. */
static sh_rc match_all(const struct matcher *m, struct sh_hf_match *out)
{
    const struct sh_hf_spread *s = m->spread;
    for (int i = 0; i < m->set->n_tensors; i++)
        for (int k = s->first[i]; k < s->first[i + 1]; k++) {
            if (m->lacks && s->part[k].role == SH_PARAM_HEAD)
                continue;
            SH_TRY(match_part(m, &s->part[k], m->set->packed && m->set->packed[i], &out->entry[k], &out->nf4[k],
                              &out->mxfp4[k]));
            out->n_packed += out->nf4[k] != NULL;
        }
    return match_rest(m, out);
}

static bool has_labels(const struct sh_ckpt_set *set)
{
    for (int i = 0; i < set->n_tensors; i++)
        if (strcmp(set->tensors[i].name, "score.weight") == 0)
            return true;
    return false;
}

/* On success free with sh_hf_match_free(); its entries point into the index, which must outlive it. */
sh_rc sh_hf_match(const char *folder, const struct sh_st_index *index, const struct sh_ckpt_set *set,
                  const char *family, bool may_lack, struct sh_hf_match *out)
{
    const struct sh_hf_family *f;
    SH_TRY(sh_hf_family_to_write(family, &f));
    struct sh_hf_match match = {0};
    struct matcher m = {.folder = folder,
                        .index = index,
                        .set = set,
                        .spread = &match.spread,
                        .prefix = f->prefix,
                        .head = f->head ? f->head : "lm_head.weight",
                        .more = f->latent,
                        .shares = f->global,
                        .lacks = may_lack && has_labels(set) && !sh_st_index_find(index, "score.weight"),
                        .used = sh_calloc((size_t)index->n + 1, sizeof *m.used)};
    /* The folder of a base class has no prefix on any name. */
    m.bare = is_bare(&m);
    sh_rc rc = sh_hf_spread_make(f, set, &(struct sh_hf_look){folder, is_there, &m}, &match.spread);
    match.entry = sh_calloc((size_t)match.spread.n + 1, sizeof *match.entry);
    match.nf4 = sh_calloc((size_t)match.spread.n + 1, sizeof *match.nf4);
    match.mxfp4 = sh_calloc((size_t)match.spread.n + 1, sizeof *match.mxfp4);
    if (rc == SH_OK)
        rc = match_all(&m, &match);
    match.lacks_labels = m.lacks;
    free(m.used);
    if (rc == SH_OK)
        *out = match;
    else
        sh_hf_match_free(&match);
    return rc;
}

/* Elements of part k as floats; *bad: the first that is not finite, or n. */
static sh_rc read_floats(const struct sh_hf_match *m, struct sh_hf_files *files, int k, int64_t first, int64_t n,
                         float *out, int64_t *bad)
{
    if (!m->mxfp4[k].blocks)
        return sh_hf_files_floats(files, m->entry[k], first, n, out, bad);
    SH_TRY(sh_hf_mxfp4_read(&m->mxfp4[k], files, &m->spread.part[k], first, n, out));
    for (*bad = 0; *bad < n && isfinite(out[*bad]);)
        ++*bad;
    return SH_OK;
}

sh_rc sh_hf_match_read(const struct sh_hf_match *m, struct sh_hf_files *files, int tensor, int64_t first, int64_t n,
                       const char *cure, float *out)
{
    for (int64_t at = 0, into, here, bad; at < n; at += here) {
        int k = sh_hf_spread_part(&m->spread, tensor, first + at, &into);
        const struct sh_st_entry *e = m->entry[k];
        here = m->spread.part[k].elems - into < n - at ? m->spread.part[k].elems - into : n - at;
        SH_TRY(read_floats(m, files, k, into, here, out + at, &bad));
        if (bad < here && cure)
            return sh_fail(SH_E_DATA, "%s: element %lld of %s is not a finite number%s", files->path[e->file],
                           (long long)(into + bad), e->name, cure);
    }
    return SH_OK;
}

/* Bits of floats are compared: the two may be stored in different types, but must be equal and not nearly so. */
static sh_rc compare_range(const char *folder, const struct sh_hf_match *m, struct sh_hf_files *files, int64_t begin,
                           int64_t end, float *a, float *b)
{
    int64_t bad;
    for (int64_t at = begin, n; at < end; at += n) {
        n = end - at < COMPARED ? end - at : COMPARED;
        SH_TRY(sh_hf_files_floats(files, m->of, at, n, a, &bad));
        SH_TRY(sh_hf_files_floats(files, m->copy, at, n, b, &bad));
        if (memcmp(a, b, (size_t)n * sizeof *a) != 0)
            return sh_fail(SH_E_DATA,
                           "%s has an output matrix of its own, %s, and the model is tied to %s; say "
                           "model.tie_word_embeddings=false",
                           folder, m->copy->name, m->of->name);
    }
    return SH_OK;
}

/* The last share takes the remainder of the division. */
sh_rc sh_hf_copy_compare(const char *folder, const struct sh_hf_match *m, struct sh_hf_files *files, int part,
                         int parts)
{
    if (!m->copy)
        return SH_OK;
    int64_t elems = m->of->elems, share = elems / parts;
    float *memory = sh_calloc(2 * COMPARED, sizeof *memory);
    sh_rc rc = compare_range(folder, m, files, share * part, part == parts - 1 ? elems : share * (part + 1), memory,
                             memory + COMPARED);
    free(memory);
    return rc;
}

void sh_hf_match_free(struct sh_hf_match *m)
{
    for (int i = 0; i < m->spread.n && m->nf4; i++)
        if (m->nf4[i]) {
            sh_hf_nf4_free(m->nf4[i]);
            free(m->nf4[i]);
        }
    free(m->nf4);
    free(m->mxfp4);
    free(m->entry);
    sh_hf_spread_free(&m->spread);
    *m = (struct sh_hf_match){0};
}
