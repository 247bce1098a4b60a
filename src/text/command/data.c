/* `sherd data`: shows what is in document files: how long documents are, how full sequences get, and the text of some;
 * for a stream of tokens, the text of its sequences. */
#include "src/cmd/cmd.h"

#include "io/data/documents.h"
#include "io/data/files.h"
#include "io/data/pack.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/text/command/show.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct look {
    struct sh_data_options opt;
    struct sh_data_files set;
    struct sh_tokenizer *tokenizer; /* NULL: ids are shown */
    int64_t first, count;           /* documents to show, or sequences */
    bool excess;                    /* --excess is given */
};

static sh_rc lengths(const void *set, int64_t first, int64_t n, int64_t *tokens)
{
    return sh_documents_lengths(set, first, n, tokens);
}

/* For qsort(). */
static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The words are those of the keys. */
static sh_rc take_packing(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct look *l)
{
    static const char *const words[] = {"raise", "truncate", "drop", "split"};
    const char *excess = sh_cmd_option(cmd, args, "--excess");
    int64_t seq_len;

    SH_TRY(sh_cmd_whole(cmd, args, "--seq-len", 1, 1 << 24, 2048, &seq_len));
    l->opt.seq_len = (int)seq_len;
    l->excess = excess != NULL;
    l->opt.excess = SH_EXCESS_SPLIT;
    for (int i = SH_EXCESS_RAISE; excess && i <= SH_EXCESS_SPLIT; i++)
        if (!strcmp(excess, words[i])) {
            l->opt.excess = (enum sh_cfg_excess)i;
            return SH_OK;
        }
    return excess
               ? sh_fail(SH_E_USAGE, "sherd data: --excess must be raise, truncate, drop or split, not \"%s\"", excess)
               : SH_OK;
}

/* A file without a header does not say how many bytes a token has; the vocabulary of the tokenizer does. */
static sh_rc take_token_type(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct look *l)
{
    const char *type = sh_cmd_option(cmd, args, "--token-type");

    if (l->tokenizer)
        l->opt.vocab_size = l->tokenizer->vocab_size;
    if (!type)
        return SH_OK;
    if (strcmp(type, "uint16") != 0 && strcmp(type, "uint32") != 0)
        return sh_fail(SH_E_USAGE, "sherd data: --token-type must be uint16 or uint32, not \"%s\"", type);
    l->opt.type = strcmp(type, "uint16") == 0 ? SH_TOKEN_UINT16 : SH_TOKEN_UINT32;
    return SH_OK;
}

/* The tokenizer must be that of the file; otherwise the text would be wrong. */
static sh_rc take_options(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct look *l)
{
    const char *tokenizer = sh_cmd_option(cmd, args, "--tokenizer");

    if (args->n_positional != 1)
        return sh_fail(SH_E_USAGE, "sherd data: give one file, or a pattern in quotes");
    l->opt = (struct sh_data_options){.path = args->positional[0], .vocab_size = INT_MAX, .document_separator = -1};
    SH_TRY(take_packing(cmd, args, l));
    SH_TRY(sh_cmd_whole(cmd, args, "--first", 0, INT64_MAX, 0, &l->first));
    SH_TRY(sh_cmd_whole(cmd, args, "--documents", 0, INT64_MAX, 1, &l->count));
    if (tokenizer) {
        SH_TRY(sh_tokenizer_open(tokenizer, &l->tokenizer));
        l->opt.tokenizer = l->tokenizer->hash;
    }
    return take_token_type(cmd, args, l);
}

static const char *weights_of(const struct look *l)
{
    return l->set.has[SH_DATA_WEIGHT] ? ", which weigh what files beside them say" : "";
}

/* Counts for all files of the pattern together; the tokenizer is that of the first file. */
static void print_files(const struct look *l)
{
    const struct sh_data_file *f = &l->set.file[0];
    char files[SH_STR_SHORT], text[SH_STR_SHORT];

    printf("%s, %s, %lld tokens%s%s\n", sh_str_plural(l->set.n, "file", files),
           sh_str_plural(l->set.documents, "document", text), (long long)l->set.tokens,
           l->set.has[SH_DATA_MASK] ? ", with a mask of targets" : ", all of them targets", weights_of(l));
    printf("tokenizer: %d words", f->vocab_size);
    if (f->tokenizer)
        printf(", tokenizer.json with hash %016llx", (unsigned long long)f->tokenizer);
    putchar('\n');
}

/* Percentiles rather than a mean: lengths of documents have long tails. */
static sh_rc print_lengths(const struct look *l)
{
    int64_t n = l->set.documents, *tokens = sh_calloc((size_t)n + 1, sizeof *tokens);
    sh_rc rc;

    SH_TRY_OUT(sh_documents_lengths(&l->set, 0, n, tokens));
    qsort(tokens, (size_t)n, sizeof *tokens, ascending);
    if (n)
        printf("lengths: %lld to %lld tokens, half of the documents up to %lld, nine in ten up to %lld\n",
               (long long)tokens[0], (long long)tokens[n - 1], (long long)tokens[(n - 1) / 2],
               (long long)tokens[(n - 1) * 9 / 10]);
    rc = SH_OK;
out:
    free(tokens);
    return rc;
}

/* One line for each way of packing. */
static sh_rc print_fill(const struct look *l, enum sh_cfg_packing packing, const char *name)
{
    char rows[SH_STR_SHORT];
    struct sh_pack p;

    SH_TRY(sh_pack_build(l->opt.path, l->opt.seq_len, packing, l->opt.excess, l->set.documents, lengths, &l->set, &p));
    printf("data.packing=%s: %s of %d, %.4f full", name, sh_str_plural(p.rows, "sequence", rows), l->opt.seq_len,
           (double)p.used / ((double)p.rows * l->opt.seq_len));
    if (p.cut)
        printf("; %lld documents do not fit into one", (long long)p.cut);
    if (p.left_out)
        printf("; %lld are left out", (long long)p.left_out);
    putchar('\n');
    sh_pack_free(&p);
    return SH_OK;
}

/* The whole document, even if it is longer than a sequence. */
static sh_rc print_document(const struct look *l, int64_t d)
{
    struct sh_piece piece = {.document = d};
    unsigned char *mask = NULL;
    int32_t *ids = NULL;
    int64_t n;
    sh_rc rc;

    SH_TRY(sh_documents_lengths(&l->set, d, 1, &n));
    printf("\ndocument %lld, %lld tokens:\n", (long long)d, (long long)n);
    if (n == 0)
        return SH_OK;
    if (n > INT_MAX)
        return sh_fail(SH_E_DATA, "document %lld has %lld tokens, which is too many to show", (long long)d,
                       (long long)n);
    piece.places = (int)n - 1;
    ids = sh_calloc((size_t)n, sizeof *ids);
    mask = sh_calloc((size_t)n, 1);
    SH_TRY_OUT(sh_documents_ids(&l->set, &piece, ids));
    /* The first token is never a target. */
    if (l->set.has[SH_DATA_MASK])
        SH_TRY_OUT(sh_documents_mask(&l->set, &piece, mask + 1));
    rc = sh_show_document(stdout, l->tokenizer, (const uint32_t *)ids, l->set.has[SH_DATA_MASK] ? mask : NULL,
                          (size_t)n);
out:
    free(ids);
    free(mask);
    return rc;
}

/* One training sample: the tokens of a sequence, and the target of the last one. */
static sh_rc print_sequence(const struct look *l, int64_t w)
{
    size_t n = (size_t)l->opt.seq_len + 1;
    int32_t *ids = sh_calloc(n, sizeof *ids);
    unsigned char *mask = sh_calloc(n, 1);
    sh_rc rc;

    SH_TRY_OUT(sh_data_files_window(&l->set, w, ids));
    if (l->set.has[SH_DATA_MASK])
        SH_TRY_OUT(sh_data_files_mask(&l->set, w, mask + 1));
    printf("\nsequence %lld, %zu tokens:\n", (long long)w, n);
    rc = sh_show_document(stdout, l->tokenizer, (const uint32_t *)ids, l->set.has[SH_DATA_MASK] ? mask : NULL, n);
out:
    free(ids);
    free(mask);
    return rc;
}

/* Options for documents are refused, since they would have no effect here. */
static sh_rc look_at_stream(const struct look *l)
{
    if (l->excess)
        return sh_fail(SH_E_USAGE, "sherd data: --excess is for documents, but %s has none; leave it out", l->opt.path);
    if (l->first && l->first >= l->set.windows)
        return sh_fail(SH_E_USAGE, "sherd data: --first %lld, but %s has %lld sequences, counted from 0",
                       (long long)l->first, l->opt.path, (long long)l->set.windows);
    printf("%lld tokens, no documents%s%s: %lld sequences of %d\n", (long long)l->set.tokens,
           l->set.has[SH_DATA_MASK] ? ", with a mask of targets" : "", weights_of(l), (long long)l->set.windows,
           l->opt.seq_len);
    for (int64_t i = 0; i < l->count && i < l->set.windows - l->first; i++)
        SH_TRY(print_sequence(l, l->first + i));
    return SH_OK;
}

/* Both ways of packing side by side, so that the choice need not be tried in a run. */
static sh_rc look(struct look *l)
{
    SH_TRY(sh_data_files_open(&l->opt, &l->set));
    if (l->set.packing == SH_PACKING_CONCAT)
        return look_at_stream(l);
    if (l->first && l->first >= l->set.documents)
        return sh_fail(SH_E_USAGE, "sherd data: --first %lld, but %s has %lld documents, counted from 0",
                       (long long)l->first, l->opt.path, (long long)l->set.documents);
    print_files(l);
    SH_TRY(print_lengths(l));
    SH_TRY(print_fill(l, SH_PACKING_BFD, "bfd"));
    SH_TRY(print_fill(l, SH_PACKING_NONE, "none"));
    for (int64_t i = 0; i < l->count && i < l->set.documents - l->first; i++)
        SH_TRY(print_document(l, l->first + i));
    return SH_OK;
}

/* Shows the first document of a file that was just written: a look at it is worth more than a count. */
sh_rc sh_cmd_data_first(const char *path, const char *tokenizer)
{
    struct look l = {.opt = {.path = path, .seq_len = 1, .vocab_size = INT_MAX, .document_separator = -1}};
    sh_rc rc;

    SH_TRY_OUT(sh_tokenizer_open(tokenizer, &l.tokenizer));
    SH_TRY_OUT(sh_data_files_open(&l.opt, &l.set));
    rc = print_document(&l, 0);
out:
    sh_data_files_close(&l.set);
    sh_tokenizer_close(l.tokenizer);
    return rc;
}

/* One process; looking at a file needs no configuration. */
sh_rc sh_cmd_data(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct look l = {0};
    sh_rc rc = take_options(cmd, args, &l);

    if (rc == SH_OK)
        rc = look(&l);
    if (rc == SH_OK && !l.tokenizer && l.count)
        sh_log_info(
            "ids are shown; --tokenizer shows the text: byte for bytes, else the folder of their tokenizer.json");
    sh_data_files_close(&l.set);
    sh_tokenizer_close(l.tokenizer);
    return rc;
}
