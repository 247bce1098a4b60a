/* Reads the index of a checkpoint from a file that may be damaged or a stranger's: the superblock, the footer at the
 * end, the index by the place and digest in the footer, then HDF5's structures by theirs. HDF5 sees none of it, since
 * it may crash on damage. */
#include "io/checkpoint/file/index.h"

#include "io/checkpoint/file/pack.h"
#include "io/file/file.h"
#include "io/file/outside.h"
#include "src/optim/optim.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file that is not trusted yet: every number in it is checked before use. */
struct reader {
    const char *path;
    int fd;
    int64_t bytes;
};

/* The cure is the same, whatever is damaged. */
static sh_rc damaged(const struct reader *r, const char *why)
{
    return sh_fail(SH_E_DATA, "%s: %s: the file is damaged; take an earlier checkpoint", r->path, why);
}

/* Allocates with plain malloc(), which may fail, since the length comes from the file. */
static sh_rc read_bytes(const struct reader *r, int64_t at, int64_t bytes, unsigned char **out)
{
    enum { ANY_MACHINE_HAS = 64 << 20 }; /* up to this size the length is not to blame */
    unsigned char *data = malloc((size_t)bytes + 1);
    if (!data && bytes <= ANY_MACHINE_HAS)
        return sh_fail(SH_E_MEMORY, "%s: no memory for %lld bytes of its index", r->path, (long long)bytes);
    if (!data)
        return damaged(r, "its index or HDF5's structures do not fit into memory");
    sh_rc rc = sh_file_read(r->fd, r->path, data, bytes, at);
    if (rc == SH_OK)
        *out = data;
    else
        free(data);
    return rc;
}

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

/* The structures' digest covers these bytes too; here truncated, half-written and foreign files get messages of their
 * own. */
static sh_rc check_superblock(const struct reader *r)
{
    static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    unsigned char s[SUPERBLOCK_BYTES];
    if (r->bytes < SUPERBLOCK_BYTES + SH_CKPT_FOOTER_BYTES) {
        SH_TRY(sh_outside_refuse(r->path));
        return sh_fail(SH_E_DATA, "%s has only %lld bytes: not a checkpoint", r->path, (long long)r->bytes);
    }
    SH_TRY(sh_file_read(r->fd, r->path, s, sizeof s, 0));
    if (memcmp(s, signature, sizeof signature) != 0) {
        SH_TRY(sh_outside_refuse(r->path));
        return sh_fail(SH_E_DATA, "%s is not an HDF5 file, and so no checkpoint", r->path);
    }
    if (s[VERSION_AT] < 2 || s[VERSION_AT] > 3 || s[ADDRESS_BYTES_AT] != 8 || s[LENGTH_BYTES_AT] != 8 ||
        address_at(s, BASE_AT) != 0)
        return sh_fail(SH_E_DATA, "%s is an HDF5 file of a kind (superblock version %d) that checkpoints do not use",
                       r->path, s[VERSION_AT]);
    if (s[FLAGS_AT] & WRITING_FLAGS)
        return sh_fail(SH_E_DATA, "%s was never closed by its writer; take an earlier checkpoint", r->path);
    if (address_at(s, END_AT) != (uint64_t)r->bytes)
        return sh_fail(SH_E_DATA, "%s has %lld bytes, but says it has %llu: it was truncated or extended", r->path,
                       (long long)r->bytes, (unsigned long long)address_at(s, END_AT));
    return SH_OK;
}

static sh_rc read_footer(const struct reader *r, struct sh_ckpt_footer *footer)
{
    unsigned char bytes[SH_CKPT_FOOTER_BYTES];
    SH_TRY(sh_file_read(r->fd, r->path, bytes, sizeof bytes, r->bytes - SH_CKPT_FOOTER_BYTES));
    if (sh_ckpt_footer_unpack(bytes, footer))
        return SH_OK;
    return sh_fail(SH_E_DATA,
                   "%s: an HDF5 file without the index that ends a checkpoint: another program wrote or changed it, "
                   "or its end is damaged; take an earlier checkpoint",
                   r->path);
}

/* The index must fill all bytes from its start to the footer: one more condition that a damaged number must meet. */
static sh_rc check_footer(const struct reader *r, const struct sh_ckpt_footer *f)
{
    if (f->major < 1 || f->major > SH_CKPT_MAJOR)
        return sh_fail(SH_E_DATA, "%s has format version %u, but this program reads %d; use the Sherd that wrote it",
                       r->path, f->major, SH_CKPT_MAJOR);
    if (f->at < 0 || f->bytes < 0 || f->bytes > sh_ckpt_packed_most(r->bytes) ||
        f->at > r->bytes - SH_CKPT_FOOTER_BYTES || f->bytes != r->bytes - SH_CKPT_FOOTER_BYTES - f->at)
        return damaged(r, "its last bytes do not say where its index is");
    return SH_OK;
}

/* With 128 bits, undetected damage is out of the question. */
static bool is_same(struct sh_hash128 a, struct sh_hash128 b)
{
    return a.low == b.low && a.high == b.high;
}

/* The structures take at most a few KiB for each tensor, plus the texts and digests that the index has, too: a larger
 * length is not worth reading. */
static sh_rc check_structures(const struct reader *r, const struct sh_ckpt_index *index, int64_t packed_bytes)
{
    unsigned char *bytes;
    if (index->structure_bytes > packed_bytes + (index->n + 64) * 8192)
        return damaged(r, "HDF5's structures are larger than they can be");
    SH_TRY(read_bytes(r, 0, index->structure_bytes, &bytes));
    bool same = is_same(sh_hash128(bytes, (size_t)index->structure_bytes), index->structure);
    free(bytes);
    return same ? SH_OK : damaged(r, "HDF5's structures do not match their digest");
}

/* In order of cost: the digest of the index, its contents, then the structures that it vouches for. */
static sh_rc unpack(const struct reader *r, const struct sh_ckpt_footer *f, const unsigned char *bytes,
                    struct sh_ckpt_index *out)
{
    struct sh_ckpt_index index;
    if (!is_same(sh_hash128(bytes, (size_t)f->bytes), f->digest))
        return damaged(r, "its index does not match its digest");
    SH_TRY(sh_ckpt_unpack(bytes, f->bytes, r->path, r->bytes, f->at, &index));
    bool fits = (uint32_t)index.minor == f->minor;
    sh_rc rc = fits ? check_structures(r, &index, f->bytes)
                    : damaged(r, "its index is of another version of the format");
    if (rc == SH_OK)
        *out = index;
    else
        sh_ckpt_index_free(&index);
    return rc;
}

static sh_rc read_index(const struct reader *r, struct sh_ckpt_index *out)
{
    struct sh_ckpt_footer f;
    unsigned char *bytes;
    SH_TRY(read_footer(r, &f));
    SH_TRY(check_footer(r, &f));
    SH_TRY(read_bytes(r, f.at, f.bytes, &bytes));
    sh_rc rc = unpack(r, &f, bytes, out);
    free(bytes);
    return rc;
}

/* A file under another step's name would change what "newest" means. Names without a step are not checked. */
static sh_rc check_name(const struct reader *r, const struct sh_ckpt_index *index)
{
    int64_t named = sh_ckpt_step_of(r->path);
    if (named < 0 || named == index->meta.step)
        return SH_OK;
    return sh_fail(SH_E_DATA,
                   "%s holds step %lld, not the one in its name: it was copied or renamed; restore its original "
                   "name",
                   r->path, (long long)index->meta.step);
}

/* Here rather than when a run takes it over: a run then takes the older checkpoint, as with other damage. */
static sh_rc check_guard(const struct reader *r, const struct sh_ckpt_index *index)
{
    sh_rc rc = sh_guard_check(index->meta.guard);
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "%s: ", r->path);
}

/* Anything but a plain file (a device, a directory) is refused before its bytes are read. */
static sh_rc read_open(const struct reader *r, struct sh_ckpt_index *out)
{
    struct sh_ckpt_index index;
    SH_TRY(check_superblock(r));
    SH_TRY(read_index(r, &index));
    sh_rc rc = check_name(r, &index);
    if (rc == SH_OK)
        rc = check_guard(r, &index);
    if (rc == SH_OK)
        *out = index;
    else
        sh_ckpt_index_free(&index);
    return rc;
}

/* The descriptor is closed again: the data is read later, by those who need it. */
sh_rc sh_ckpt_index_read(const char *path, struct sh_ckpt_index *out)
{
    struct reader r = {.path = path};
    SH_TRY(sh_file_open(path, &r.fd, &r.bytes));
    sh_rc rc = read_open(&r, out);
    close(r.fd);
    return rc;
}
