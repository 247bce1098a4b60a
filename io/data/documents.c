/* Nothing in a document file is trusted: the header is checked against the length of the file, offsets against each
 * other and against the number of tokens each time they are read, and ids against the vocabulary (ids.c). */
#include "io/data/documents.h"

#include "io/data/beside.h"
#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A bound on sizes: sizes of 2^60 could not be multiplied by 8 and added without overflow. */
static const int64_t most = INT64_C(1) << 56;

struct section {
    const char *name;
    int64_t at, bytes;
};

/* Whether a name is made of letters, digits, points and hyphens, and has only zeros after it. */
static bool is_name(const char name[SH_DOCUMENT_TEMPLATE])
{
    size_t n = strnlen(name, SH_DOCUMENT_TEMPLATE);

    for (size_t i = 0; i < SH_DOCUMENT_TEMPLATE; i++)
        if (i < n ? !strchr("abcdefghijklmnopqrstuvwxyz0123456789.-", name[i]) : name[i])
            return false;
    return n < SH_DOCUMENT_TEMPLATE;
}

/* The zeros after the header's fields leave room for later versions; this version does not read them. */
static sh_rc check_fields(const char *path, const struct sh_document_header *h)
{
    const struct {
        bool wrong;
        const char *field;
        long long value;
    } checks[] = {
        {h->version != SH_DOCUMENT_VERSION, "version", h->version},
        {h->token_bytes != 2 && h->token_bytes != 4, "bytes of a token", h->token_bytes},
        {(h->flags & ~(SH_DOCUMENT_MASK | SH_DOCUMENT_PAIRS | SH_DOCUMENT_LABELS | SH_DOCUMENT_NUMBERS)) != 0, "flags",
         h->flags},
        {h->tokens < 0 || h->tokens > most, "number of tokens", (long long)h->tokens},
        {h->documents < 0 || h->documents > most, "number of documents", (long long)h->documents},
        {h->flags == SH_DOCUMENT_PAIRS, "flags (pairs without a mask)", h->flags},
        {(h->flags & SH_DOCUMENT_LABELS) && h->flags != (SH_DOCUMENT_LABELS | SH_DOCUMENT_MASK),
         "flags (labels of pairs, or without a mask)", h->flags},
        {(h->flags & SH_DOCUMENT_NUMBERS) && !(h->flags & SH_DOCUMENT_MASK), "flags (numbers without a mask)",
         h->flags},
        {(h->flags & SH_DOCUMENT_PAIRS) && h->documents % 2, "number of documents in pairs", (long long)h->documents},
        {h->vocab_size < 1, "vocabulary", h->vocab_size},
        {h->zero != 0, "field at byte 68", h->zero},
        {h->learned < 0 || h->learned > h->tokens, "number of learned tokens", (long long)h->learned},
        {(h->flags & SH_DOCUMENT_MASK) == 0 && h->mask_at != 0, "place of the mask", (long long)h->mask_at},
        {(h->flags & SH_DOCUMENT_NUMBERS) == 0 && h->numbers_at != 0, "place of the numbers", (long long)h->numbers_at},
        {h->width < 0 || h->width > SH_DOCUMENT_WIDTH || (h->width && !(h->flags & SH_DOCUMENT_NUMBERS)) ||
             (h->width && h->documents > most / h->width),
         "count of a document's numbers", (long long)h->width},
    };

    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        if (checks[i].wrong)
            return sh_fail(SH_E_DATA,
                           "%s: document file: its %s is %lld, which this version does not know; make it again", path,
                           checks[i].field, checks[i].value);
    if (!is_name(h->chat_template))
        return sh_fail(SH_E_DATA, "%s: document file: its chat template is not a name; make it again", path);
    return SH_OK;
}

/* Order sections by place; an empty section comes before one that begins at the same place. */
static int by_place(const void *a, const void *b)
{
    const struct section *x = a, *y = b;
    return x->at != y->at ? (x->at > y->at) - (x->at < y->at) : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Sections must follow each other without overlap, and the last must end at the end of the file, or a copy was cut
 * short. */
static sh_rc check_sections(const char *path, const struct sh_document_header *h, int64_t bytes)
{
    struct section s[] = {
        {"offsets", h->offsets_at, (h->documents + 1) * (int64_t)sizeof(int64_t)},
        {"tokens", h->tokens_at, h->tokens * h->token_bytes},
        {"mask", h->mask_at, (h->tokens + 7) / 8},
        {"numbers", h->numbers_at, h->documents * (h->width ? h->width : 1) * (int64_t)sizeof(double)},
    };
    int n = h->flags & SH_DOCUMENT_NUMBERS ? 4 : h->flags & SH_DOCUMENT_MASK ? 3 : 2; /* numbers have a mask */
    int64_t end = SH_TOKEN_HEADER_BYTES;

    qsort(s, (size_t)n, sizeof *s, by_place);
    for (int i = 0; i < n; i++) {
        if (s[i].at < end || s[i].at % SH_DOCUMENT_ALIGN || s[i].at > bytes || s[i].bytes > bytes - s[i].at)
            return sh_fail(
                SH_E_DATA,
                "%s: document file: its %s are %lld bytes at byte %lld, and the file has %lld; copy it again", path,
                s[i].name, (long long)s[i].bytes, (long long)s[i].at, (long long)bytes);
        end = s[i].at + s[i].bytes;
    }
    if (end != bytes)
        return sh_fail(SH_E_DATA, "%s: document file: its header says %lld bytes, and it has %lld; copy it again", path,
                       (long long)end, (long long)bytes);
    return SH_OK;
}

/* A tokenizer hash of 0, in the file or for the model, means not known; the sizes of the vocabularies are always
 * compared. */
sh_rc sh_documents_take(struct sh_data_file *f, const char *path, const struct sh_document_header *h, int64_t bytes,
                        int vocab_size, uint64_t tokenizer)
{
    SH_TRY(check_fields(path, h));
    SH_TRY(check_sections(path, h, bytes));
    if (h->tokenizer && tokenizer && h->tokenizer != tokenizer)
        return sh_fail(
            SH_E_DATA,
            "%s was made with another tokenizer.json (hash %016llx) than the model's (%016llx); tokenize the "
            "text again with the model's",
            path, (unsigned long long)h->tokenizer, (unsigned long long)tokenizer);
    if (h->vocab_size > vocab_size)
        return sh_fail(
            SH_E_DATA,
            "%s was made with a tokenizer of %d words, but model.vocab_size is %d; tokenize with the model's own", path,
            h->vocab_size, vocab_size);
    f->token_bytes = h->token_bytes;
    f->offset = h->tokens_at;
    f->tokens = h->tokens;
    f->has_documents = true;
    f->pairs = h->flags & SH_DOCUMENT_PAIRS;
    f->labels = h->flags & SH_DOCUMENT_LABELS;
    f->documents = h->documents;
    f->numbers_at = h->flags & SH_DOCUMENT_NUMBERS ? h->numbers_at : 0;
    f->width = h->width ? (int)h->width : 1;
    f->offsets_at = h->offsets_at;
    f->mask_at = h->mask_at;
    f->tokenizer = h->tokenizer;
    f->vocab_size = h->vocab_size;
    f->learned = h->flags & SH_DOCUMENT_MASK ? h->learned : 0;
    memcpy(f->chat_template, h->chat_template, sizeof f->chat_template);
    return SH_OK;
}

/* Read the offsets of documents [first, first + n] of one file. */
static sh_rc read_offsets(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int64_t n,
                          int64_t *offsets)
{
    SH_TRY(sh_handles_read(set->handles, f->handle, offsets, (n + 1) * 8, f->offsets_at + first * 8));
    for (int64_t i = 0; i <= n; i++) {
        int64_t least = i ? offsets[i - 1] : 0, d = first + i;
        bool wrong = offsets[i] < least || offsets[i] > f->tokens || (d == 0 && offsets[i] != 0) ||
                     (d == f->documents && offsets[i] != f->tokens);
        if (wrong)
            return sh_fail(SH_E_DATA,
                           "%s: offset %lld is %lld, which does not fit the one before it and its %lld tokens; "
                           "make it again",
                           sh_handles_path(set->handles, f->handle), (long long)d, (long long)offsets[i],
                           (long long)f->tokens);
    }
    return SH_OK;
}

/* Find the file that a document of the set is in: the last file that has documents and begins at or before it. */
static const struct sh_data_file *file_of(const struct sh_data_files *set, int64_t document)
{
    int low = 0, high = set->n;

    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        if (set->file[mid].first_document <= document)
            low = mid;
        else
            high = mid;
    }
    return &set->file[low];
}

/* The range may span several files; read one file after the other. */
sh_rc sh_documents_lengths(const struct sh_data_files *set, int64_t first, int64_t n, int64_t *tokens)
{
    int64_t *offsets;
    sh_rc rc = SH_OK;

    SH_REQUIRE(first >= 0 && n >= 0 && n <= set->documents - first);
    offsets = sh_calloc((size_t)n + 1, sizeof *offsets);
    while (n > 0 && rc == SH_OK) {
        const struct sh_data_file *f = file_of(set, first);
        int64_t at = first - f->first_document, some = f->documents - at < n ? f->documents - at : n;
        rc = read_offsets(set, f, at, some, offsets);
        for (int64_t i = 0; i < some && rc == SH_OK; i++)
            tokens[i] = offsets[i + 1] - offsets[i];
        first += some;
        tokens += some;
        n -= some;
    }
    free(offsets);
    return rc;
}

/* Find where a piece begins in its file, in tokens. */
static sh_rc find_piece(const struct sh_data_files *set, const struct sh_piece *piece, const struct sh_data_file **f,
                        int64_t *at)
{
    int64_t offsets[2];

    *f = file_of(set, piece->document);
    SH_TRY(read_offsets(set, *f, piece->document - (*f)->first_document, 1, offsets));
    *at = offsets[0] + piece->begin;
    if (offsets[1] - *at <= piece->places)
        return sh_fail(SH_E_DATA, "%s: document %lld has become shorter since the run began",
                       sh_handles_path(set->handles, (*f)->handle), (long long)piece->document);
    return SH_OK;
}

/* Reads one more token than the piece has places: the target of the last place. */
sh_rc sh_documents_ids(const struct sh_data_files *set, const struct sh_piece *piece, int32_t *ids)
{
    const struct sh_data_file *f;
    int64_t at;

    SH_TRY(find_piece(set, piece, &f, &at));
    return sh_data_files_ids(set, f, at, piece->places + 1, ids);
}

/* A token's bit says whether it counts as a target, so the bit of the piece's first token is skipped. */
sh_rc sh_documents_mask(const struct sh_data_files *set, const struct sh_piece *piece, unsigned char *mask)
{
    const struct sh_data_file *f;
    int64_t at;

    SH_TRY(find_piece(set, piece, &f, &at));
    return sh_documents_bits(set, f, at + 1, piece->places, mask);
}

sh_rc sh_documents_weights(const struct sh_data_files *set, const struct sh_piece *piece, float *weight)
{
    const struct sh_data_file *f;
    int64_t at;

    SH_TRY(find_piece(set, piece, &f, &at));
    return sh_data_weight_read(set, f, at + 1, piece->places, weight);
}

sh_rc sh_documents_label(const struct sh_data_files *set, int64_t document, int32_t *label)
{
    const struct sh_piece first = {.document = document};
    const struct sh_data_file *f;
    unsigned char bit = 0;
    int64_t at;

    SH_TRY(find_piece(set, &first, &f, &at));
    SH_TRY(sh_documents_bits(set, f, at, 1, &bit));
    *label = bit;
    return SH_OK;
}

sh_rc sh_documents_numbers(const struct sh_data_files *set, int64_t document, double *numbers)
{
    const struct sh_data_file *f = file_of(set, document);
    int64_t bytes = f->width * (int64_t)sizeof *numbers;

    SH_TRY(sh_handles_read(set->handles, f->handle, numbers, bytes,
                           f->numbers_at + (document - f->first_document) * bytes));
    for (int i = 0; i < f->width; i++)
        if (!isfinite(numbers[i]))
            return sh_fail(SH_E_DATA, "%s: a number of document %lld is not finite; make it again",
                           sh_handles_path(set->handles, f->handle), (long long)document);
    return SH_OK;
}

/* Reads in steps, so a long piece needs no extra memory. */
sh_rc sh_documents_bits(const struct sh_data_files *set, const struct sh_data_file *f, int64_t first, int n,
                        unsigned char *mask)
{
    unsigned char bytes[1024];

    while (n > 0) {
        int64_t byte = first / 8;
        int skip = (int)(first % 8), room = (int)sizeof bytes * 8 - skip, some = n < room ? n : room;
        SH_TRY(sh_handles_read(set->handles, f->handle, bytes, (skip + some + 7) / 8, f->mask_at + byte));
        for (int i = 0; i < some; i++)
            mask[i] = bytes[(skip + i) / 8] >> (skip + i) % 8 & 1;
        first += some;
        mask += some;
        n -= some;
    }
    return SH_OK;
}

/* The document that gives the prompt, and the one that gives the completion; how many tokens each has, and of these in
 * front of the completion. */
struct halves {
    int64_t document[2], tokens[2], prompt[2];
};

static sh_rc find_prompt(const struct sh_data_files *set, int64_t document, int64_t tokens, int64_t *prompt)
{
    struct sh_piece all = {.document = document, .places = tokens > 1 ? (int)(tokens - 1) : 0};
    unsigned char *mask = sh_calloc((size_t)all.places + 1, 1), *first = NULL;
    sh_rc rc = all.places ? sh_documents_mask(set, &all, mask) : SH_OK;

    if (rc == SH_OK)
        first = memchr(mask, 1, (size_t)all.places);
    if (rc == SH_OK && !first)
        rc = sh_fail(SH_E_DATA, "answer %lld has no target that counts; tokenize the text again", (long long)document);
    *prompt = first ? first - mask + 1 : 0;
    free(mask);
    return rc;
}

static sh_rc find_halves(const struct sh_data_files *set, int64_t i, struct halves *h)
{
    h->document[0] = i;
    h->document[1] = (i + set->documents / 2) % set->documents;
    if (set->documents < 2)
        return sh_fail(SH_E_DATA, "%s has a single answer, and objective.loss_type=kto compares it with others",
                       sh_handles_path(set->handles, set->file[0].handle));
    for (int k = 0; k < 2; k++) {
        SH_TRY(sh_documents_lengths(set, h->document[k], 1, &h->tokens[k]));
        SH_TRY(find_prompt(set, h->document[k], h->tokens[k], &h->prompt[k]));
    }
    return SH_OK;
}

static int64_t tokens_of(const struct halves *h)
{
    return h->prompt[0] + h->tokens[1] - h->prompt[1];
}

sh_rc sh_mismatch_tokens(const struct sh_data_files *set, int64_t i, int64_t *tokens)
{
    struct halves h;

    SH_TRY(find_halves(set, i, &h));
    *tokens = tokens_of(&h);
    return SH_OK;
}

/* A piece has one more token than places. The file may change during the run, but a part of the completion is kept. */
static sh_rc cut(const struct sh_data_files *set, const struct sh_piece *piece, struct halves *h,
                 struct sh_piece half[2])
{
    int64_t tokens;

    SH_TRY(find_halves(set, piece->document - set->documents, h));
    tokens = sh_data_files_kept(set, tokens_of(h));
    if (tokens != piece->places + 1 || tokens <= h->prompt[0])
        return sh_fail(SH_E_DATA,
                       "answer %lld has another length than when the run began; start again to use the new file",
                       (long long)h->document[1]);
    half[0] = (struct sh_piece){.document = h->document[0], .places = (int)h->prompt[0] - 1};
    half[1] = (struct sh_piece){
        .document = h->document[1], .begin = h->prompt[1], .places = (int)(tokens - h->prompt[0]) - 1};
    return SH_OK;
}

sh_rc sh_mismatch_ids(const struct sh_data_files *set, const struct sh_piece *piece, int32_t *ids)
{
    struct sh_piece half[2];
    struct halves h;

    SH_TRY(cut(set, piece, &h, half));
    SH_TRY(sh_documents_ids(set, &half[0], ids));
    return sh_documents_ids(set, &half[1], ids + h.prompt[0]);
}

/* Of the prompt nothing counts; the first token of the completion does. */
sh_rc sh_mismatch_mask(const struct sh_data_files *set, const struct sh_piece *piece, unsigned char *mask)
{
    struct sh_piece half[2];
    struct halves h;

    SH_TRY(cut(set, piece, &h, half));
    memset(mask, 0, (size_t)piece->places);
    mask[h.prompt[0] - 1] = 1;
    return half[1].places ? sh_documents_mask(set, &half[1], mask + h.prompt[0]) : SH_OK;
}
