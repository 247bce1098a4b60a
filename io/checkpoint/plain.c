#include "io/checkpoint/plain.h"

#include "io/file/file.h"
#include "io/file/outside.h"

#include <stdbool.h>
#include <string.h>

/* The first bytes of a file with superblock version 2 or 3, from HDF5's file format specification: signature,
 * version, bytes of an address, bytes of a length, flags, then addresses: base, extension, end of file. */
/* clang-format off */
enum {
    VERSION_AT = 8, ADDRESS_BYTES_AT = 9, LENGTH_BYTES_AT = 10, FLAGS_AT = 11, BASE_AT = 12, END_AT = 28,
    SUPERBLOCK_BYTES = 36
};
/* clang-format on */

enum { WRITING_FLAGS = 5 }; /* opened for writing, or by one writer with many readers, but never closed */

/* The address may be unaligned, hence memcpy. */
static uint64_t address_at(const unsigned char *superblock, int at)
{
    uint64_t address;
    memcpy(&address, superblock + at, sizeof address);
    return address;
}

/* Checks signature, kind, closing by the writer, and length before HDF5 sees the file. This catches truncated and
 * half-written files at once, with separate messages. */
sh_rc sh_ckpt_plain_file(int fd, const char *path, int64_t bytes)
{
    static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    unsigned char s[SUPERBLOCK_BYTES];
    if (bytes < SUPERBLOCK_BYTES)
        return sh_fail(SH_E_DATA, "%s has only %lld bytes: not a checkpoint", path, (long long)bytes);
    SH_TRY(sh_file_read(fd, path, s, sizeof s, 0));
    if (memcmp(s, signature, sizeof signature) != 0) {
        SH_TRY(sh_outside_refuse(path));
        return sh_fail(SH_E_DATA, "%s is not an HDF5 file", path);
    }
    if (s[VERSION_AT] < 2 || s[VERSION_AT] > 3 || s[ADDRESS_BYTES_AT] != 8 || s[LENGTH_BYTES_AT] != 8 ||
        address_at(s, BASE_AT) != 0)
        return sh_fail(SH_E_DATA, "%s is an HDF5 file of a kind (superblock version %d) that checkpoints do not use",
                       path, s[VERSION_AT]);
    if (s[FLAGS_AT] & WRITING_FLAGS)
        return sh_fail(SH_E_DATA, "%s was never closed by its writer; take an earlier checkpoint", path);
    if (address_at(s, END_AT) != (uint64_t)bytes)
        return sh_fail(SH_E_DATA, "%s has %lld bytes, but says it has %llu: it was truncated or extended", path,
                       (long long)bytes, (unsigned long long)address_at(s, END_AT));
    return SH_OK;
}

static sh_rc refuse(const char *path, const char *name, const char *why)
{
    return sh_fail(SH_E_DATA, "%s: %s: %s", path, name, why);
}

/* Checks each link on the way, since a soft or external one could lead anywhere. */
static sh_rc check_links(hid_t file, const char *path, const char *name)
{
    char part[320];
    size_t length = strlen(name);
    if (length >= sizeof part)
        return refuse(path, "object", "its name is too long");
    for (size_t i = 1; i <= length; i++) {
        H5L_info_t info;
        if (name[i] != '/' && name[i] != '\0')
            continue;
        memcpy(part, name, i);
        part[i] = '\0';
        SH_H5(H5Lget_info(file, part, &info, H5P_DEFAULT), path, part);
        if (info.type != H5L_TYPE_HARD)
            return refuse(path, part, "is a link to elsewhere, which a checkpoint never has");
    }
    return SH_OK;
}

/* The caller closes *group. */
sh_rc sh_ckpt_plain_group(hid_t file, const char *path, const char *name, hid_t *group)
{
    SH_TRY(check_links(file, path, name));
    hid_t g = H5Gopen2(file, name, H5P_DEFAULT);
    SH_H5(g, path, name);
    *group = g;
    return SH_OK;
}

/* Why a dataset is not stored as plain bytes in one place; NULL: it is. Only such data can be read without HDF5. */
static const char *storage_fault(hid_t dcpl)
{
    if (H5Pget_layout(dcpl) != H5D_CONTIGUOUS)
        return "is not stored in one piece";
    if (H5Pget_nfilters(dcpl) != 0)
        return "is stored through a filter";
    if (H5Pget_external_count(dcpl) != 0)
        return "has its data in another file";
    return NULL;
}

/* Texts may have any fixed length; numbers must have exactly the type. */
static bool type_fits(hid_t found, hid_t wanted)
{
    if (H5Tget_class(wanted) == H5T_STRING)
        return H5Tget_class(found) == H5T_STRING && H5Tis_variable_str(found) == 0;
    return H5Tequal(found, wanted) > 0;
}

/* Also works for scalars, which have no dims and one element. */
static sh_rc take_shape(hid_t set, const char *path, const char *name, struct sh_ckpt_plain *p)
{
    hsize_t dim[H5S_MAX_RANK];
    hid_t space = H5Dget_space(set);
    SH_H5(space, path, name);
    p->ndim = H5Sget_simple_extent_ndims(space);
    bool fits = p->ndim >= 0 && p->ndim <= 4 && H5Sget_simple_extent_type(space) != H5S_NULL &&
                H5Sget_simple_extent_dims(space, dim, NULL) >= 0;
    H5Sclose(space);
    if (!fits)
        return refuse(path, name, "has no shape of at most 4 dims");
    p->elems = 1;
    for (int d = 0; d < p->ndim; d++) {
        if (dim[d] == 0 || dim[d] > INT64_MAX || __builtin_mul_overflow(p->elems, (int64_t)dim[d], &p->elems))
            return refuse(path, name, "has an impossible shape");
        p->dim[d] = (int64_t)dim[d];
    }
    return SH_OK;
}

/* Checks that the data at [offset, offset + bytes) is completely within the file. */
static sh_rc take_place(hid_t set, size_t elem_bytes, const char *path, const char *name, int64_t file_bytes,
                        struct sh_ckpt_plain *p)
{
    haddr_t offset = H5Dget_offset(set);
    if (offset == HADDR_UNDEF || __builtin_mul_overflow(p->elems, (int64_t)elem_bytes, &p->bytes) ||
        H5Dget_storage_size(set) != (hsize_t)p->bytes)
        return refuse(path, name, "has no space in the file");
    if (offset > (haddr_t)file_bytes || p->bytes > file_bytes - (int64_t)offset)
        return refuse(path, name, "lies past the end of the file");
    p->offset = (int64_t)offset;
    return SH_OK;
}

/* Handles are closed before the verdict, so that no path leaks one. */
static sh_rc take_dataset(hid_t set, const char *path, const char *name, hid_t wanted, int64_t file_bytes,
                          struct sh_ckpt_plain *p)
{
    hid_t type = H5Dget_type(set), dcpl = H5Dget_create_plist(set);
    bool fits = type >= 0 && type_fits(type, wanted);
    size_t elem_bytes = type >= 0 ? H5Tget_size(type) : 0;
    const char *fault = dcpl >= 0 ? storage_fault(dcpl) : "cannot be read";
    if (type >= 0)
        H5Tclose(type);
    if (dcpl >= 0)
        H5Pclose(dcpl);
    if (fault)
        return refuse(path, name, fault);
    if (!fits || elem_bytes == 0)
        return refuse(path, name, "has another element type than expected");
    SH_TRY(take_shape(set, path, name, p));
    return take_place(set, elem_bytes, path, name, file_bytes, p);
}

/* Gets everything that a reader needs to take the data with read() alone. */
sh_rc sh_ckpt_plain_dataset(hid_t file, const char *path, const char *name, hid_t type, int64_t file_bytes,
                            struct sh_ckpt_plain *out)
{
    struct sh_ckpt_plain p = {0};
    SH_TRY(check_links(file, path, name));
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    SH_H5(set, path, name);
    sh_rc rc = take_dataset(set, path, name, type, file_bytes, &p);
    H5Dclose(set);
    if (rc == SH_OK)
        *out = p;
    return rc;
}

/* A scalar of 64 bits, signed or not. */
static bool is_number(hid_t attr)
{
    hid_t type = H5Aget_type(attr), space = H5Aget_space(attr);
    bool fits = type >= 0 && space >= 0 && H5Tget_class(type) == H5T_INTEGER && H5Tget_size(type) == 8 &&
                H5Sget_simple_extent_type(space) == H5S_SCALAR;
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    return fits;
}

/* `value` has room for 8 bytes. */
sh_rc sh_ckpt_plain_number(hid_t file, const char *path, const char *name, void *value)
{
    hid_t attr = H5Aopen_by_name(file, "/meta", name, H5P_DEFAULT, H5P_DEFAULT);
    SH_H5(attr, path, name);
    /* Signed or not makes no difference to the bits: the memory type is that of the file. */
    hid_t type = H5Aget_type(attr);
    bool done = is_number(attr) && type >= 0 && H5Aread(attr, type, value) >= 0;
    if (type >= 0)
        H5Tclose(type);
    H5Aclose(attr);
    return done ? SH_OK : refuse(path, name, "is not a number of 64 bits");
}

/* Reads into a buffer that ends with zeros, however the text ends. */
static bool is_word(hid_t attr, const char *word)
{
    char text[64] = "";
    hid_t type = H5Aget_type(attr), space = H5Aget_space(attr);
    bool is = type >= 0 && space >= 0 && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
              H5Tget_size(type) < sizeof text && H5Sget_simple_extent_type(space) == H5S_SCALAR &&
              H5Aread(attr, type, text) >= 0 && strcmp(text, word) == 0;
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    return is;
}

/* Checks an attribute that must be exactly `word`. */
sh_rc sh_ckpt_plain_word(hid_t file, const char *path, const char *name, const char *word)
{
    char why[100];
    hid_t attr = H5Aopen_by_name(file, "/meta", name, H5P_DEFAULT, H5P_DEFAULT);
    SH_H5(attr, path, name);
    bool is = is_word(attr, word);
    H5Aclose(attr);
    snprintf(why, sizeof why, "is not \"%s\": not a checkpoint of Sherd", word);
    return is ? SH_OK : refuse(path, name, why);
}
