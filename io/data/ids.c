/* Reads and checks the ids of one file of a set. */
#include "io/data/files.h"

#include "io/data/foreign.h"
#include "io/data/handles.h"

#include <string.h>

/* Widens in place from the end, so that no token is overwritten before it is read. */
static void widen(int32_t *ids, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        uint16_t narrow;
        memcpy(&narrow, (char *)ids + 2 * (size_t)i, sizeof narrow);
        ids[i] = narrow;
    }
}

/* Values that other tools' data have in place of a target that does not count: -100 and -1 as uint32. */
static bool is_ignored_elsewhere(uint32_t id)
{
    return id == (uint32_t)-100 || id == (uint32_t)-1;
}

sh_rc sh_data_files_foreign(const struct sh_data_files *set, const struct sh_data_file *f, const struct sh_foreign **is)
{
    unsigned char head[SH_FOREIGN_HEAD];
    int64_t bytes = f->offset ? 0 : f->tokens * f->token_bytes, n = bytes < SH_FOREIGN_HEAD ? bytes : SH_FOREIGN_HEAD;

    SH_TRY(sh_handles_read(set->handles, f->handle, head, n, 0));
    *is = sh_data_foreign(head, (size_t)n);
    return SH_OK;
}

/* Of another vocabulary; or bytes of a text that data.token_type calls ids. */
static sh_rc refuse_id(const struct sh_data_files *set, const struct sh_data_file *f, int64_t at, uint32_t id)
{
    enum { BYTES = 256 };
    const char *path = sh_handles_path(set->handles, f->handle);
    const struct sh_foreign *is;

    SH_TRY(sh_data_files_foreign(set, f, &is));
    if (is)
        return sh_fail(SH_E_DATA, "%s is %s, not token ids; %s", path, is->what, is->cure);
    return sh_fail(SH_E_DATA, "%s: token %lld is %u, but model.vocab_size is %d; %s", path, (long long)at, (unsigned)id,
                   set->vocab_size,
                   is_ignored_elsewhere(id)   ? "targets that do not count go into a mask (doc/data.md)"
                   : set->vocab_size == BYTES ? "`sherd tokenize --tokenizer byte` makes tokens for a model of bytes"
                                              : "tokenize with the model's vocabulary or check data.token_type");
}

/* Checked here, once for each token read: an id outside the vocabulary would read memory outside the embedding. */
static sh_rc check_ids(const struct sh_data_files *set, const struct sh_data_file *f, const int32_t *ids, int n,
                       int64_t first)
{
    for (int i = 0; i < n; i++)
        if ((uint32_t)ids[i] >= (uint32_t)set->vocab_size)
            return refuse_id(set, f, first + i, (uint32_t)ids[i]);
    return SH_OK;
}

/* ids [n]. May be called by two threads at once; nothing in `set` changes. */
sh_rc sh_data_files_ids(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                        int32_t *ids)
{
    SH_TRY(
        sh_handles_read(set->handles, f->handle, ids, (int64_t)n * f->token_bytes, f->offset + first * f->token_bytes));
    if (f->token_bytes == 2)
        widen(ids, n);
    return check_ids(set, f, ids, n, first);
}
