#include "io/foreign/safetensors/header.h"

#include "io/file/file.h"
#include "io/json/json.h"
#include "src/base/mem.h"
#include "src/base/number/size.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The types of the format that are known here. Parameters are only ever F32, F16 or BF16; the others may occur as
 * buffers. */
static const struct {
    const char *name;
    int bytes;
} types[SH_ST_TYPES] = {
    [SH_ST_F32] = {"F32", 4}, [SH_ST_F16] = {"F16", 2},         [SH_ST_BF16] = {"BF16", 2},
    [SH_ST_F64] = {"F64", 8}, [SH_ST_BOOL] = {"BOOL", 1},       [SH_ST_U8] = {"U8", 1},
    [SH_ST_I8] = {"I8", 1},   [SH_ST_F8_E4M3] = {"F8_E4M3", 1}, [SH_ST_F8_E5M2] = {"F8_E5M2", 1},
    [SH_ST_U16] = {"U16", 2}, [SH_ST_I16] = {"I16", 2},         [SH_ST_U32] = {"U32", 4},
    [SH_ST_I32] = {"I32", 4}, [SH_ST_U64] = {"U64", 8},         [SH_ST_I64] = {"I64", 8},
};

const char *sh_st_type_name(int type)
{
    return types[type].name;
}

int sh_st_type_bytes(int type)
{
    return types[type].bytes;
}

struct parse {
    const char *path;
    int64_t data_at, data_bytes;
    struct sh_st_header out;
};

/* Fail because a header is bad; the message has the tensor's name, if there is one. */
static sh_rc refuse(const struct parse *p, const char *name, const char *why)
{
    return sh_fail(SH_E_DATA, "%s: its header: %s%s%s: the file is damaged, or is not a safetensors file", p->path,
                   name, name[0] ? ": " : "", why);
}

/* JSON text is UTF-8 already; control characters must not reach a terminal. */
bool sh_st_name_plain(const char *name)
{
    size_t n = strlen(name);
    for (const unsigned char *s = (const unsigned char *)name; *s; s++)
        if (*s < 0x20 || *s == 0x7f || (*s == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0))
            return false;
    return n >= 1 && n <= SH_ST_NAME_MAX;
}

/* An unknown type has an unknown size, so nothing else could be checked. */
static sh_rc take_type(const struct parse *p, json_t *value, struct sh_st_entry *e)
{
    const char *name = json_string_value(value);
    for (int t = 0; name && t < SH_ST_TYPES; t++)
        if (strcmp(types[t].name, name) == 0) {
            e->type = t;
            return SH_OK;
        }
    return refuse(p, e->name, "its dtype is not known here");
}

/* A product that overflows becomes INT64_MAX (sh_size_mul), which no file has room for. */
static sh_rc take_shape(const struct parse *p, json_t *value, struct sh_st_entry *e)
{
    if (!json_is_array(value) || json_array_size(value) > SH_ST_DIMS_MAX)
        return refuse(p, e->name, "its shape is not a list of at most 4 dims");
    e->ndim = (int32_t)json_array_size(value);
    e->elems = 1;
    for (int d = 0; d < e->ndim; d++) {
        json_t *dim = json_array_get(value, (size_t)d);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return refuse(p, e->name, "a dim is not a whole number");
        e->dim[d] = json_integer_value(dim);
        e->elems = sh_size_mul(e->elems, e->dim[d]);
    }
    return SH_OK;
}

/* Offsets count from the end of the header. Byte count, shape and type must agree exactly. */
static sh_rc take_place(const struct parse *p, json_t *value, struct sh_st_entry *e)
{
    json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return refuse(p, e->name, "its data_offsets are not two whole numbers");
    int64_t first = json_integer_value(begin), last = json_integer_value(end);
    if (first < 0 || last < first || last > p->data_bytes)
        return refuse(p, e->name, "its data lies outside the file");
    if (last - first != sh_size_mul(e->elems, types[e->type].bytes))
        return refuse(p, e->name, "its bytes are not those of its shape and dtype");
    e->at = p->data_at + first;
    return SH_OK;
}

/* Exactly three keys: a fourth one might change what the others mean. */
static sh_rc take_tensor(struct parse *p, const char *name, json_t *value)
{
    struct sh_st_entry *e = &p->out.entry[p->out.n];
    /* The name is checked before it is used in any message. */
    if (!sh_st_name_plain(name))
        return refuse(p, "", "a tensor's name is empty, longer than 255 bytes or has control characters");
    strcpy(e->name, name);
    if (json_object_size(value) != 3)
        return refuse(p, name, "its keys are not exactly dtype, shape and data_offsets");
    SH_TRY(take_type(p, json_object_get(value, "dtype"), e));
    SH_TRY(take_shape(p, json_object_get(value, "shape"), e));
    SH_TRY(take_place(p, json_object_get(value, "data_offsets"), e));
    p->out.n++;
    return SH_OK;
}

/* Only the form of the metadata is checked; anyone may put anything into it. */
static sh_rc check_metadata(const struct parse *p, json_t *value)
{
    const char *key;
    json_t *text;
    if (!json_is_object(value))
        return refuse(p, "__metadata__", "it is not an object of strings");
    json_object_foreach(value, key, text) if (!json_is_string(text)) return refuse(p, "__metadata__",
                                                                                   "it is not an object of strings");
    return SH_OK;
}

static int64_t end_of(const struct sh_st_entry *e)
{
    return e->at + e->elems * types[e->type].bytes;
}

/* Order tensors by place; an empty tensor comes before one that begins at the same place. */
static int by_place(const void *a, const void *b)
{
    const struct sh_st_entry *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (end_of(x) > end_of(y)) - (end_of(x) < end_of(y));
}

/* Every byte of the data belongs to exactly one tensor, as the format demands. A hole could hide something; an overlap
 * makes two tensors one. */
static sh_rc check_cover(const struct parse *p)
{
    int64_t at = p->data_at;
    for (int64_t i = 0; i < p->out.n; i++) {
        const struct sh_st_entry *e = &p->out.entry[i];
        if (e->at != at)
            return refuse(p, e->name, e->at > at ? "there is a hole before its data" : "its data overlaps another's");
        at = end_of(e);
    }
    if (at != p->data_at + p->data_bytes)
        return refuse(p, "", "there are bytes after the last tensor");
    return SH_OK;
}

/* Names are unique because the JSON parser refuses a key that occurs twice. */
static sh_rc take_all(struct parse *p, json_t *root)
{
    const char *name;
    json_t *value;
    if (!json_is_object(root) || json_object_size(root) > SH_ST_TENSORS_MAX)
        return refuse(p, "", "it is not an object of at most 1,000,000 tensors");
    p->out.entry = sh_calloc(json_object_size(root) + 1, sizeof *p->out.entry);
    json_object_foreach(root, name, value) if (strcmp(name, "__metadata__") == 0) SH_TRY(check_metadata(p, value));
    else SH_TRY(take_tensor(p, name, value));
    qsort(p->out.entry, (size_t)p->out.n, sizeof *p->out.entry, by_place);
    return check_cover(p);
}

/* `file_bytes` bounds every offset. On success the caller frees out->entry. */
sh_rc sh_st_header_parse(const char *text, int64_t bytes, int64_t data_at, int64_t file_bytes, const char *path,
                         struct sh_st_header *out)
{
    struct parse p = {
        .path = path, .data_at = data_at, .data_bytes = file_bytes - data_at, .out = {.file_bytes = file_bytes}};
    json_t *root;
    if (bytes < 1 || text[0] != '{')
        return refuse(&p, "", "it does not begin with {");
    SH_TRY(sh_json_parse(text, (size_t)bytes, path, &root));
    sh_rc rc = take_all(&p, root);
    json_decref(root);
    if (rc == SH_OK)
        *out = p.out;
    else
        free(p.out.entry);
    return rc;
}

/* Cloning a model without git-lfs leaves small text files in place of the weights; the message says what to do. */
static sh_rc check_pointer(int fd, const char *path, int64_t bytes)
{
    static const char first[] = "version https://git-lfs";
    char text[sizeof first] = "";
    if (bytes < (int64_t)sizeof first || bytes > 1024)
        return SH_OK;
    SH_TRY(sh_file_read(fd, path, text, sizeof first - 1, 0));
    if (strcmp(text, first) != 0)
        return SH_OK;
    return sh_fail(SH_E_DATA,
                   "%s is a pointer of %lld bytes, the file was not fetched: run `git lfs pull` in its folder", path,
                   (long long)bytes);
}

/* Read the length: eight bytes, little-endian. The limit keeps a damaged length from being allocated. */
static sh_rc read_length(int fd, const char *path, int64_t bytes, int64_t *length)
{
    unsigned char first[8];
    uint64_t n = 0;
    if (bytes < 8)
        return sh_fail(SH_E_DATA, "%s: a file of %lld bytes cannot be a safetensors file", path, (long long)bytes);
    SH_TRY(sh_file_read(fd, path, first, 8, 0));
    for (int i = 7; i >= 0; i--)
        n = n << 8 | first[i];
    if (n > SH_ST_HEADER_MAX || (int64_t)n > bytes - 8)
        return sh_fail(SH_E_DATA,
                       "%s: a header of %llu bytes, in a file of %lld, where at most %d are allowed: the file is "
                       "damaged, or is not a safetensors file",
                       path, (unsigned long long)n, (long long)bytes, SH_ST_HEADER_MAX);
    *length = (int64_t)n;
    return SH_OK;
}

/* The text of the header is freed again; entries have copies of the names. */
static sh_rc read_open(int fd, const char *path, int64_t bytes, struct sh_st_header *out)
{
    int64_t n = 0;
    SH_TRY(check_pointer(fd, path, bytes));
    SH_TRY(read_length(fd, path, bytes, &n));
    char *text = malloc((size_t)n + 1);
    if (!text)
        return sh_fail(SH_E_MEMORY, "%s: no memory for its header of %lld bytes", path, (long long)n);
    sh_rc rc = sh_file_read(fd, path, text, n, 8);
    if (rc == SH_OK)
        rc = sh_st_header_parse(text, n, 8 + n, bytes, path, out);
    free(text);
    return rc;
}

/* Reads only the header; the data is read later, by the ranks that need it. */
sh_rc sh_st_header_read(const char *path, struct sh_st_header *out)
{
    int64_t bytes;
    int fd;
    SH_TRY(sh_file_open(path, &fd, &bytes));
    sh_rc rc = read_open(fd, path, bytes, out);
    close(fd);
    return rc;
}
