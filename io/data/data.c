/* Sample s of a run is window s mod W of epoch s / W, for W windows in the set, reshuffled in each epoch by a keyed
 * permutation. There is no state: any rank can read any sample at any time, which is all that resuming and changing the
 * mesh need. A window is a stretch of a stream, or a row of packed documents. */
#include "io/data/data.h"

#include "io/data/ahead.h"
#include "io/data/documents.h"
#include "io/data/files.h"
#include "io/data/mix.h"
#include "io/data/permute.h"
#include "io/data/rows.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The files of one pattern. */
struct set {
    struct sh_data_files files;
    struct sh_pack pack; /* if the set has documents */
    bool packed;
    int64_t windows;
};

/* Everything except `ahead` is constant after sh_data_open(), so two threads may read it. */
struct sh_data {
    struct set set[SH_MIX_SETS];
    int n_sets;
    struct sh_mix mix; /* if there are several sets */
    int seq_len;
    bool shuffle, masked;
    uint64_t seed;
    int document_separator;
    struct sh_data_ahead *ahead;
};

/* Scratch of one reader. */
struct reader {
    int32_t *ids;        /* [T+1] */
    unsigned char *mask; /* [T] */
    int32_t *docs;       /* [T] used if the caller does not want docs */
    struct sh_mix_block block;
};

static struct reader *open_reader(const struct sh_data *d)
{
    struct reader *r = sh_calloc(1, sizeof *r);

    r->ids = sh_calloc((size_t)d->seq_len + 1, sizeof *r->ids);
    r->mask = sh_calloc((size_t)d->seq_len, 1);
    r->docs = sh_calloc((size_t)d->seq_len, sizeof *r->docs);
    r->block.number = -1;
    return r;
}

static void close_reader(struct reader *r)
{
    free(r->ids);
    free(r->mask);
    free(r->docs);
    free(r);
}

/* Each epoch has its own permutation, so every window is seen once before any is seen again. */
static int64_t window_of_sample(const struct sh_data *d, const struct set *set, int64_t sample)
{
    int64_t epoch = sample / set->windows, i = sample % set->windows;
    return d->shuffle ? sh_data_permute(i, set->windows, d->seed, (uint64_t)epoch) : i;
}

/* Find the set and the window of a sample. */
static const struct set *find_sample(const struct sh_data *d, struct reader *r, int64_t sample, int64_t *window)
{
    int64_t block = sample / SH_MIX_BLOCK, place = sample % SH_MIX_BLOCK, i = 0;

    if (d->n_sets > 1) {
        sh_mix_order(&d->mix, d->seed, block, &r->block);
        i = r->block.set[place];
        sample = block * d->mix.share[i] + r->block.rank[place];
    }
    *window = window_of_sample(d, &d->set[i], sample);
    return &d->set[i];
}

/* Set docs[t] to where the document of token t begins in the window; a separator belongs to the document that it ends.
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

/* Apply the mask to the targets [T] of a window of a stream. */
static sh_rc mask_targets(const struct set *set, int64_t window, unsigned char *mask, int32_t *targets)
{
    SH_TRY(sh_data_files_mask(&set->files, window, mask));
    for (int t = 0; t < set->files.seq_len; t++)
        if (!mask[t])
            targets[t] = -1;
    return SH_OK;
}

/* Read one window of a stream. */
static sh_rc read_stream(const struct sh_data *d, const struct set *set, struct reader *r, int64_t window,
                         int32_t *tokens, int32_t *targets, int32_t *docs)
{
    size_t row_bytes = (size_t)d->seq_len * sizeof(int32_t);

    SH_TRY(sh_data_files_window(&set->files, window, r->ids));
    memcpy(tokens, r->ids, row_bytes);
    /* Targets are the tokens shifted by one: ids has T + 1. */
    memcpy(targets, r->ids + 1, row_bytes);
    if (set->files.has[SH_DATA_MASK])
        SH_TRY(mask_targets(set, window, r->mask, targets));
    if (docs)
        mark_documents(r->ids, d->seq_len, d->document_separator, docs);
    return SH_OK;
}

static sh_rc read_window(const struct sh_data *d, const struct set *set, struct reader *r, int64_t window,
                         int32_t *tokens, int32_t *targets, int32_t *docs)
{
    if (set->packed)
        return sh_data_rows_read(&set->files, &set->pack, window, tokens, targets, docs ? docs : r->docs);
    return read_stream(d, set, r, window, tokens, targets, docs);
}

/* The sh_data_fill: runs in the caller's thread and in the one that reads ahead, so it does not change `source`. */
static sh_rc fill(const void *source, int64_t first, int64_t n, int32_t *tokens, int32_t *targets, int32_t *docs)
{
    const struct sh_data *d = source;
    struct reader *r = open_reader(d);
    sh_rc rc = SH_OK;

    for (int64_t i = 0; i < n && rc == SH_OK; i++) {
        int64_t window, at = i * d->seq_len;
        const struct set *set = find_sample(d, r, first + i, &window);
        rc = read_window(d, set, r, window, tokens + at, targets + at, docs ? docs + at : NULL);
    }
    close_reader(r);
    return rc;
}

/* Count the targets of one window that count. */
static sh_rc count_window(const struct sh_data *d, const struct set *set, struct reader *r, int64_t window,
                          int64_t *unmasked)
{
    *unmasked = d->seq_len;
    if (set->packed)
        return sh_data_rows_count(&set->files, &set->pack, window, unmasked);
    if (!set->files.has[SH_DATA_MASK])
        return SH_OK;
    SH_TRY(sh_data_files_mask(&set->files, window, r->mask));
    *unmasked = 0;
    for (int t = 0; t < d->seq_len; t++)
        *unmasked += r->mask[t];
    return SH_OK;
}

/* The sh_data_counter: runs in either thread, like fill(). */
static sh_rc count_masks(const void *source, int64_t first, int64_t n, int64_t *unmasked)
{
    const struct sh_data *d = source;
    struct reader *r = open_reader(d);
    sh_rc rc = SH_OK;

    *unmasked = 0;
    for (int64_t i = first; i < first + n && rc == SH_OK; i++) {
        int64_t window, some = 0;
        const struct set *set = find_sample(d, r, i, &window);
        rc = count_window(d, set, r, window, &some);
        *unmasked += some;
    }
    close_reader(r);
    return rc;
}

/* Without masks every token counts, and nothing is read. Otherwise the count that was made ahead is used if it fits. */
sh_rc sh_data_count(const struct sh_data *d, int64_t first, int64_t n, int64_t *unmasked)
{
    *unmasked = n * d->seq_len;
    if (!d->masked || sh_data_ahead_targets(d->ahead, first, n, unmasked))
        return SH_OK;
    return count_masks(d, first, n, unmasked);
}

int64_t sh_data_count_answers(const struct sh_data *d, int64_t first, int64_t n)
{
    int64_t answers = 0;

    for (int64_t i = first; i < first + n; i++)
        answers += sh_data_rows_answers(&d->set[0].pack, window_of_sample(d, &d->set[0], i));
    return answers;
}

int sh_data_seq_len(const struct sh_data *d)
{
    return d->seq_len;
}

int64_t sh_data_window(const struct sh_data *d, int64_t sample)
{
    return window_of_sample(d, &d->set[0], sample);
}

int64_t sh_data_documents(const struct sh_data *d)
{
    return d->set[0].files.documents * (d->set[0].files.mismatched ? 2 : 1);
}

sh_rc sh_data_label(const struct sh_data *d, int64_t document, int32_t *label)
{
    *label = 2;
    return document >= d->set[0].files.documents ? SH_OK : sh_documents_label(&d->set[0].files, document, label);
}

sh_rc sh_data_numbers(const struct sh_data *d, int64_t document, double *numbers)
{
    return sh_documents_numbers(&d->set[0].files, document, numbers);
}

sh_rc sh_data_beginnings(const struct sh_data *d, int64_t first, int64_t n, int64_t *document)
{
    const struct set *set = &d->set[0];

    for (int64_t i = 0; i < n; i++)
        SH_TRY(sh_data_rows_beginnings(&set->files, &set->pack, window_of_sample(d, set, first + i),
                                       document + i * d->seq_len));
    return SH_OK;
}

static sh_rc weigh_window(const struct sh_data *d, const struct set *set, struct reader *r, int64_t window,
                          float *weight)
{
    if (set->packed)
        return sh_data_rows_weights(&set->files, &set->pack, window, weight);
    SH_TRY(sh_data_files_weights(&set->files, window, weight));
    if (!set->files.has[SH_DATA_MASK])
        return SH_OK;
    SH_TRY(sh_data_files_mask(&set->files, window, r->mask));
    for (int t = 0; t < d->seq_len; t++)
        weight[t] = r->mask[t] ? weight[t] : 0;
    return SH_OK;
}

sh_rc sh_data_weights(const struct sh_data *d, int64_t first, int64_t n, float *weight)
{
    struct reader *r = open_reader(d);
    sh_rc rc = SH_OK;

    for (int64_t i = 0; i < n && rc == SH_OK; i++) {
        int64_t window;
        const struct set *set = find_sample(d, r, first + i, &window);

        rc = weigh_window(d, set, r, window, weight + i * d->seq_len);
    }
    close_reader(r);
    return rc;
}

int64_t sh_data_weight_units(const float *weight, int64_t n)
{
    int64_t units = 0;

    for (int64_t i = 0; i < n; i++)
        units += (int64_t)((double)weight[i] * SH_DATA_WEIGHT_UNITS);
    return units;
}

sh_rc sh_data_weigh(const struct sh_data *d, int64_t first, int64_t n, int64_t *units)
{
    float *weight = sh_calloc((size_t)d->seq_len, sizeof *weight);
    struct reader *r = open_reader(d);
    sh_rc rc = SH_OK;

    *units = 0;
    for (int64_t i = first; i < first + n && rc == SH_OK; i++) {
        int64_t window;
        const struct set *set = find_sample(d, r, i, &window);

        rc = weigh_window(d, set, r, window, weight);
        if (rc == SH_OK)
            *units += sh_data_weight_units(weight, d->seq_len);
    }
    close_reader(r);
    free(weight);
    return rc;
}

/* Check now, as for masks. */
static sh_rc check_weights(const struct sh_data *d, const struct set *set, const char *path)
{
    float *weight = sh_calloc((size_t)d->seq_len, sizeof *weight);
    struct reader *r = open_reader(d);
    int64_t units = 0;
    sh_rc rc = SH_OK;

    for (int64_t w = 0; w < set->windows && !units && rc == SH_OK; w++) {
        rc = weigh_window(d, set, r, w, weight);
        units = rc == SH_OK ? sh_data_weight_units(weight, d->seq_len) : 0;
    }
    close_reader(r);
    free(weight);
    return rc == SH_OK && !units ? sh_fail(SH_E_DATA, "%s: no target that counts weighs anything", path) : rc;
}

/* Check now, rather than after an epoch that taught nothing. */
static sh_rc check_masks(const struct sh_data *d, const struct set *set, const char *path)
{
    struct reader *r = open_reader(d);
    int64_t unmasked = 0;
    sh_rc rc = SH_OK;

    for (int64_t w = 0; w < set->windows && !unmasked && rc == SH_OK; w++)
        rc = count_window(d, set, r, w, &unmasked);
    close_reader(r);
    if (rc == SH_OK && !unmasked)
        return sh_fail(SH_E_DATA, "%s: no token counts as a target, the masks are all 0", path);
    return rc;
}

/* The set is opened directly in `d`, so closing `d` frees everything after a failure. */
static sh_rc open_set(struct sh_data *d, const struct sh_data_options *opt)
{
    struct set *set = &d->set[d->n_sets];

    SH_TRY(sh_data_files_open(opt, &set->files));
    d->n_sets++;
    set->packed = set->files.packing != SH_PACKING_CONCAT;
    if (!set->packed)
        SH_TRY(sh_data_rows_check(&set->files, opt));
    if (set->packed)
        SH_TRY(sh_data_rows_pack(&set->files, opt, &set->pack));
    set->windows = set->packed ? set->pack.rows : set->files.windows;
    d->masked |= set->packed || set->files.has[SH_DATA_MASK];
    if (set->files.has[SH_DATA_MASK])
        SH_TRY(check_masks(d, set, opt->path));
    return set->files.has[SH_DATA_WEIGHT] ? check_weights(d, set, opt->path) : SH_OK;
}

/* Streams and rows differ in what attention sees, and a program is made for one of them. */
static sh_rc check_kinds(const struct sh_data *d)
{
    for (int i = 1; i < d->n_sets; i++)
        if (d->set[i].packed != d->set[0].packed)
            return sh_fail(
                SH_E_DATA,
                "data.mix: %s has documents and %s has none; make document files of both, or set data.packing=concat",
                d->mix.path[d->set[i].packed ? i : 0], d->mix.path[d->set[i].packed ? 0 : i]);
    return SH_OK;
}

static sh_rc open_sets(struct sh_data *d, const struct sh_data_options *opt)
{
    struct sh_data_options one = *opt;

    if (!opt->mix || !opt->mix[0])
        return open_set(d, opt);
    SH_TRY(sh_mix_parse(opt->mix, &d->mix));
    one.sets = d->mix.n;
    for (int i = 0; i < d->mix.n; i++) {
        one.path = d->mix.path[i];
        SH_TRY(open_set(d, &one));
    }
    return check_kinds(d);
}

sh_rc sh_data_open(const struct sh_data_options *opt, struct sh_data **out)
{
    struct sh_data *d = sh_calloc(1, sizeof *d);
    sh_rc rc;

    d->seq_len = opt->seq_len;
    d->shuffle = opt->shuffle;
    d->seed = opt->seed;
    d->document_separator = opt->document_separator;
    SH_TRY_OUT(open_sets(d, opt));
    SH_TRY_OUT(sh_data_ahead_start(fill, count_masks, d, d->seq_len, &d->ahead));
    *out = d;
    return SH_OK;
out:
    sh_data_close(d);
    return rc;
}

/* Stops the thread first, because it reads the files; if it does not come back from a disk that does not answer, they
 * stay open until the process ends. Also works for data that was only partly opened. */
void sh_data_close(struct sh_data *d)
{
    if (!d || !sh_data_ahead_stop(d->ahead))
        return;
    for (int i = 0; i < d->n_sets; i++) {
        sh_data_files_close(&d->set[i].files);
        sh_pack_free(&d->set[i].pack);
    }
    sh_mix_free(&d->mix);
    free(d);
}

/* The sum over all sets. */
int64_t sh_data_samples(const struct sh_data *d)
{
    int64_t windows = 0;

    for (int i = 0; i < d->n_sets; i++)
        windows += d->set[i].windows;
    return windows;
}

sh_rc sh_data_text(const struct sh_data *d, char text[SH_DATA_TEXT])
{
    char files[SH_STR_SHORT], tokens[SH_STR_SHORT];
    uint64_t hash = 0;
    int64_t all = 0; /* those at a file's end that are in no window included */
    int n = 0;

    for (int i = 0; i < d->n_sets; i++) {
        SH_TRY(sh_data_files_sample(&d->set[i].files, &hash));
        n += d->set[i].files.n;
        all += d->set[i].files.tokens;
    }
    snprintf(text, SH_DATA_TEXT, "%s, %s, %lld windows, XXH3 %016llx", sh_str_plural(n, "file", files),
             sh_str_plural(all, "token", tokens), (long long)sh_data_samples(d), (unsigned long long)hash);
    return SH_OK;
}

sh_rc sh_data_answers_text(const struct sh_data *d, char text[SH_DATA_TEXT])
{
    const struct sh_data_files *f = &d->set[0].files;
    char documents[SH_STR_SHORT], kept[48] = "";
    uint64_t hash = 0;

    SH_TRY(sh_data_files_sample(f, &hash));
    if (d->set[0].pack.cut && f->kept)
        snprintf(kept, sizeof kept, ", cut to %lld tokens", (long long)f->kept);
    snprintf(text, SH_DATA_TEXT, "%s, %lld tokens, XXH3 %016llx%s", sh_str_plural(f->documents, "document", documents),
             (long long)f->tokens, (unsigned long long)hash, kept);
    return SH_OK;
}

/* Count the learned tokens of a set; 0: one of its files does not say. */
static int64_t learned_of(const struct sh_data_files *files)
{
    int64_t sum = 0;

    for (int i = 0; i < files->n; i++) {
        if (!files->has[SH_DATA_MASK] || files->file[i].learned == 0)
            return 0;
        sum += files->file[i].learned;
    }
    return sum;
}

/* Files without a name may be text for which no template was needed. */
const char *sh_data_chat_template(const struct sh_data *d)
{
    const char *name = "";

    for (int i = 0; i < d->n_sets; i++)
        for (int k = 0; k < d->set[i].files.n; k++) {
            const char *one = d->set[i].files.file[k].chat_template;
            if (one[0] && name[0] && strcmp(one, name) != 0)
                return "";
            name = one[0] ? one : name;
        }
    return name;
}

/* The statistics are for all sets together. */
bool sh_data_rows(const struct sh_data *d, struct sh_data_rows *out)
{
    double used = 0;
    bool known = true;
    int64_t now;

    *out = (struct sh_data_rows){0};
    for (int i = 0; i < d->n_sets && d->set[i].packed; i++) {
        const struct sh_pack *p = &d->set[i].pack;
        out->rows += p->rows;
        out->documents += p->documents;
        out->left_out += p->left_out;
        out->cut += p->cut;
        out->kept = d->set[i].files.kept;
        used += (double)p->used;
        out->tokens += d->set[i].files.tokens;
        known &= (now = learned_of(&d->set[i].files)) > 0;
        out->learned += now;
    }
    out->learned = known ? out->learned : 0;
    out->full = out->rows ? used / ((double)out->rows * d->seq_len) : 0;
    return d->set[0].packed;
}

/* Whether targets may be -1. */
bool sh_data_masked(const struct sh_data *d)
{
    return d->masked;
}

/* Look at 16 windows spread over the set, which is enough to see whether the ids are bytes. The result is not
 * a bound. */
static sh_rc look_at(const struct sh_data *d, const struct set *set, int *id)
{
    enum { LOOKS = 16 };
    size_t T = (size_t)d->seq_len;
    int32_t *rows = sh_calloc(2 * T, sizeof *rows); /* tokens and targets */
    struct reader *r = open_reader(d);
    sh_rc rc = SH_OK;

    for (int64_t i = 0; i < LOOKS && rc == SH_OK; i++) {
        rc = read_window(d, set, r, (set->windows - 1) * i / (LOOKS - 1), rows, rows + T, NULL);
        for (size_t t = 0; t < 2 * T && rc == SH_OK; t++)
            *id = rows[t] > *id ? rows[t] : *id;
    }
    close_reader(r);
    free(rows);
    return rc;
}

sh_rc sh_data_largest(const struct sh_data *d, int *id)
{
    *id = 0;
    for (int i = 0; i < d->n_sets; i++)
        SH_TRY(look_at(d, &d->set[i], id));
    return SH_OK;
}

/* Targets of -1 do not count; the loss of the step is divided by the number of all others. */
static int64_t count_targets(const struct sh_data *d, int64_t n, const int32_t *targets)
{
    int64_t unmasked = 0, all = n * d->seq_len;

    for (int64_t i = 0; d->masked && i < all; i++)
        unmasked += targets[i] >= 0;
    return d->masked ? unmasked : all;
}

sh_rc sh_data_read(struct sh_data *d, int64_t first, int64_t n, int32_t *tokens, int32_t *targets, int32_t *docs,
                   int64_t *unmasked)
{
    SH_REQUIRE(first >= 0 && n >= 0);
    if (docs && d->document_separator < 0 && !d->set[0].packed)
        return sh_fail(SH_E_USAGE, "documents cannot be told apart without data.document_separator");
    if (!docs && d->set[0].packed)
        return sh_fail(SH_E_USAGE, "the sequences are rows of documents, and the program was made for a stream; set "
                                   "data.packing=bfd, or concat");
    /* Otherwise read here; an error that the other thread had comes up again. */
    if (!sh_data_ahead_take(d->ahead, first, n, tokens, targets, docs))
        SH_TRY(fill(d, first, n, tokens, targets, docs));
    *unmasked = count_targets(d, n, targets);
    return SH_OK;
}

/* Returns at once unless an earlier range is still being read. */
void sh_data_prefetch(struct sh_data *d, int64_t first, int64_t n, bool docs, int64_t count)
{
    sh_data_ahead_ask(d->ahead, first, n, docs, d->masked ? count : 0);
}
