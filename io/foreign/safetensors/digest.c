#include "io/foreign/safetensors/digest.h"

#include "io/file/file.h"
#include "io/file/sample.h"
#include "src/base/hash.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 3 };

static int by_file(const void *a, const void *b)
{
    const struct sh_st_entry *x = *(const struct sh_st_entry *const *)a, *y = *(const struct sh_st_entry *const *)b;

    return (x->file > y->file) - (x->file < y->file);
}

/* The place in the file is left out: another number of files moves tensors, but does not change them. */
static sh_rc digest_one(const struct sh_st_entry *e, int fd, const char *path, uint64_t *digest)
{
    uint64_t h = sh_hash64(e->name, strlen(e->name));

    h = sh_mix64(h ^ (uint64_t)e->type);
    h = sh_mix64(h ^ sh_hash64(e->dim, (size_t)e->ndim * sizeof *e->dim));
    SH_TRY(sh_file_sample(fd, path, e->at, e->elems * sh_st_type_bytes(e->type), BLOCKS, &h));
    *digest += sh_mix64(h);
    return SH_OK;
}

/* Entries [0, n) are those of one file. */
static sh_rc digest_file(const char *path, const struct sh_st_entry *const *entry, int64_t n, uint64_t *digest)
{
    int64_t bytes;
    int fd;
    sh_rc rc;

    SH_TRY(sh_file_open(path, &fd, &bytes));
    rc = SH_OK;
    for (int64_t i = 0; i < n && rc == SH_OK; i++)
        rc = digest_one(entry[i], fd, path, digest);
    close(fd);
    return rc;
}

/* A sum does not depend on the order, which follows the files. */
sh_rc sh_st_digest(const char *folder, const struct sh_st_index *index, uint64_t *digest)
{
    const struct sh_st_entry **entry = sh_calloc((size_t)index->n + 1, sizeof *entry);
    sh_rc rc = SH_OK;

    *digest = (uint64_t)index->n;
    for (int64_t i = 0; i < index->n; i++)
        entry[i] = &index->entry[i];
    qsort(entry, (size_t)index->n, sizeof *entry, by_file);
    for (int64_t i = 0, end; i < index->n && rc == SH_OK; i = end) {
        char *path = sh_path_join(folder, index->file[entry[i]->file].name);

        for (end = i; end < index->n && entry[end]->file == entry[i]->file; end++)
            ;
        rc = digest_file(path, entry + i, end - i, digest);
        free(path);
    }
    free(entry);
    return rc;
}
