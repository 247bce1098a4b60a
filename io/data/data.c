#include "io/data/data.h"

#include "io/data/ahead.h"
#include "io/data/files.h"
#include "io/data/permute.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct sh_data {
    struct sh_data_files files;
    bool shuffle;
    uint64_t seed;
    int document_separator;
    struct sh_data_ahead *ahead;
};

static int64_t window_of_sample(const struct sh_data *d, int64_t sample)
{
    int64_t epoch = sample / d->files.windows, i = sample % d->files.windows;
    return d->shuffle ? sh_data_permute(i, d->files.windows, d->seed, (uint64_t)epoch) : i;
}

static void mark_documents(const int32_t *tokens, int n, int separator, int32_t *docs)
{
    int first = 0;
    for (int t = 0; t < n; t++) {
        docs[t] = first;
        if (tokens[t] == separator)
            first = t + 1;
    }
}

/* sh_data_fill: runs in the caller's thread and in the one that reads ahead, so it only reads `source`. */
static sh_rc fill(const void *source, int64_t first, int64_t n, int32_t *tokens, int32_t *targets, int32_t *docs)
{
    const struct sh_data *d = source;
    int T = d->files.seq_len;
    size_t row_bytes = (size_t)T * sizeof(int32_t);
    int32_t *ids = sh_calloc((size_t)T + 1, sizeof *ids);
    sh_rc rc = SH_OK;
    for (int64_t i = 0; i < n; i++) {
        SH_TRY_OUT(sh_data_files_window(&d->files, window_of_sample(d, first + i), ids));
        memcpy(tokens + i * T, ids, row_bytes);
        memcpy(targets + i * T, ids + 1, row_bytes);
        if (docs)
            mark_documents(ids, T, d->document_separator, docs + i * T);
    }
    rc = SH_OK;
out:
    free(ids);
    return rc;
}

sh_rc sh_data_open(const struct sh_data_options *opt, struct sh_data **out)
{
    struct sh_data *d = sh_calloc(1, sizeof *d);
    sh_rc rc;
    d->shuffle = opt->shuffle;
    d->seed = opt->seed;
    d->document_separator = opt->document_separator;
    SH_TRY_OUT(sh_data_files_open(opt, &d->files));
    SH_TRY_OUT(sh_data_ahead_start(fill, d, opt->seq_len, &d->ahead));
    *out = d;
    return SH_OK;
out:
    sh_data_close(d);
    return rc;
}

void sh_data_close(struct sh_data *d)
{
    if (!d)
        return;
    sh_data_ahead_stop(d->ahead);
    sh_data_files_close(&d->files);
    free(d);
}

int64_t sh_data_samples(const struct sh_data *d)
{
    return d->files.windows;
}

int64_t sh_data_tokens(const struct sh_data *d)
{
    return d->files.tokens;
}

sh_rc sh_data_read(struct sh_data *d, int64_t first, int64_t n, int32_t *tokens, int32_t *targets, int32_t *docs,
                   int64_t *counted)
{
    SH_REQUIRE(first >= 0 && n >= 0);
    if (docs && d->document_separator < 0)
        return sh_fail(SH_E_USAGE, "documents cannot be told apart without data.document_separator");
    if (!sh_data_ahead_take(d->ahead, first, n, tokens, targets, docs))
        SH_TRY(fill(d, first, n, tokens, targets, docs));
    *counted = n * d->files.seq_len;
    return SH_OK;
}

void sh_data_prefetch(struct sh_data *d, int64_t first, int64_t n, bool docs)
{
    sh_data_ahead_ask(d->ahead, first, n, docs);
}
