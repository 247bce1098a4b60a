/* Sample s of a run is window s mod W of epoch s / W, W windows in the set, shuffled anew in each epoch by a keyed
 * permutation. There is no state: any rank can read any sample at any time, which is all that resuming and changing the
 * mesh need. */
#include "io/data/data.h"

#include "io/data/ahead.h"
#include "io/data/files.h"
#include "io/data/permute.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Everything but `ahead` is constant after sh_data_open(), so that two threads may read it. */
struct sh_data {
    struct sh_data_files files;
    bool shuffle;
    uint64_t seed;
    int document_separator;
    struct sh_data_ahead *ahead;
};

/* A permutation for each epoch, so that every window is seen once before any is seen again. */
static int64_t window_of_sample(const struct sh_data *d, int64_t sample)
{
    int64_t epoch = sample / d->files.windows, i = sample % d->files.windows;
    return d->shuffle ? sh_data_permute(i, d->files.windows, d->seed, (uint64_t)epoch) : i;
}

/* docs[t] is where the document of token t begins in the window; the separator belongs to the document that it ends.
 * Example: a b | c, with | the separator, gives 0 0 0 3. */
static void mark_documents(const int32_t *tokens, int n, int separator, int32_t *docs)
{
    int first = 0;
    for (int t = 0; t < n; t++) {
        docs[t] = first;
        if (tokens[t] == separator)
            first = t + 1;
    }
}

/* Targets [T] of a window, of which `mask` [T] is scratch. */
static sh_rc mask_targets(const struct sh_data *d, int64_t window, unsigned char *mask, int32_t *targets)
{
    SH_TRY(sh_data_files_mask(&d->files, window, mask));
    for (int t = 0; t < d->files.seq_len; t++)
        if (!mask[t])
            targets[t] = -1;
    return SH_OK;
}

/* sh_data_fill: runs in the caller's thread and in the one that reads ahead, so it only reads `source`. */
static sh_rc fill(const void *source, int64_t first, int64_t n, int32_t *tokens, int32_t *targets, int32_t *docs)
{
    const struct sh_data *d = source;
    int T = d->files.seq_len;
    size_t row_bytes = (size_t)T * sizeof(int32_t);
    int32_t *ids = sh_calloc((size_t)T + 1, sizeof *ids);
    unsigned char *mask = sh_calloc((size_t)T, 1);
    sh_rc rc = SH_OK;
    for (int64_t i = 0; i < n; i++) {
        int64_t window = window_of_sample(d, first + i);
        SH_TRY_OUT(sh_data_files_window(&d->files, window, ids));
        memcpy(tokens + i * T, ids, row_bytes);
        /* Targets are the tokens one place on: ids has T + 1. */
        memcpy(targets + i * T, ids + 1, row_bytes);
        if (d->files.masked)
            SH_TRY_OUT(mask_targets(d, window, mask, targets + i * T));
        if (docs)
            mark_documents(ids, T, d->document_separator, docs + i * T);
    }
    rc = SH_OK;
out:
    free(ids);
    free(mask);
    return rc;
}

/* sh_data_counter: in either thread, as fill(). */
static sh_rc count_masks(const void *source, int64_t first, int64_t n, int64_t *unmasked)
{
    const struct sh_data *d = source;
    unsigned char *mask = sh_calloc((size_t)d->files.seq_len, 1);
    sh_rc rc = SH_OK;

    *unmasked = 0;
    for (int64_t i = first; i < first + n; i++) {
        SH_TRY_OUT(sh_data_files_mask(&d->files, window_of_sample(d, i), mask));
        for (int t = 0; t < d->files.seq_len; t++)
            *unmasked += mask[t];
    }
    rc = SH_OK;
out:
    free(mask);
    return rc;
}

/* Without masks every token counts, and nothing is read. Else the count that was made ahead is used where it fits. */
sh_rc sh_data_count(const struct sh_data *d, int64_t first, int64_t n, int64_t *unmasked)
{
    *unmasked = n * d->files.seq_len;
    if (!d->files.masked || sh_data_ahead_targets(d->ahead, first, n, unmasked))
        return SH_OK;
    return count_masks(d, first, n, unmasked);
}

/* Now rather than after an epoch that taught nothing. */
static sh_rc check_masks(const struct sh_data *d, const char *path)
{
    int64_t unmasked = 0;

    for (int64_t i = 0; i < d->files.windows && !unmasked; i++)
        SH_TRY(sh_data_count(d, i, 1, &unmasked));
    return unmasked ? SH_OK : sh_fail(SH_E_DATA, "%s: no token counts as a target, the masks are 0 all over", path);
}

sh_rc sh_data_open(const struct sh_data_options *opt, struct sh_data **out)
{
    struct sh_data *d = sh_calloc(1, sizeof *d);
    sh_rc rc;
    d->shuffle = opt->shuffle;
    d->seed = opt->seed;
    d->document_separator = opt->document_separator;
    SH_TRY_OUT(sh_data_files_open(opt, &d->files));
    SH_TRY_OUT(sh_data_ahead_start(fill, count_masks, d, opt->seq_len, &d->ahead));
    /* Reads one mask in the usual case: the first one that counts ends the search. */
    SH_TRY_OUT(check_masks(d, opt->path));
    *out = d;
    return SH_OK;
out:
    sh_data_close(d);
    return rc;
}

/* The thread goes first: it reads the files that are closed next. */
void sh_data_close(struct sh_data *d)
{
    if (!d)
        return;
    sh_data_ahead_stop(d->ahead);
    sh_data_files_close(&d->files);
    free(d);
}

/* Of one epoch. */
int64_t sh_data_samples(const struct sh_data *d)
{
    return d->files.windows;
}

/* Of all files, with those at a file's end that no window has. */
int64_t sh_data_tokens(const struct sh_data *d)
{
    return d->files.tokens;
}

/* Whether targets may be -1. */
bool sh_data_masked(const struct sh_data *d)
{
    return d->files.masked;
}

/* A look at 16 windows spread over the set, enough to see whether the ids are bytes. Not a bound. */
sh_rc sh_data_largest(const struct sh_data *d, int *id)
{
    enum { LOOKS = 16 };
    int64_t last = d->files.windows - 1;
    int32_t *ids = sh_calloc((size_t)d->files.seq_len + 1, sizeof *ids);
    sh_rc rc = SH_OK;

    *id = 0;
    for (int64_t i = 0; i < LOOKS; i++) {
        SH_TRY_OUT(sh_data_files_window(&d->files, last * i / (LOOKS - 1), ids));
        for (int t = 0; t <= d->files.seq_len; t++)
            *id = ids[t] > *id ? ids[t] : *id;
    }
    rc = SH_OK;
out:
    free(ids);
    return rc;
}

/* Targets of -1 do not count; the loss of the step is divided by the number of the others. */
static int64_t count_targets(const struct sh_data *d, int64_t n, const int32_t *targets)
{
    int64_t unmasked = 0, all = n * d->files.seq_len;

    for (int64_t i = 0; d->files.masked && i < all; i++)
        unmasked += targets[i] >= 0;
    return d->files.masked ? unmasked : all;
}

sh_rc sh_data_read(struct sh_data *d, int64_t first, int64_t n, int32_t *tokens, int32_t *targets, int32_t *docs,
                   int64_t *unmasked)
{
    SH_REQUIRE(first >= 0 && n >= 0);
    if (docs && d->document_separator < 0)
        return sh_fail(SH_E_USAGE, "documents cannot be told apart without data.document_separator");
    /* Read here after all; an error that the other thread met comes up again. */
    if (!sh_data_ahead_take(d->ahead, first, n, tokens, targets, docs))
        SH_TRY(fill(d, first, n, tokens, targets, docs));
    *unmasked = count_targets(d, n, targets);
    return SH_OK;
}

/* Returns at once unless an earlier range is still being read. */
void sh_data_prefetch(struct sh_data *d, int64_t first, int64_t n, bool docs, int64_t count)
{
    sh_data_ahead_ask(d->ahead, first, n, docs, d->files.masked ? count : 0);
}
