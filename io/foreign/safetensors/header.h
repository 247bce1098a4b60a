/* The header of a safetensors file: 8 bytes that hold the length N, little-endian; N bytes of JSON with type, shape and
 * place of each tensor; then the data. The reader trusts nothing: every rule below is checked before anything is
 * allocated that the file asks for, and the only thing it can ask for is the header itself.
 *
 *   N at most 100,000,000 and within the file; one object that begins with '{', no name twice
 *   names of 1 to 255 bytes, UTF-8 without control characters; at most 4 dims, whole numbers; sizes without overflow
 *   the places cover the data from its start to the end of the file: no hole, no overlap, no tail
 *   end - begin = elements x bytes of the type
 *
 * Format: https://huggingface.co/docs/safetensors, "Format". Local. */
#ifndef IO_SAFETENSORS_HEADER_H
#define IO_SAFETENSORS_HEADER_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { SH_ST_HEADER_MAX = 100000000, SH_ST_NAME_MAX = 255, SH_ST_DIMS_MAX = 4, SH_ST_TENSORS_MAX = 1000000 };

/* The types that a header may name. Parameters are F32, F16 or BF16; buffers may have any type. */
/* clang-format off */
enum sh_st_type {
    SH_ST_F32, SH_ST_F16, SH_ST_BF16, SH_ST_F64, SH_ST_BOOL, SH_ST_U8, SH_ST_I8, SH_ST_F8_E4M3, SH_ST_F8_E5M2, SH_ST_U16,
    SH_ST_I16, SH_ST_U32, SH_ST_I32, SH_ST_U64, SH_ST_I64, SH_ST_TYPES
};
/* clang-format on */
const char *sh_st_type_name(int type); /* "BF16" */
int sh_st_type_bytes(int type);

struct sh_st_entry {
    char name[SH_ST_NAME_MAX + 1];
    int32_t type, ndim, file; /* file: number in the index */
    int64_t dim[SH_ST_DIMS_MAX];
    int64_t elems; /* 1 if ndim is 0 */
    int64_t at;    /* bytes from the start of the file */
};

struct sh_st_header {
    struct sh_st_entry *entry; /* in the order of their places in the file */
    int64_t n, file_bytes;
};

/* Whether a tensor may have this name. */
bool sh_st_name_plain(const char *name);

/* Parse a header in memory; `data_at`: where the data begins, `file_bytes`: where it ends. Free with free(out->entry).
 * Errors: SH_E_DATA with `path` and the rule. */
sh_rc sh_st_header_parse(const char *text, int64_t bytes, int64_t data_at, int64_t file_bytes, const char *path,
                         struct sh_st_header *out);

/* Read the header of a regular file. Errors: SH_E_DATA: also for a Git LFS pointer in place of the file. */
sh_rc sh_st_header_read(const char *path, struct sh_st_header *out);

#endif
