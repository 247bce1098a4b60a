/* FILE.bin.mask has one byte per token of FILE.bin, 1 if the token counts as a target; FILE.bin.weight has one float16. A
 * document file contains its mask, one bit per token. Either all files of a set have such a thing or none has. */
#include "io/data/beside.h"

#include "src/base/mem.h"
#include "src/base/number/half.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct row {
    const char *suffix, *is, *key;
    int bytes; /* a token */
} rows[SH_DATA_BESIDES] = {
    [SH_DATA_MASK] = {".mask", "a mask", "data.target_mask", 1},
    [SH_DATA_WEIGHT] = {".weight", "a file of weights", "data.token_weight", sizeof(sh_f16)},
};

/* A name that consists of the suffix only is not one. */
bool sh_data_is_beside(const char *path)
{
    for (int i = 0; i < SH_DATA_BESIDES; i++) {
        size_t n = strlen(path), end = strlen(rows[i].suffix);

        if (n > end && strcmp(path + n - end, rows[i].suffix) == 0)
            return true;
    }
    return false;
}

bool sh_data_has_beside(const char *tokens, enum sh_data_beside what)
{
    char *path = sh_strfmt("%s%s", tokens, rows[what].suffix);
    bool there = access(path, F_OK) == 0;

    free(path);
    return there;
}

/* Its size must fit; one for another version of the tokens is refused here. */
static sh_rc open_beside(struct sh_data_files *set, struct sh_data_file *f, enum sh_data_beside what,
                         const char *tokens, const char *path)
{
    int64_t bytes;

    SH_TRY(sh_handles_add(set->handles, path, &f->beside[what], &bytes));
    if (bytes != f->tokens * rows[what].bytes)
        return sh_fail(SH_E_DATA, "%s has %lld bytes, but %s has %lld tokens; %s has %s a token", path,
                       (long long)bytes, tokens, (long long)f->tokens, rows[what].is,
                       rows[what].bytes == 1 ? "one byte" : "two bytes");
    return SH_OK;
}

/* The first file decides for the set: all files have one or none has. A mixture usually means that one was forgotten. */
static sh_rc find_beside(struct sh_data_files *set, struct sh_data_file *f, enum sh_data_beside what,
                         const char *tokens, const char *path, bool must)
{
    bool there = access(path, F_OK) == 0, first = f == set->file;

    if (!there && must)
        return sh_fail(SH_E_DATA, "there is no %s, and %s=must; make one, or set %s=off", path, rows[what].key,
                       rows[what].key);
    if (first)
        set->has[what] = there;
    if (there != set->has[what])
        return sh_fail(SH_E_DATA, "%s %s %s (%s), and the files before it have %s; give each file one, or set %s=off",
                       tokens, there ? "has" : "lacks", rows[what].is, path, there ? "none" : "one", rows[what].key);
    return there ? open_beside(set, f, what, tokens, path) : SH_OK;
}

/* A document file contains its mask, or has none. */
static sh_rc take_own(struct sh_data_files *set, const struct sh_data_file *f, const char *tokens, bool must)
{
    bool there = f->mask_at != 0, first = f == set->file;

    if (must && !there)
        return sh_fail(SH_E_DATA, "%s has no mask in it, and data.target_mask=must; leave that out", tokens);
    if (first)
        set->has[SH_DATA_MASK] = there;
    if (there != set->has[SH_DATA_MASK])
        return sh_fail(SH_E_DATA,
                       "%s %s a mask, and the files before it have %s; read them apart, or set data.target_mask=off",
                       tokens, there ? "has" : "lacks", there ? "none" : "one");
    return SH_OK;
}

static sh_rc open_one(struct sh_data_files *set, struct sh_data_file *f, enum sh_data_beside what,
                      enum sh_cfg_masks want)
{
    const char *tokens = sh_handles_path(set->handles, f->handle);
    char *path;
    sh_rc rc;

    if (want == SH_MASK_OFF)
        return SH_OK;
    if (what == SH_DATA_MASK && f->has_documents)
        return take_own(set, f, tokens, want == SH_MASK_MUST);
    path = sh_strfmt("%s%s", tokens, rows[what].suffix);
    rc = find_beside(set, f, what, tokens, path, want == SH_MASK_MUST);
    free(path);
    return rc;
}

/* `f` must be open already, because the other names are derived from its name. */
sh_rc sh_data_beside_open(struct sh_data_files *set, struct sh_data_file *f, const struct sh_data_options *opt)
{
    SH_TRY(open_one(set, f, SH_DATA_MASK, opt->masks));
    return open_one(set, f, SH_DATA_WEIGHT, opt->weights);
}

/* Each byte is checked: a mask from another tool may have 255 for "counts", or be text. */
sh_rc sh_data_mask_read(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                        unsigned char *mask)
{
    SH_TRY(sh_handles_read(set->handles, f->beside[SH_DATA_MASK], mask, n, first));
    for (int i = 0; i < n; i++)
        if (mask[i] > 1)
            return sh_fail(
                SH_E_DATA,
                "%s: byte %lld is %u; a mask has 1 for a token that counts as a target, 0 for one that does not",
                sh_handles_path(set->handles, f->beside[SH_DATA_MASK]), (long long)(first + i), mask[i]);
    return SH_OK;
}

/* Not only NaN is refused: a sum of larger ones might not be exact. */
sh_rc sh_data_weight_read(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                          float *weight)
{
    enum { STEP = 1024 };
    sh_f16 half[STEP];

    for (int done = 0, some; done < n; done += some) {
        some = n - done < STEP ? n - done : STEP;
        SH_TRY(sh_handles_read(set->handles, f->beside[SH_DATA_WEIGHT], half, some * (int)sizeof *half,
                               (first + done) * (int64_t)sizeof *half));
        sh_half_widen(weight + done, half, some);
        for (int i = done; i < done + some; i++)
            if (!(weight[i] >= 0 && weight[i] <= SH_DATA_MOST_WEIGHT))
                return sh_fail(SH_E_DATA, "%s: token %lld has the weight %g; weights are numbers from 0 to %d",
                               sh_handles_path(set->handles, f->beside[SH_DATA_WEIGHT]), (long long)(first + i),
                               (double)weight[i], SH_DATA_MOST_WEIGHT);
    }
    return SH_OK;
}
