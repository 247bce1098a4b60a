/* Masks of targets: FILE.bin.mask has one byte per token of FILE.bin, 1 if the token counts as a target. A document
 * file contains its mask, one bit per token. Either all files of a set have masks or none has. */
#include "io/data/mask.h"

#include "io/data/documents.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char suffix[] = ".mask";

/* A name that consists of the suffix only is not a mask. */
bool sh_data_mask_is(const char *path)
{
    size_t n = strlen(path), end = sizeof suffix - 1;

    return n > end && strcmp(path + n - end, suffix) == 0;
}

/* A mask has one byte per token, so its size must fit; a mask for another version of the tokens is refused here. */
static sh_rc open_mask(struct sh_data_files *set, struct sh_data_file *f, const char *tokens, const char *path)
{
    int64_t bytes;

    SH_TRY(sh_handles_add(set->handles, path, &f->mask, &bytes));
    if (bytes != f->tokens)
        return sh_fail(SH_E_DATA, "%s has %lld bytes, but %s has %lld tokens; a mask has one byte a token", path,
                       (long long)bytes, tokens, (long long)f->tokens);
    return SH_OK;
}

/* The first file decides for the set: all files have masks or none has. A mixture usually means that a mask was
 * forgotten. */
static sh_rc find_mask(struct sh_data_files *set, struct sh_data_file *f, const char *tokens, const char *path,
                       bool must)
{
    bool there = access(path, F_OK) == 0, first = f == set->file;

    if (!there && must)
        return sh_fail(SH_E_DATA, "there is no %s, and data.target_mask=must; make one, or leave that out", path);
    if (first)
        set->masked = there;
    if (there != set->masked)
        return sh_fail(
            SH_E_DATA,
            "%s %s a mask (%s), and the files before it have %s; give each file one, or set data.target_mask=off",
            tokens, there ? "has" : "lacks", path, there ? "none" : "one");
    return there ? open_mask(set, f, tokens, path) : SH_OK;
}

/* A document file contains its mask, or has none. */
static sh_rc take_own(struct sh_data_files *set, const struct sh_data_file *f, const char *tokens, bool must)
{
    bool there = f->mask_at != 0, first = f == set->file;

    if (must && !there)
        return sh_fail(SH_E_DATA, "%s has no mask in it, and data.target_mask=must; leave that out", tokens);
    if (first)
        set->masked = there;
    if (there != set->masked)
        return sh_fail(SH_E_DATA,
                       "%s %s a mask, and the files before it have %s; read them apart, or set data.target_mask=off",
                       tokens, there ? "has" : "lacks", there ? "none" : "one");
    return SH_OK;
}

/* `f` must be open already, because the name of the mask is derived from its name. */
sh_rc sh_data_mask_open(struct sh_data_files *set, struct sh_data_file *f, enum sh_cfg_masks want)
{
    const char *tokens = sh_handles_path(set->handles, f->handle);
    char *path;
    sh_rc rc;

    if (want == SH_MASK_OFF)
        return SH_OK;
    if (f->has_documents)
        return take_own(set, f, tokens, want == SH_MASK_MUST);
    path = sh_strfmt("%s%s", tokens, suffix);
    rc = find_mask(set, f, tokens, path, want == SH_MASK_MUST);
    free(path);
    return rc;
}

/* Each byte is checked: a mask from another tool may have 255 for "counts", or be text. */
sh_rc sh_data_mask_read(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                        unsigned char *mask)
{
    if (f->has_documents)
        return sh_documents_bits(set, f, first, n, mask);
    SH_TRY(sh_handles_read(set->handles, f->mask, mask, n, first));
    for (int i = 0; i < n; i++)
        if (mask[i] > 1)
            return sh_fail(
                SH_E_DATA,
                "%s: byte %lld is %u; a mask has 1 for a token that counts as a target, 0 for one that does not",
                sh_handles_path(set->handles, f->mask), (long long)(first + i), mask[i]);
    return SH_OK;
}
