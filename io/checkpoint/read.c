#include "io/checkpoint/index.h"

#include "io/checkpoint/digest.h"
#include "io/checkpoint/plain.h"
#include "io/file/file.h"
#include "src/base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Far above every model, and small enough that a hostile file cannot make the reader run out of memory or time. */
enum { MAX_TENSORS = 100000, MAX_TEXT_BYTES = 16 << 20 };

/* A file while its index is read: HDF5 says where things are, the bytes come through fd. */
struct reader {
    const char *path;
    int fd;
    int64_t bytes;
    hid_t file;
};

static sh_rc check_format(const struct reader *r)
{
    int64_t major, block_elems;
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "format_major", &major));
    if (major != SH_CKPT_MAJOR)
        return sh_fail(SH_E_DATA, "%s has format version %lld, but this program reads %d; use the Sherd that wrote it",
                       r->path, (long long)major, SH_CKPT_MAJOR);
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "block_elems", &block_elems));
    if (block_elems != SH_CKPT_BLOCK_ELEMS)
        return sh_fail(SH_E_DATA, "%s: digests are of blocks of %lld elements, not %d", r->path, (long long)block_elems,
                       SH_CKPT_BLOCK_ELEMS);
    return SH_OK;
}

static sh_rc read_text(const struct reader *r, const char *name, char **text)
{
    struct sh_ckpt_plain p;
    SH_TRY(sh_ckpt_plain_dataset(r->file, r->path, name, H5T_C_S1, r->bytes, &p));
    if (p.ndim != 0 || p.bytes > MAX_TEXT_BYTES)
        return sh_fail(SH_E_DATA, "%s: %s is not one text of at most %d bytes", r->path, name, MAX_TEXT_BYTES);
    *text = sh_calloc((size_t)p.bytes + 1, 1);
    SH_TRY(sh_file_read(r->fd, r->path, *text, p.bytes, p.offset));
    /* The digest covers the text; what pads it is zero, or was damaged. */
    for (int64_t i = (int64_t)strlen(*text); i < p.bytes; i++)
        if ((*text)[i] != '\0')
            return sh_fail(SH_E_DATA, "%s: %s goes on behind its end: the file is damaged; take an earlier checkpoint",
                           r->path, name);
    return SH_OK;
}

/* Files of before have none. */
static sh_rc read_notes(const struct reader *r, char **notes)
{
    if (H5Lexists(r->file, "/meta/notes", H5P_DEFAULT) > 0)
        return read_text(r, "/meta/notes", notes);
    *notes = sh_strdup("");
    return SH_OK;
}

static sh_rc read_meta(const struct reader *r, struct sh_ckpt_meta *m)
{
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "step", &m->step));
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "updates", &m->updates));
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "samples", &m->samples));
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "tokens", &m->tokens));
    if (m->step < 0 || m->updates < 0 || m->samples < 0 || m->tokens < 0)
        return sh_fail(SH_E_DATA, "%s: step, updates, samples or tokens is negative", r->path);
    SH_TRY(read_text(r, "/meta/config", &m->config));
    SH_TRY(read_text(r, "/meta/guard", &m->guard));
    return read_notes(r, &m->notes);
}

static bool name_is_clean(const char *name)
{
    for (const char *c = name; *c; c++)
        if (iscntrl((unsigned char)*c))
            return false;
    return *name != '\0';
}

/* The links of one state's group, in the order in which they were made. */
struct listing {
    const struct reader *r;
    struct sh_ckpt_index *index;
    int state;
    int64_t next;
    sh_rc rc;
};

static sh_rc take_tensor(struct listing *l, const char *name)
{
    struct sh_ckpt_entry *e = &l->index->entry[l->next];
    struct sh_ckpt_plain p;
    char full[SH_CKPT_NAME_MAX + 32];
    if (l->next >= l->index->n || strlen(name) > SH_CKPT_NAME_MAX || !name_is_clean(name))
        return sh_fail(SH_E_DATA, "%s: /%s has a tensor with an impossible name", l->r->path,
                       sh_ckpt_state_name[l->state]);
    snprintf(full, sizeof full, "/%s/%s", sh_ckpt_state_name[l->state], name);
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
    l->next++;
    return SH_OK;
}

static herr_t visit(hid_t group, const char *name, const H5L_info_t *info, void *arg)
{
    struct listing *l = arg;
    (void)group;
    (void)info;
    l->rc = take_tensor(l, name);
    return l->rc == SH_OK ? 0 : 1;
}

static sh_rc list_group(struct listing *l, hid_t group)
{
    H5G_info_t info;
    SH_H5(H5Gget_info(group, &info), l->r->path, sh_ckpt_state_name[l->state]);
    if (info.nlinks > MAX_TENSORS)
        return sh_fail(SH_E_DATA, "%s has more than %d tensors", l->r->path, MAX_TENSORS);
    if (l->state == SH_CKPT_MODEL)
        sh_ckpt_index_alloc(l->index, (int64_t)info.nlinks);
    else if ((int64_t)info.nlinks != l->index->n)
        return sh_fail(SH_E_DATA, "%s: /%s has %lld tensors, but /model has %lld", l->r->path,
                       sh_ckpt_state_name[l->state], (long long)info.nlinks, (long long)l->index->n);
    SH_H5(H5Literate(group, H5_INDEX_CRT_ORDER, H5_ITER_INC, NULL, visit, l), l->r->path, sh_ckpt_state_name[l->state]);
    return l->rc;
}

static sh_rc read_state(const struct reader *r, struct sh_ckpt_index *index, int state)
{
    struct listing l = {.r = r, .index = index, .state = state};
    char name[32];
    hid_t group;
    snprintf(name, sizeof name, "/%s", sh_ckpt_state_name[state]);
    SH_TRY(sh_ckpt_plain_group(r->file, r->path, name, &group));
    sh_rc rc = list_group(&l, group);
    H5Gclose(group);
    return rc;
}

static sh_rc read_digests(const struct reader *r, struct sh_ckpt_index *index)
{
    for (int s = 0; s < SH_CKPT_STATES; s++) {
        struct sh_ckpt_plain p;
        char name[40];
        snprintf(name, sizeof name, "/digest/%s", sh_ckpt_state_name[s]);
        SH_TRY(sh_ckpt_plain_dataset(r->file, r->path, name, H5T_STD_U64LE, r->bytes, &p));
        if (p.ndim != 1 || p.elems != index->n_blocks)
            return sh_fail(SH_E_DATA, "%s: %s has %lld sums, but the tensors have %lld blocks", r->path, name,
                           (long long)p.elems, (long long)index->n_blocks);
        SH_TRY(sh_file_read(r->fd, r->path, index->digest[s], p.bytes, p.offset));
    }
    return SH_OK;
}

/* Data sets lie inside the file, so their blocks cannot be more than the file has bytes: the arrays stay small. Tensors
 * that share bytes would get around that. */
static sh_rc check_total(const struct reader *r, const struct sh_ckpt_index *index)
{
    int64_t left = r->bytes / 4;
    for (int64_t i = 0; i < index->n; i++) {
        left -= index->entry[i].elems; /* each at most bytes / 4: no overflow before it is found */
        if (left < 0)
            return sh_fail(SH_E_DATA, "%s: its tensors overlap", r->path);
    }
    return SH_OK;
}

static sh_rc read_all(const struct reader *r, struct sh_ckpt_index *index)
{
    uint64_t digest;
    hid_t meta;
    SH_TRY(sh_ckpt_plain_group(r->file, r->path, "/meta", &meta));
    H5Gclose(meta);
    SH_TRY(check_format(r));
    SH_TRY(read_meta(r, &index->meta));
    for (int s = 0; s < SH_CKPT_STATES; s++)
        SH_TRY(read_state(r, index, s));
    SH_TRY(check_total(r, index));
    sh_ckpt_index_number_blocks(index);
    SH_TRY(read_digests(r, index));
    SH_TRY(sh_ckpt_plain_number(r->file, r->path, "digest", &digest));
    if (digest != sh_ckpt_index_digest(index))
        return sh_fail(SH_E_DATA, "%s: its meta data does not match its digest: the file is damaged; take an earlier "
                       "checkpoint", r->path);
    return SH_OK;
}

static sh_rc open_with_hdf5(struct reader *r)
{
    SH_TRY(sh_ckpt_h5_start());
    SH_TRY(sh_ckpt_plain_file(r->fd, r->path, r->bytes));
    hid_t fapl = sh_ckpt_h5_serial_access();
    SH_H5(fapl, r->path, "property list");
    r->file = H5Fopen(r->path, H5F_ACC_RDONLY, fapl);
    sh_ckpt_h5_close(H5Pclose, fapl);
    SH_H5(r->file, r->path, "open as HDF5");
    return SH_OK;
}

sh_rc sh_ckpt_index_read(const char *path, struct sh_ckpt_index *out)
{
    struct reader r = {.path = path, .file = -1};
    struct sh_ckpt_index index = {0};
    SH_TRY(sh_file_open(path, &r.fd, &r.bytes));
    index.file_bytes = r.bytes;
    sh_rc rc = open_with_hdf5(&r);
    if (rc == SH_OK)
        rc = read_all(&r, &index);
    if (r.file >= 0 && H5Fclose(r.file) < 0 && rc == SH_OK)
        rc = sh_ckpt_h5_fail(path, "close");
    close(r.fd);
    if (rc == SH_OK)
        *out = index;
    else
        sh_ckpt_index_free(&index);
    return rc;
}
