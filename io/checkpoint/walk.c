#include "io/checkpoint/walk.h"

#include "io/checkpoint/clean.h"
#include "io/checkpoint/digest.h"
#include "io/checkpoint/plain.h"
#include "io/file/file.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* A file being walked: HDF5 says where things are, and the bytes come through fd. */
struct reader {
    const char *path;
    int fd;
    int64_t bytes;
    hid_t file;
};

/* Checks the version first, since everything else may differ in another version. */
static sh_rc check_format(const struct reader *r, int expected)
{
    int64_t major, block_elems;
    SH_TRY(sh_ckpt_plain_word(r->file, r->path, "format", SH_CKPT_FORMAT));
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "format_major", &major));
    if (major != expected && major >= 1 && major <= SH_CKPT_MAJOR)
        return sh_fail(SH_E_DATA, "%s has format %lld, but no separate index; only format 1 is read without one",
                       r->path, (long long)major);
    if (major != expected)
        return sh_fail(SH_E_DATA, "%s has format version %lld, but this program reads %d; use the Sherd that wrote it",
                       r->path, (long long)major, SH_CKPT_MAJOR);
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "block_elems", &block_elems));
    if (block_elems != SH_CKPT_BLOCK_ELEMS)
        return sh_fail(SH_E_DATA, "%s: digests cover blocks of %lld elements, not %d", r->path, (long long)block_elems,
                       SH_CKPT_BLOCK_ELEMS);
    return SH_OK;
}

/* Reads into *text, which the caller frees, also after an error. */
static sh_rc read_text(const struct reader *r, const char *name, char **text)
{
    struct sh_ckpt_plain p;
    SH_TRY(sh_ckpt_plain_dataset(r->file, r->path, name, H5T_C_S1, r->bytes, &p));
    if (p.ndim != 0 || p.bytes > SH_CKPT_TEXT_MAX)
        return sh_fail(SH_E_DATA, "%s: %s is not one text of at most %d bytes", r->path, name, SH_CKPT_TEXT_MAX);
    *text = sh_calloc((size_t)p.bytes + 1, 1);
    SH_TRY(sh_file_read(r->fd, r->path, *text, p.bytes, p.offset));
    /* The digest covers the text; its padding is zero, or was damaged. */
    for (int64_t i = (int64_t)strlen(*text); i < p.bytes; i++)
        if ((*text)[i] != '\0')
            return sh_fail(SH_E_DATA, "%s: %s continues past its end: the file is damaged; take an earlier checkpoint",
                           r->path, name);
    return SH_OK;
}

/* Reads a text that files of an earlier version, or of another kind, do not have: it is then empty. */
static sh_rc read_optional(const struct reader *r, const char *name, char **text)
{
    if (H5Lexists(r->file, name, H5P_DEFAULT) > 0)
        return read_text(r, name, text);
    *text = sh_strdup("");
    return SH_OK;
}

static sh_rc read_meta(const struct reader *r, struct sh_ckpt_meta *m)
{
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "step", &m->step));
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "updates", &m->updates));
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "samples", &m->samples));
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "tokens", &m->tokens));
    SH_TRY(sh_ckpt_counts_check(r->path, m));
    SH_TRY(read_text(r, "/meta/config", &m->config));
    SH_TRY(read_text(r, "/meta/guard", &m->guard));
    SH_TRY(read_optional(r, "/meta/notes", &m->notes));
    return read_optional(r, "/meta/base", &m->base);
}

/* A link of one state's group. */
struct link {
    int64_t order; /* of creation, which is the order of the tensors */
    char name[SH_CKPT_NAME_MAX + 1];
};

/* One state's group while its links are read. */
struct listing {
    const struct reader *r;
    struct sh_ckpt_index *index;
    int state;
    struct link *link; /* [n_links] */
    int64_t n, n_links;
    sh_rc rc;
};

/* One message for everything that can be wrong with a name. */
static sh_rc bad_name(const struct listing *l)
{
    return sh_fail(SH_E_DATA, "%s: /%s has a tensor with an impossible name", l->r->path,
                   l->index->states.name[l->state]);
}

/* The first state defines the tensors; the others must have the same tensors in the same order. */
static sh_rc take_tensor(struct listing *l, const char *name, struct sh_ckpt_entry *e)
{
    struct sh_ckpt_plain p;
    char full[SH_CKPT_NAME_MAX + 32];
    snprintf(full, sizeof full, "/%s/%s", l->index->states.name[l->state], name);
    SH_TRY(sh_ckpt_plain_dataset(l->r->file, l->r->path, full, H5T_IEEE_F32LE, l->r->bytes, &p));
    if (p.ndim < 1)
        return sh_fail(SH_E_DATA, "%s: %s is a single number, not a tensor", l->r->path, full);
    if (l->state == SH_CKPT_MODEL) {
        strcpy(e->name, name);
        e->ndim = p.ndim;
        e->elems = p.elems;
        memcpy(e->dim, p.dim, sizeof p.dim);
    } else if (strcmp(e->name, name) != 0 || e->ndim != p.ndim || memcmp(e->dim, p.dim, sizeof p.dim) != 0) {
        return sh_fail(SH_E_DATA, "%s: %s stands where the state of model/%s is expected", l->r->path, full, e->name);
    }
    e->offset[l->state] = p.offset;
    return SH_OK;
}

/* Links are collected and sorted afterwards; see take_links(). */
static sh_rc take_link(struct listing *l, const char *name, const H5L_info_t *info)
{
    if (l->n >= l->n_links || strlen(name) > SH_CKPT_NAME_MAX || !sh_ckpt_name_is_clean(name))
        return bad_name(l);
    l->link[l->n].order = info->corder_valid ? info->corder : -1;
    strcpy(l->link[l->n++].name, name);
    return SH_OK;
}

/* The error is kept in the listing, since HDF5 only reports that there was one. */
static herr_t visit(hid_t group, const char *name, const H5L_info_t *info, void *arg)
{
    struct listing *l = arg;
    (void)group;
    l->rc = take_link(l, name, info);
    return l->rc == SH_OK ? 0 : 1;
}

static int by_order(const void *a, const void *b)
{
    const struct link *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

/* Takes the links in whatever order HDF5 finds them. If HDF5 is asked to sort the links of a large group, it first
 * makes a table, and if a block of the group is damaged it frees entries that it has not yet written (1.10 to 1.14):
 * with luck they are zero. */
static sh_rc take_links(struct listing *l, hid_t group)
{
    SH_H5(H5Literate(group, H5_INDEX_CRT_ORDER, H5_ITER_NATIVE, NULL, visit, l), l->r->path,
          l->index->states.name[l->state]);
    SH_TRY(l->rc);
    qsort(l->link, (size_t)l->n, sizeof *l->link, by_order);
    for (int64_t i = 0; i < l->n; i++)
        if (l->link[i].order < 0 || (i > 0 && l->link[i].order == l->link[i - 1].order))
            return sh_fail(SH_E_DATA, "%s: /%s does not say in which order its tensors were made", l->r->path,
                           l->index->states.name[l->state]);
    return l->n == l->n_links ? SH_OK : bad_name(l);
}

/* The number of links comes from the file, so it is limited before it sizes memory. */
static sh_rc list_group(struct listing *l, hid_t group)
{
    H5G_info_t info;
    SH_H5(H5Gget_info(group, &info), l->r->path, l->index->states.name[l->state]);
    if (info.nlinks > SH_CKPT_TENSORS_MAX)
        return sh_fail(SH_E_DATA, "%s has more than %d tensors", l->r->path, SH_CKPT_TENSORS_MAX);
    if (l->state == SH_CKPT_MODEL)
        sh_ckpt_index_alloc(l->index, (int64_t)info.nlinks);
    else if ((int64_t)info.nlinks != l->index->n)
        return sh_fail(SH_E_DATA, "%s: /%s has %lld tensors, but /model has %lld", l->r->path,
                       l->index->states.name[l->state], (long long)info.nlinks, (long long)l->index->n);
    l->n_links = (int64_t)info.nlinks;
    l->link = sh_calloc((size_t)l->n_links + 1, sizeof *l->link);
    SH_TRY(take_links(l, group));
    for (int64_t i = 0; i < l->n; i++)
        SH_TRY(take_tensor(l, l->link[i].name, &l->index->entry[i]));
    return SH_OK;
}

/* Reads all tensors of one state. */
static sh_rc read_state(const struct reader *r, struct sh_ckpt_index *index, int state)
{
    struct listing l = {.r = r, .index = index, .state = state};
    char name[1 + SH_CKPT_STATE_NAME];
    hid_t group;
    snprintf(name, sizeof name, "/%s", index->states.name[state]);
    SH_TRY(sh_ckpt_plain_group(r->file, r->path, name, &group));
    sh_rc rc = list_group(&l, group);
    free(l.link);
    H5Gclose(group);
    return rc;
}

/* Called after the tensors, whose blocks determine the number of sums. */
static sh_rc read_digests(const struct reader *r, struct sh_ckpt_index *index)
{
    for (int s = 0; s < index->states.n; s++) {
        struct sh_ckpt_plain p;
        char name[16 + SH_CKPT_STATE_NAME];
        snprintf(name, sizeof name, "/digest/%s", index->states.name[s]);
        SH_TRY(sh_ckpt_plain_dataset(r->file, r->path, name, H5T_STD_U64LE, r->bytes, &p));
        if (p.ndim != 1 || p.elems != index->n_blocks)
            return sh_fail(SH_E_DATA, "%s: %s has %lld sums, but the tensors have %lld blocks", r->path, name,
                           (long long)p.elems, (long long)index->n_blocks);
        SH_TRY(sh_file_read(r->fd, r->path, index->digest[s], p.bytes, p.offset));
    }
    return SH_OK;
}

/* Datasets lie inside the file, so they cannot have more blocks than fit its bytes, and the arrays stay small. Tensors
 * that share bytes would circumvent that. */
static sh_rc check_total(const struct reader *r, const struct sh_ckpt_index *index)
{
    int64_t left = r->bytes / 4;
    for (int64_t i = 0; i < index->n; i++) {
        left -= index->entry[i].elems; /* each at most bytes / 4: no overflow before the check */
        if (left < 0)
            return sh_fail(SH_E_DATA, "%s: its tensors overlap", r->path);
    }
    return SH_OK;
}

/* Compares everything that can be compared, except the data itself. sh_ckpt_unpack() compares index->sum in the parent.
 * */
static sh_rc read_all(const struct reader *r, struct sh_ckpt_index *index)
{
    int64_t minor;
    hid_t meta;
    SH_TRY(sh_ckpt_plain_group(r->file, r->path, "/meta", &meta));
    H5Gclose(meta);
    SH_TRY(check_format(r, sh_ckpt_major(&index->states)));
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "format_minor", &minor));
    index->minor = minor < 0 || minor > INT32_MAX ? INT32_MAX : (int32_t)minor;
    SH_TRY(read_meta(r, &index->meta));
    for (int s = 0; s < index->states.n; s++)
        SH_TRY(read_state(r, index, s));
    SH_TRY(check_total(r, index));
    sh_ckpt_index_number_blocks(index);
    SH_TRY(read_digests(r, index));
    return sh_ckpt_plain_number(r->file, r->path, "digest", &index->sum);
}

/* HDF5 opens files by name; the name of an open descriptor leads to this file and no other. */
static sh_rc open_with_hdf5(struct reader *r)
{
    char name[SH_CKPT_FD_NAME_BYTES];
    SH_TRY(sh_ckpt_h5_start());
    hid_t fapl = sh_ckpt_h5_serial_access();
    SH_H5(fapl, r->path, "property list");
    r->file = H5Fopen(sh_ckpt_h5_name(r->fd, name), H5F_ACC_RDONLY, fapl);
    sh_ckpt_h5_close(H5Pclose, fapl);
    SH_H5(r->file, r->path, "open as HDF5");
    return SH_OK;
}

/* Only in the child, or for structures that this program has just made. On success *out belongs to the caller. */
sh_rc sh_ckpt_walk(int fd, const char *path, int64_t bytes, const struct sh_ckpt_states *states,
                   struct sh_ckpt_index *out)
{
    struct reader r = {.path = path, .fd = fd, .bytes = bytes, .file = -1};
    struct sh_ckpt_index index = {.file_bytes = bytes, .states = *states};
    sh_rc rc = open_with_hdf5(&r);
    if (rc == SH_OK)
        rc = read_all(&r, &index);
    if (r.file >= 0 && H5Fclose(r.file) < 0 && rc == SH_OK)
        rc = sh_ckpt_h5_fail(path, "close");
    if (rc == SH_OK)
        *out = index;
    else
        sh_ckpt_index_free(&index);
    return rc;
}
