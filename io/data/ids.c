/* Reads and checks the ids of one file of a set. */
#include "io/data/files.h"

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

/* Checked here, once for each token read: an id outside the vocabulary would read memory outside the embedding. */
static sh_rc check_ids(const char *path, const int32_t *ids, int n, int64_t first, int vocab_size)
{
    for (int i = 0; i < n; i++)
        if ((uint32_t)ids[i] >= (uint32_t)vocab_size)
            return sh_fail(SH_E_DATA, "%s: token %lld is %u, but model.vocab_size is %d; %s", path,
                           (long long)(first + i), (unsigned)ids[i], vocab_size,
                           is_ignored_elsewhere((uint32_t)ids[i])
                               ? "targets that do not count go into a mask (doc/data-format.md)"
                               : "tokenize with the model's vocabulary or check data.token_type");
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
    return check_ids(sh_handles_path(set->handles, f->handle), ids, n, first, set->vocab_size);
}
