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

static sh_rc lengths(const void *set, int64_t first, int64_t n, int64_t *tokens)
{
    return sh_documents_lengths(set, first, n, tokens);
}

sh_rc sh_data_rows_pack(const struct sh_data_files *set, const struct sh_data_options *opt, struct sh_pack *out)
{
    return sh_pack_build(opt->path, set->seq_len, set->packing, opt->excess, set->documents, lengths, set, out);
}

/* Iterates over the pieces of a row. */
struct walk {
    const struct sh_data_files *set;
    const struct sh_pack *pack;
    int64_t row;
    int32_t next; /* document; -1: no more */
    int at;       /* places so far */
};

/* Rows below `whole` are one piece of a document each, which fills the row; the others are lists through pack->next. */
static struct walk walk_row(const struct sh_data_files *set, const struct sh_pack *pack, int64_t row)
{
    return (struct walk){
        .set = set, .pack = pack, .row = row, .next = row < pack->whole ? 0 : pack->first[row - pack->whole]};
}

/* *piece with 0 places means that there are no more. A row never gets longer than seq_len, even if the file changes
 * during the run. */
static sh_rc next_piece(struct walk *w, struct sh_piece *piece)
{
    int64_t tokens;

    *piece = (struct sh_piece){0};
    if (w->next < 0)
        return SH_OK;
    if (w->row < w->pack->whole) {
        *piece = sh_pack_whole(w->pack, w->row);
        w->next = -1;
    } else {
        SH_TRY(sh_documents_lengths(w->set, w->next, 1, &tokens));
        *piece = sh_pack_piece(w->pack, w->next, tokens);
        w->next = w->pack->next ? w->pack->next[w->next] : -1;
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

/* Put a piece into a row; ids [places + 1] and mask [places] are scratch. */
static sh_rc put_piece(const struct sh_data_files *set, const struct sh_piece *piece, int at, int32_t *ids,
                       unsigned char *mask, int32_t *tokens, int32_t *targets, int32_t *docs)
{
    SH_TRY(sh_documents_ids(set, piece, ids));
    if (set->masked)
        SH_TRY(sh_documents_mask(set, piece, mask));
    for (int t = 0; t < piece->places; t++) {
        tokens[at + t] = ids[t];
        targets[at + t] = set->masked && !mask[t] ? -1 : ids[t + 1];
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
        if (set->masked && piece.places)
            SH_TRY_OUT(sh_documents_mask(set, &piece, mask));
        for (int t = 0; t < piece.places; t++)
            *unmasked += !set->masked || mask[t];
    } while (piece.places);
    rc = SH_OK;
out:
    free(mask);
    return rc;
}
