#include "io/checkpoint/file/create.h"

#include "io/checkpoint/file/digest.h"
#include "io/checkpoint/file/h5.h"
#include "io/checkpoint/file/pack.h"
#include "io/file/file.h"
#include "src/base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DATA_ALIGN = 4096, COPY_BYTES = 1 << 20 };

/* One file while it is laid out. Property lists are made once; closing the file closes everything attached to it. */
struct layout {
    const char *path; /* path of the final file, for messages */
    struct sh_ckpt_index *index;
    /* A file in memory, in which HDF5 lays out the structures. */
    int memory;
    int64_t index_at;
    hid_t fcpl, fapl, gcpl, dcpl, file;
};

/* An object header and its link take less than 1 KiB. */
static hsize_t metadata_bytes(const struct sh_ckpt_index *index)
{
    return 65536 + (hsize_t)index->n * (hsize_t)index->states.n * 1024;
}

/* At least as long as the file will be: twice the metadata for growth, digests, texts, padding, data. */
static int64_t upper_bound(const struct sh_ckpt_index *index)
{
    int64_t bytes = 2 * (int64_t)metadata_bytes(index) + index->n_blocks * index->states.n * 8 + DATA_ALIGN +
                    (int64_t)(strlen(index->meta.config) + strlen(index->meta.guard) + strlen(index->meta.notes) +
                              strlen(index->meta.base)) +
                    4 + sh_ckpt_packed_bytes(index) + SH_CKPT_FOOTER_BYTES;
    for (int64_t i = 0; i < index->n; i++)
        bytes += sh_ckpt_all_elems(&index->entry[i]) * 4;
    return bytes;
}

/* No time stamps, so that the same state gives the same bytes; links keep their order of creation. */
static sh_rc make_properties(struct layout *l)
{
    unsigned order = H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED;
    SH_H5(l->fcpl = H5Pcreate(H5P_FILE_CREATE), l->path, "property list");
    SH_H5(l->gcpl = H5Pcreate(H5P_GROUP_CREATE), l->path, "property list");
    SH_H5(l->dcpl = H5Pcreate(H5P_DATASET_CREATE), l->path, "property list");
    SH_H5(l->fapl = sh_ckpt_h5_serial_access(), l->path, "property list");
    SH_H5(H5Pset_obj_track_times(l->fcpl, 0), l->path, "property list");
    SH_H5(H5Pset_obj_track_times(l->gcpl, 0), l->path, "property list");
    SH_H5(H5Pset_obj_track_times(l->dcpl, 0), l->path, "property list");
    SH_H5(H5Pset_link_creation_order(l->fcpl, order), l->path, "property list");
    SH_H5(H5Pset_link_creation_order(l->gcpl, order), l->path, "property list");
    SH_H5(H5Pset_layout(l->dcpl, H5D_CONTIGUOUS), l->path, "property list");
    SH_H5(H5Pset_alloc_time(l->dcpl, H5D_ALLOC_TIME_EARLY), l->path, "property list");
    SH_H5(H5Pset_fill_time(l->dcpl, H5D_FILL_TIME_NEVER), l->path, "property list");
    return SH_OK;
}

/* HDF5 takes space for its own structures in blocks. One block with room for all of them keeps them from landing
 * between the tensors, so that the tensors of a unit form one range of the file. */
static sh_rc set_metadata_block(struct layout *l)
{
    SH_H5(H5Pset_meta_block_size(l->fapl, metadata_bytes(l->index)), l->path, "property list");
    SH_H5(H5Pset_small_data_block_size(l->fapl, 0), l->path, "property list");
    return SH_OK;
}

/* Groups are closed at once: an open handle would keep the file open past its close. */
static sh_rc make_group(const struct layout *l, const char *name)
{
    hid_t group = H5Gcreate2(l->file, name, H5P_DEFAULT, l->gcpl, H5P_DEFAULT);
    SH_H5(group, l->path, name);
    SH_H5(H5Gclose(group), l->path, name);
    return SH_OK;
}

/* Create a dataset, whose space is allocated at once (ALLOC_TIME_EARLY), so that its offset is final.
 *  data    in   NULL: the space is not written
 *  offset  out  NULL: not wanted */
static sh_rc make_dataset(const struct layout *l, const char *name, hid_t type, int ndim, const hsize_t *dim,
                          const void *data, int64_t *offset)
{
    hid_t space = ndim ? H5Screate_simple(ndim, dim, NULL) : H5Screate(H5S_SCALAR);
    SH_H5(space, l->path, name);
    hid_t set = H5Dcreate2(l->file, name, type, space, H5P_DEFAULT, l->dcpl, H5P_DEFAULT);
    sh_ckpt_h5_close(H5Sclose, space);
    SH_H5(set, l->path, name);
    if (data)
        SH_H5(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), l->path, name);
    if (offset)
        *offset = (int64_t)H5Dget_offset(set);
    SH_H5(H5Dclose(set), l->path, name);
    return SH_OK;
}

/* All attributes are scalars of /meta. */
static sh_rc set_attribute(const struct layout *l, const char *name, hid_t type, const void *value)
{
    hid_t space = H5Screate(H5S_SCALAR);
    SH_H5(space, l->path, name);
    hid_t attr = H5Acreate_by_name(l->file, "/meta", name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    sh_ckpt_h5_close(H5Sclose, space);
    SH_H5(attr, l->path, name);
    SH_H5(H5Awrite(attr, type, value), l->path, name);
    SH_H5(H5Aclose(attr), l->path, name);
    return SH_OK;
}

/* A text of fixed length. Variable-length texts are stored in HDF5's own heap, and a reader would have to trust its
 * addresses. */
static hid_t text_type(size_t bytes)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    if (type < 0 || H5Tset_size(type, bytes) < 0 || H5Tset_strpad(type, H5T_STR_NULLPAD) < 0 ||
        H5Tset_cset(type, H5T_CSET_UTF8) < 0)
        return H5I_INVALID_HID;
    return type;
}

/* Writes a text of `bytes` bytes, padded with zeros, which readers remove again. */
static sh_rc make_text(const struct layout *l, const char *name, const char *text, size_t bytes)
{
    hid_t type = text_type(bytes);
    SH_H5(type, l->path, name);
    char *padded = sh_calloc(bytes + 1, 1);
    strcpy(padded, text);
    sh_rc rc = make_dataset(l, name, type, 0, NULL, padded, NULL);
    free(padded);
    H5Tclose(type);
    return rc;
}

/* Example: the file has 10000 bytes so far and the configuration 300. 10300 is rounded up to 12288, and the text is
 * padded to 2288 bytes. The padding of the last text makes the tensors after it start at a page. */
static sh_rc make_texts(const struct layout *l)
{
    hsize_t begin;
    SH_TRY(make_text(l, "/meta/notes", l->index->meta.notes, strlen(l->index->meta.notes) + 1));
    SH_TRY(make_text(l, "/meta/guard", l->index->meta.guard, strlen(l->index->meta.guard) + 1));
    if (l->index->meta.base[0])
        SH_TRY(make_text(l, "/meta/base", l->index->meta.base, strlen(l->index->meta.base) + 1));
    SH_H5(H5Fget_filesize(l->file, &begin), l->path, "/meta/config");
    size_t least = strlen(l->index->meta.config) + 1;
    size_t end = ((size_t)begin + least + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    return make_text(l, "/meta/config", l->index->meta.config, end - (size_t)begin);
}

/* The attribute from which any HDF5 tool sees the format of this file. */
static sh_rc set_format(const struct layout *l)
{
    hid_t type = text_type(strlen(SH_CKPT_FORMAT));
    SH_H5(type, l->path, "format");
    sh_rc rc = set_attribute(l, "format", type, SH_CKPT_FORMAT);
    H5Tclose(type);
    return rc;
}

/* The digest is written as 0 here and gets its value in sh_ckpt_sign(), when all data is known. */
static sh_rc write_meta(const struct layout *l)
{
    const struct sh_ckpt_meta *m = &l->index->meta;
    /* clang-format off */
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"format_major", sh_ckpt_major(&l->index->states)}, {"format_minor", l->index->minor}, {"step", m->step},
        {"updates", m->updates},
        {"samples", m->samples}, {"tokens", m->tokens}, {"block_elems", SH_CKPT_BLOCK_ELEMS},
    };
    /* clang-format on */
    uint64_t unsigned_yet = 0;
    SH_TRY(make_group(l, "/meta"));
    SH_TRY(set_format(l));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        SH_TRY(set_attribute(l, numbers[i].name, H5T_STD_I64LE, &numbers[i].value));
    return set_attribute(l, "digest", H5T_STD_U64LE, &unsigned_yet);
}

/* The dataset of a state's digests: one 64-bit sum per block. */
static const char *digest_name(const struct sh_ckpt_index *index, int state, char name[64])
{
    snprintf(name, 64, "/digest/%s", index->states.name[state]);
    return name;
}

/* Digests are small and come before the tensors, so that they lie with the structures. */
static sh_rc make_digests(const struct layout *l)
{
    static const char *const groups[] = {"/digest", "/digest/optimizer"};
    hsize_t n = (hsize_t)l->index->n_blocks;
    for (int g = 0; g < 2; g++)
        SH_TRY(make_group(l, groups[g]));
    for (int s = 0; s < l->index->states.n; s++) {
        char name[64];
        SH_TRY(make_dataset(l, digest_name(l->index, s, name), H5T_STD_U64LE, 1, &n, NULL, NULL));
    }
    return SH_OK;
}

/* One state after the other, with the tensors of each in the order of the set: the tensors of a unit are then one
 * extent in the file, and a rank's part of the unit is one write. */
static sh_rc make_tensors(const struct layout *l, int state)
{
    SH_TRY(make_group(l, l->index->states.name[state]));
    for (int64_t i = 0; i < l->index->n; i++) {
        struct sh_ckpt_entry *e = &l->index->entry[i];
        char name[SH_CKPT_NAME_MAX + 32];
        hsize_t dim[SH_CKPT_DIMS_MAX];
        if (!sh_ckpt_has(e, state))
            continue;
        for (int d = 0; d < e->ndim; d++)
            dim[d] = (hsize_t)e->dim[d];
        snprintf(name, sizeof name, "%s/%s", l->index->states.name[state], e->name);
        SH_TRY(make_dataset(l, name, H5T_IEEE_F32LE, e->ndim, dim, NULL, &e->offset[state]));
    }
    return SH_OK;
}

/* The index is made last, so that the file ends with it. */
static sh_rc make_index(struct layout *l)
{
    hsize_t bytes = (hsize_t)sh_ckpt_packed_bytes(l->index) + SH_CKPT_FOOTER_BYTES;
    return make_dataset(l, "/index", H5T_STD_U8LE, 1, &bytes, NULL, &l->index_at);
}

static sh_rc make_file(struct layout *l)
{
    char name[SH_CKPT_FD_NAME_BYTES];
    SH_H5(l->file = H5Fcreate(sh_ckpt_h5_name(l->memory, name), H5F_ACC_TRUNC, l->fcpl, l->fapl), l->path, "create");
    return SH_OK;
}

/* The order of the file is structures, digests, texts, tensors, index. It follows from the order of creation, and
 * check_layout() verifies it. */
static sh_rc make_all(struct layout *l)
{
    SH_TRY(make_properties(l));
    SH_TRY(set_metadata_block(l));
    SH_TRY(make_file(l));
    SH_TRY(write_meta(l));
    SH_TRY(make_digests(l));
    SH_TRY(make_group(l, "/optimizer"));
    SH_TRY(make_texts(l));
    for (int s = 0; s < l->index->states.n; s++)
        SH_TRY(make_tensors(l, s));
    return make_index(l);
}

/* Closes whatever was opened, also after an error, which is kept. */
static sh_rc close_all(struct layout *l, sh_rc rc)
{
    const hid_t lists[] = {l->fcpl, l->fapl, l->gcpl, l->dcpl};
    if (l->file >= 0 && H5Fclose(l->file) < 0 && rc == SH_OK)
        rc = sh_ckpt_h5_fail(l->path, "close");
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (lists[i] >= 0)
            H5Pclose(lists[i]);
    return rc;
}

/* Checks that HDF5 has put everything where the format wants it. HDF5's file in memory is as long as the real one, and
 * nearly all of it is a hole. */
static sh_rc check_layout(const struct layout *l)
{
    struct sh_ckpt_index *x = l->index;
    struct stat st;
    int64_t end = x->structure_bytes = x->entry[0].offset[0];
    for (int s = 0; s < x->states.n; s++)
        for (int64_t i = 0; i < x->n; i++) {
            if (!sh_ckpt_has(&x->entry[i], s))
                continue;
            SH_REQUIRE(x->entry[i].offset[s] == end);
            end += x->entry[i].elems * 4;
        }
    SH_REQUIRE(end == l->index_at && end % 4 == 0 && x->structure_bytes % DATA_ALIGN == 0);
    x->file_bytes = end + sh_ckpt_packed_bytes(x) + SH_CKPT_FOOTER_BYTES;
    SH_REQUIRE(fstat(l->memory, &st) == 0 && st.st_size == x->file_bytes);
    return SH_OK;
}

/* In memory only: HDF5 never touches the real file, so it need not know the file system, and no data passes through
 * it. */
static sh_rc lay_out(int memory, const char *path, struct sh_ckpt_index *index)
{
    struct layout l = {
        .path = path, .index = index, .memory = memory, .fcpl = -1, .fapl = -1, .gcpl = -1, .dcpl = -1, .file = -1};
    SH_TRY(sh_ckpt_h5_start());
    SH_TRY(close_all(&l, make_all(&l)));
    return check_layout(&l);
}

/* Rank 0. Space is reserved before anything is written, so that a full disk is noticed first. The caller closes
 * *memory, which sh_ckpt_sign() still needs. */
sh_rc sh_ckpt_create(const char *path, int fd, struct sh_ckpt_index *index, int *memory)
{
    SH_REQUIRE(index->n > 0);
    SH_TRY(sh_file_reserve(fd, path, upper_bound(index)));
    int m = memfd_create("sherd checkpoint", MFD_CLOEXEC);
    if (m < 0)
        return sh_fail(SH_E_MEMORY, "%s: memory for its structures: %s", path, strerror(errno));
    sh_rc rc = lay_out(m, path, index);
    if (rc == SH_OK && ftruncate(fd, index->file_bytes) != 0)
        rc = sh_fail(SH_E_DATA, "%s: set its length: %s", path, strerror(errno));
    if (rc == SH_OK)
        *memory = m;
    else
        close(m);
    return rc;
}

/* Writes digests into the space that make_digests() has left. */
static sh_rc put_digest(hid_t file, const char *path, const char *name, const uint64_t *digest)
{
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    SH_H5(set, path, name);
    herr_t status = H5Dwrite(set, H5T_STD_U64LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, digest);
    sh_ckpt_h5_close(H5Dclose, set);
    SH_H5(status, path, name);
    return SH_OK;
}

static sh_rc write_attribute(hid_t group, const char *path, uint64_t digest)
{
    hid_t attr = H5Aopen(group, "digest", H5P_DEFAULT);
    SH_H5(attr, path, "digest");
    herr_t status = H5Awrite(attr, H5T_STD_U64LE, &digest);
    sh_ckpt_h5_close(H5Aclose, attr);
    SH_H5(status, path, "digest");
    return SH_OK;
}

/* Opened through its group: HDF5 1.10.8 does not find an attribute again that was opened by name from the file. */
static sh_rc put_index_digest(hid_t file, const char *path, uint64_t digest)
{
    hid_t group = H5Gopen2(file, "/meta", H5P_DEFAULT);
    SH_H5(group, path, "/meta");
    sh_rc rc = write_attribute(group, path, digest);
    H5Gclose(group);
    return rc;
}

static sh_rc put_digests(hid_t file, const char *path, const struct sh_ckpt_index *index)
{
    for (int s = 0; s < index->states.n; s++) {
        char name[64];
        SH_TRY(put_digest(file, path, digest_name(index, s, name), index->digest[s]));
    }
    return put_index_digest(file, path, index->sum);
}

static sh_rc open_structures(int memory, const char *path, unsigned flags, hid_t *file)
{
    char name[SH_CKPT_FD_NAME_BYTES];
    SH_TRY(sh_ckpt_h5_start());
    hid_t fapl = sh_ckpt_h5_serial_access();
    SH_H5(fapl, path, "property list");
    *file = H5Fopen(sh_ckpt_h5_name(memory, name), flags, fapl);
    sh_ckpt_h5_close(H5Pclose, fapl);
    SH_H5(*file, path, "open its structures");
    return SH_OK;
}

/* The second and last time that HDF5 writes the structures in memory. */
static sh_rc put_all(int memory, const char *path, const struct sh_ckpt_index *index)
{
    hid_t file;
    SH_TRY(open_structures(memory, path, H5F_ACC_RDWR, &file));
    sh_rc rc = put_digests(file, path, index);
    if (H5Fclose(file) < 0 && rc == SH_OK)
        rc = sh_ckpt_h5_fail(path, "close");
    return rc;
}

/* Whether a dataset has the place and the shape that the index says. */
static sh_rc check_place(hid_t file, const char *path, const char *name, const struct sh_ckpt_entry *e, int state)
{
    hsize_t dim[H5S_MAX_RANK];
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    SH_H5(set, path, name);
    hid_t space = H5Dget_space(set);
    bool same = H5Dget_offset(set) == (haddr_t)e->offset[state] && H5Sget_simple_extent_ndims(space) == e->ndim &&
                H5Sget_simple_extent_dims(space, dim, NULL) == e->ndim;
    for (int d = 0; d < e->ndim && same; d++)
        same = dim[d] == (hsize_t)e->dim[d];
    H5Sclose(space);
    H5Dclose(set);
    return same ? SH_OK : sh_fail(SH_E_BUG, "%s: HDF5 has put %s elsewhere than the index says", path, name);
}

static sh_rc check_digest(hid_t file, const char *path, const struct sh_ckpt_index *index, int state)
{
    char name[64];
    uint64_t *found = sh_calloc((size_t)index->n_blocks, sizeof *found);
    hid_t set = H5Dopen2(file, digest_name(index, state, name), H5P_DEFAULT);
    herr_t status = set < 0 ? -1 : H5Dread(set, H5T_STD_U64LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, found);
    bool same = status >= 0 && memcmp(found, index->digest[state], (size_t)index->n_blocks * sizeof *found) == 0;
    if (set >= 0)
        H5Dclose(set);
    free(found);
    return same ? SH_OK : sh_fail(SH_E_BUG, "%s: HDF5 reads other digests in %s than were written", path, name);
}

static sh_rc check_state(hid_t file, const char *path, const struct sh_ckpt_index *index, int state)
{
    for (int64_t i = 0; i < index->n; i++) {
        char name[SH_CKPT_NAME_MAX + 32];
        if (!sh_ckpt_has(&index->entry[i], state))
            continue;
        snprintf(name, sizeof name, "%s/%s", index->states.name[state], index->entry[i].name);
        SH_TRY(check_place(file, path, name, &index->entry[i], state));
    }
    return check_digest(file, path, index, state);
}

/* Checks that readers who use HDF5 will find what the index says; Sherd reads the index only. */
static sh_rc check_structures(int memory, const char *path, const struct sh_ckpt_index *index)
{
    hid_t file;
    sh_rc rc = SH_OK;
    SH_TRY(open_structures(memory, path, H5F_ACC_RDONLY, &file));
    for (int s = 0; s < index->states.n && rc == SH_OK; s++)
        rc = check_state(file, path, index, s);
    H5Fclose(file);
    return rc;
}

/* Copies the structures from memory to the file in their present state. */
static sh_rc put_structures(const char *path, int fd, int memory, const struct sh_ckpt_index *index)
{
    char *piece = sh_calloc(COPY_BYTES, 1);
    sh_rc rc = SH_OK;
    for (int64_t at = 0, n; at < index->structure_bytes && rc == SH_OK; at += n) {
        n = index->structure_bytes - at < COPY_BYTES ? index->structure_bytes - at : COPY_BYTES;
        rc = sh_file_read(memory, path, piece, n, at);
        if (rc == SH_OK)
            rc = sh_file_write(fd, path, piece, n, at);
    }
    free(piece);
    return rc;
}

/* A digest over the structures in memory, to be compared with what is read back from disk later. */
static sh_rc structures_digest(const char *path, int fd, int64_t bytes, struct sh_hash128 *digest)
{
    unsigned char *all = sh_calloc((size_t)bytes, 1);
    sh_rc rc = sh_file_read(fd, path, all, bytes, 0);
    if (rc == SH_OK)
        *digest = sh_hash128(all, (size_t)bytes);
    free(all);
    return rc;
}

/* Writes Sherd's own index at the end of the file: a reader that knows it never needs HDF5, and has all digests after
 * two reads. */
static sh_rc put_index(const char *path, int fd, const struct sh_ckpt_index *index)
{
    int64_t bytes = sh_ckpt_packed_bytes(index), at = index->file_bytes - SH_CKPT_FOOTER_BYTES - bytes;
    unsigned char *packed = sh_ckpt_pack(index), footer[SH_CKPT_FOOTER_BYTES];
    sh_ckpt_footer_pack(&(struct sh_ckpt_footer){.at = at,
                                                 .bytes = bytes,
                                                 .digest = sh_hash128(packed, (size_t)bytes),
                                                 .major = (uint32_t)sh_ckpt_major(&index->states),
                                                 .minor = (uint32_t)index->minor},
                        footer);
    sh_rc rc = sh_file_write(fd, path, packed, bytes, at);
    if (rc == SH_OK)
        rc = sh_file_write(fd, path, footer, sizeof footer, at + bytes);
    free(packed);
    return rc;
}

/* Rank 0, once all data is written and its sums are known. The order is fixed: digests into the structures, then the
 * digest of the structures into the index, then the index. */
sh_rc sh_ckpt_sign(const char *path, int fd, int memory, struct sh_ckpt_index *index)
{
    index->sum = sh_ckpt_index_digest(index);
    SH_TRY(put_all(memory, path, index));
    SH_TRY(check_structures(memory, path, index));
    SH_TRY(structures_digest(path, memory, index->structure_bytes, &index->structure));
    SH_TRY(put_structures(path, fd, memory, index));
    return put_index(path, fd, index);
}
