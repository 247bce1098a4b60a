/* Rows of documents. A row of seq_len places has pieces of documents one after the other, then empty places:
 *
 *     tokens    d0 d0 d0 | d1 d1 d1 d1 | 0  0
 *     docs       0  0  0 |  3  3  3  3 | 7  8     where the piece of a place begins: attention does not cross it
 *     targets   the next token, or -1: none */
#include "io/data/rows.h"

#include "io/data/documents.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

static bool are_pairs(enum sh_data_answers answers)
{
    return answers == SH_DATA_PAIRS || answers == SH_DATA_SCORED;
}

/* The context of the functions that tell packing how many tokens it has to place. */
struct measure {
    const struct sh_data_files *set;
    int64_t *cut; /* counts documents, or pairs, of which an answer is too long */
};

static bool too_long(const struct sh_data_files *set, int64_t tokens)
{
    return set->kept && tokens > set->kept;
}

/* The beginning of an answer that is too long; no tokens if nothing would be learned of them. */
static sh_rc keep_beginning(const struct sh_data_files *set, int64_t document, int64_t *tokens)
{
    struct sh_piece piece = {.document = document, .places = (int)set->kept - 1};
    unsigned char *mask;
    sh_rc rc;

    if (!too_long(set, *tokens))
        return SH_OK;
    mask = sh_calloc((size_t)set->kept, 1);
    rc = sh_documents_mask(set, &piece, mask);
    *tokens = rc == SH_OK && memchr(mask, 1, (size_t)piece.places) ? set->kept : 0;
    free(mask);
    return rc;
}

static sh_rc lengths(const void *ctx, int64_t first, int64_t n, int64_t *tokens)
{
    const struct measure *m = ctx;

    SH_TRY(sh_documents_lengths(m->set, first, n, tokens));
    for (int64_t i = 0; i < n; i++) {
        *m->cut += too_long(m->set, tokens[i]);
        SH_TRY(keep_beginning(m->set, first + i, &tokens[i]));
    }
    return SH_OK;
}

/* With n places for a document of n + 1 tokens, a pair of n and m places is one of n + m + 1 tokens. */
static sh_rc pair_lengths(const void *ctx, int64_t first, int64_t n, int64_t *tokens)
{
    const struct measure *m = ctx;
    int64_t *each = sh_calloc((size_t)(2 * n), sizeof *each);
    sh_rc rc = sh_documents_lengths(m->set, 2 * first, 2 * n, each);

    for (int64_t i = 0; i < n && rc == SH_OK; i++) {
        int64_t *two = each + 2 * i;

        if (two[0] < 2 || two[1] < 2)
            rc = sh_fail(SH_E_DATA, "pair %lld has an answer of fewer than two tokens; tokenize the text again",
                         (long long)(first + i));
        *m->cut += too_long(m->set, two[0]) || too_long(m->set, two[1]);
        for (int k = 0; k < 2 && rc == SH_OK; k++)
            rc = keep_beginning(m->set, 2 * (first + i) + k, &two[k]);
        tokens[i] = two[0] && two[1] ? two[0] + two[1] - 1 : 0;
    }
    free(each);
    return rc;
}

/* An answer and the mismatched one beside it, in the same way. Both have the same prompt, so neither or both are left out. */
static sh_rc mismatched_lengths(const void *ctx, int64_t first, int64_t n, int64_t *tokens)
{
    const struct measure *m = ctx;
    const struct sh_data_files *set = m->set;

    SH_TRY(sh_documents_lengths(set, first, n, tokens));
    for (int64_t i = 0; i < n; i++) {
        int64_t more;

        SH_TRY(sh_mismatch_tokens(set, first + i, &more));
        *m->cut += too_long(set, tokens[i]) || too_long(set, more);
        SH_TRY(keep_beginning(set, first + i, &tokens[i]));
        tokens[i] = tokens[i] ? tokens[i] + sh_data_files_kept(set, more) - 1 : 0;
    }
    return SH_OK;
}

/* What a file's documents are, the objective that learns from them, and the format that makes them. */
static const struct {
    const char *are, *learns, *format;
} kinds[] = {
    [SH_DATA_NO_ANSWERS] = {"no pairs of answers, labels or numbers", "objective.name=lm", NULL},
    [SH_DATA_PAIRS] = {"pairs of answers, of which one is to be avoided", "objective.name=dpo", "preference"},
    [SH_DATA_LABELLED] = {"answers with labels, not pairs, of which some are to be avoided",
                          "objective.name=dpo with objective.loss_type=kto or apo_zero_unpaired", "unpaired"},
    [SH_DATA_SCORED] = {"pairs of answers to be scored", "objective.name=reward", "reward"},
    [SH_DATA_NUMBERED] = {"texts with numbers", "objective.name=regression", "regression"},
    [SH_DATA_MULTI_LABEL] = {"texts with several labels each", "objective.name=multi_label", "multi_label"},
};

static enum sh_data_answers kind_of(const struct sh_data_file *f)
{
    if (f->numbers_at && f->width > 1)
        return SH_DATA_MULTI_LABEL;
    if (f->numbers_at)
        return f->pairs ? SH_DATA_SCORED : SH_DATA_NUMBERED;
    return f->pairs ? SH_DATA_PAIRS : f->labels ? SH_DATA_LABELLED : SH_DATA_NO_ANSWERS;
}

static sh_rc check_kind(const struct sh_data_files *set, enum sh_data_answers wanted, int labels)
{
    for (int i = 0; i < set->n; i++) {
        const char *path = sh_handles_path(set->handles, set->file[i].handle);
        enum sh_data_answers kind = kind_of(&set->file[i]);

        wanted = wanted == SH_DATA_MISMATCHED ? SH_DATA_LABELLED : wanted;
        if (kind != wanted && kinds[wanted].format)
            return sh_fail(SH_E_DATA, "%s has %s; %s learns from files of `sherd tokenize --format %s`%s%s", path,
                           kinds[kind].are, kinds[wanted].learns, kinds[wanted].format,
                           kinds[kind].format ? "; these are for " : "", kinds[kind].format ? kinds[kind].learns : "");
        if (kind == SH_DATA_MULTI_LABEL && set->file[i].width != labels)
            return sh_fail(SH_E_DATA, "%s has texts with numbers for %d labels, but model.num_labels is %d", path,
                           set->file[i].width, labels);
        if (kind != wanted)
            return sh_fail(SH_E_DATA, "%s has %s; give %s, or make a document file of the texts to learn", path,
                           kinds[kind].are, kinds[kind].learns);
    }
    return SH_OK;
}

sh_rc sh_data_rows_check(const struct sh_data_files *set, const struct sh_data_options *opt)
{
    SH_TRY(check_kind(set, opt->answers, opt->labels));
    if (opt->answers && set->packing == SH_PACKING_CONCAT)
        return sh_fail(SH_E_USAGE, "data.packing=concat: answers stay in their rows; give bfd or none");
    if (opt->answers && !set->has[SH_DATA_MASK])
        return sh_fail(SH_E_USAGE, "data.target_mask=off: the mask says where the answers begin; leave it out");
    if (opt->answers && opt->excess == SH_EXCESS_SPLIT)
        return sh_fail(SH_E_USAGE, "data.excess_length_strategy=split would part answers from their prompts; give "
                                   "truncate or drop, or longer sequences");
    return SH_OK;
}

sh_rc sh_data_rows_pack(const struct sh_data_files *set, const struct sh_data_options *opt, struct sh_pack *out)
{
    bool pairs = are_pairs(opt->answers);
    sh_pack_tokens tokens = pairs ? pair_lengths : set->mismatched ? mismatched_lengths : lengths;
    int64_t cut = 0;
    struct measure m = {set, &cut};

    SH_TRY(sh_data_rows_check(set, opt));
    sh_rc rc = sh_pack_build(opt->path, set->seq_len, set->packing, opt->excess, set->documents / (pairs ? 2 : 1),
                             tokens, &m, out);

    out->cut += cut;
    return rc == SH_OK || !pairs ? rc : sh_fail_prefix(rc, "pairs of answers, which count as one document each: ");
}

/* Iterates over the pieces of a row. */
struct walk {
    const struct sh_data_files *set;
    const struct sh_pack *pack;
    int64_t row;
    int32_t next;  /* document, or pair; -1: no more */
    int64_t other; /* the rejected answer of the newest pair, or the mismatched one, if it comes next; -1 */
    int at;        /* places so far */
};

/* Rows below `whole` are one piece of a document each, which fills the row; the others are lists through pack->next. */
static struct walk walk_row(const struct sh_data_files *set, const struct sh_pack *pack, int64_t row)
{
    return (struct walk){.set = set,
                         .pack = pack,
                         .row = row,
                         .other = -1,
                         .next = row < pack->whole ? 0 : pack->first[row - pack->whole]};
}

static bool has_pairs(const struct sh_data_files *set)
{
    return set->file[0].pairs;
}

/* The next document of a row that is not whole. */
static int64_t next_document(struct walk *w)
{
    int64_t document = has_pairs(w->set) ? 2 * (int64_t)w->next : w->next;

    if (w->other >= 0) {
        document = w->other;
        w->other = -1;
        return document;
    }
    w->next = w->pack->next ? w->pack->next[w->next] : -1;
    w->other = has_pairs(w->set) ? document + 1 : w->set->mismatched ? w->set->documents + document : -1;
    return document;
}

/* *piece with 0 places means that there are no more. A row never gets longer than seq_len, even if the file changes
 * during the run. */
static sh_rc next_piece(struct walk *w, struct sh_piece *piece)
{
    int64_t tokens;

    *piece = (struct sh_piece){0};
    if (w->next < 0 && w->other < 0)
        return SH_OK;
    if (w->row < w->pack->whole) {
        *piece = sh_pack_whole(w->pack, w->row);
        w->next = -1;
    } else {
        int64_t document = next_document(w);

        if (document < w->set->documents)
            SH_TRY(sh_documents_lengths(w->set, document, 1, &tokens));
        else
            SH_TRY(sh_mismatch_tokens(w->set, document - w->set->documents, &tokens));
        *piece = sh_pack_piece(w->pack, document, sh_data_files_kept(w->set, tokens));
    }
    if (piece->places == 0 || piece->places > w->pack->seq_len - w->at)
        return sh_fail(SH_E_DATA,
                       "document %lld has another length than when the run began; start again to use the new file",
                       (long long)piece->document);
    w->at += piece->places;
    return SH_OK;
}

/* Fill empty places: any token, no target. Each is its own document, so attention there costs nothing. */
static void clear_rest(int at, int n, int32_t *tokens, int32_t *targets, int32_t *docs)
{
    for (int t = at; t < n; t++) {
        tokens[t] = 0;
        targets[t] = -1;
        docs[t] = t;
    }
}

static sh_rc mask_of(const struct sh_data_files *set, const struct sh_piece *piece, unsigned char *mask)
{
    return (piece->document >= set->documents ? sh_mismatch_mask : sh_documents_mask)(set, piece, mask);
}

/* Put a piece into a row; ids [places + 1] and mask [places] are scratch. */
static sh_rc put_piece(const struct sh_data_files *set, const struct sh_piece *piece, int at, int32_t *ids,
                       unsigned char *mask, int32_t *tokens, int32_t *targets, int32_t *docs)
{
    if (piece->document >= set->documents)
        SH_TRY(sh_mismatch_ids(set, piece, ids));
    else
        SH_TRY(sh_documents_ids(set, piece, ids));
    if (set->has[SH_DATA_MASK])
        SH_TRY(mask_of(set, piece, mask));
    for (int t = 0; t < piece->places; t++) {
        tokens[at + t] = ids[t];
        targets[at + t] = set->has[SH_DATA_MASK] && !mask[t] ? -1 : ids[t + 1];
        docs[at + t] = at;
    }
    return SH_OK;
}

/* The scratch has the size of a full row, because the longest piece is one. */
sh_rc sh_data_rows_read(const struct sh_data_files *set, const struct sh_pack *pack, int64_t w, int32_t *tokens,
                        int32_t *targets, int32_t *docs)
{
    int32_t *ids = sh_calloc((size_t)set->seq_len + 1, sizeof *ids);
    unsigned char *mask = sh_calloc((size_t)set->seq_len, 1);
    struct walk walk = walk_row(set, pack, w);
    struct sh_piece piece;
    sh_rc rc;

    do {
        int at = walk.at;
        SH_TRY_OUT(next_piece(&walk, &piece));
        if (piece.places)
            SH_TRY_OUT(put_piece(set, &piece, at, ids, mask, tokens, targets, docs));
    } while (piece.places);
    clear_rest(walk.at, set->seq_len, tokens, targets, docs);
    rc = SH_OK;
out:
    free(ids);
    free(mask);
    return rc;
}

int64_t sh_data_rows_answers(const struct sh_pack *pack, int64_t w)
{
    int64_t n = 0;

    for (int32_t i = pack->first[w]; i >= 0; i = pack->next ? pack->next[i] : -1)
        n++;
    return n;
}

sh_rc sh_data_rows_beginnings(const struct sh_data_files *set, const struct sh_pack *pack, int64_t w, int64_t *document)
{
    struct walk walk = walk_row(set, pack, w);
    struct sh_piece piece;

    for (int t = 0; t < set->seq_len; t++)
        document[t] = -1;
    do {
        int at = walk.at;
        SH_TRY(next_piece(&walk, &piece));
        if (piece.places)
            document[at] = piece.document;
    } while (piece.places);
    return SH_OK;
}

/* A loss that divides by the targets of an answer needs at least one. */
static sh_rc check_answer(const struct sh_data_files *set, const struct sh_piece *piece, const unsigned char *mask)
{
    long long document = piece->document;

    for (int t = 0; t < piece->places; t++)
        if (mask[t])
            return SH_OK;
    if (has_pairs(set) && piece->places)
        return sh_fail(SH_E_DATA, "the %s answer of pair %lld has no target that counts; tokenize the text again",
                       document % 2 ? "rejected" : "chosen", document / 2);
    return (set->file[0].labels || set->file[0].numbers_at) && piece->places
               ? sh_fail(SH_E_DATA, "answer %lld has no target that counts; tokenize the text again", document)
               : SH_OK;
}

/* Tokens are not read, only lengths and masks. */
sh_rc sh_data_rows_count(const struct sh_data_files *set, const struct sh_pack *pack, int64_t w, int64_t *unmasked)
{
    unsigned char *mask = sh_calloc((size_t)set->seq_len, 1);
    struct walk walk = walk_row(set, pack, w);
    struct sh_piece piece;
    sh_rc rc;

    *unmasked = 0;
    do {
        SH_TRY_OUT(next_piece(&walk, &piece));
        if (set->has[SH_DATA_MASK] && piece.places)
            SH_TRY_OUT(mask_of(set, &piece, mask));
        SH_TRY_OUT(check_answer(set, &piece, mask));
        for (int t = 0; t < piece.places; t++)
            *unmasked += !set->has[SH_DATA_MASK] || mask[t];
    } while (piece.places);
    rc = SH_OK;
out:
    free(mask);
    return rc;
}

static sh_rc weights_of(const struct sh_data_files *set, const struct sh_piece *piece, unsigned char *mask,
                        float *weight)
{
    SH_TRY(sh_documents_weights(set, piece, weight));
    if (set->has[SH_DATA_MASK])
        SH_TRY(mask_of(set, piece, mask));
    for (int t = 0; t < piece->places && set->has[SH_DATA_MASK]; t++)
        weight[t] = mask[t] ? weight[t] : 0;
    return SH_OK;
}

sh_rc sh_data_rows_weights(const struct sh_data_files *set, const struct sh_pack *pack, int64_t w, float *weight)
{
    unsigned char *mask = sh_calloc((size_t)set->seq_len, 1);
    struct walk walk = walk_row(set, pack, w);
    struct sh_piece piece;
    sh_rc rc = SH_OK;

    memset(weight, 0, (size_t)set->seq_len * sizeof *weight);
    do {
        int at = walk.at;
        rc = next_piece(&walk, &piece);
        if (rc == SH_OK && piece.places)
            rc = weights_of(set, &piece, mask, weight + at);
    } while (rc == SH_OK && piece.places);
    free(mask);
    return rc;
}
