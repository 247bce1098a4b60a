/* Packs documents into rows of T places, several in a row; only a document longer than a row is in more than one row.
 * Which document goes where depends only on lengths, T and the method, so all ranks, and a later run, get the same
 * rows.
 * Local.
 *
 * A document of n tokens predicts n - 1 of them and takes n - 1 places; one with fewer than two tokens takes none. */
#ifndef IO_DATA_PACK_H
#define IO_DATA_PACK_H

#include "src/base/err.h"
#include "src/config/words.h"

#include <stdint.h>

struct sh_pack {
    int seq_len;
    enum sh_cfg_excess excess;
    int64_t documents;
    int64_t rows;               /* number of rows, the whole ones first */
    int64_t whole;              /* number of full rows that are each one piece of a long document */
    int64_t used;               /* number of places in all rows that hold a token */
    int64_t left_out;           /* documents without a place: too short, or dropped */
    int64_t cut;                /* documents longer than a row */
    int32_t *first;             /* [rows - whole] first document in the row's list */
    int32_t *next;              /* [documents] next document of the same row; -1: last. NULL: one document per row */
    struct sh_pack_long *longs; /* [n_longs] documents whose pieces are the whole rows */
    int64_t n_longs;
};

struct sh_pack_long {
    int64_t document, row; /* row: its first whole row; its rows end where those of the next one begin */
};

/* Part of a document: its tokens begin .. begin + places; the last one is only a target. */
struct sh_piece {
    int64_t document, begin;
    int places;
};

/* Get the numbers of tokens of documents [first, first + n). */
typedef sh_rc (*sh_pack_tokens)(const void *ctx, int64_t first, int64_t n, int64_t *tokens);

/*   name  of the set, for messages
 * Packing bfd: documents in descending order of length, each into the row with the least room that suffices; among rows
 * with equal room, into the one filled last. Packing none: one row per document, in order. O(documents x log T).
 * Memory: 4 bytes per document, 8 per row.
 * Errors: SH_E_DATA: documents longer than a row with SH_EXCESS_RAISE; no row at all; 2^31 documents or more; errors of
 * `tokens`. */
sh_rc sh_pack_build(const char *name, int seq_len, enum sh_cfg_packing packing, enum sh_cfg_excess excess,
                    int64_t documents, sh_pack_tokens tokens, const void *ctx, struct sh_pack *out);
void sh_pack_free(struct sh_pack *p);

/* Return the part of document `d` that is in a row that is not whole: its end after split, its beginning after
 * truncate. */
struct sh_piece sh_pack_piece(const struct sh_pack *p, int64_t d, int64_t tokens);

/* Return the piece that fills row `row`, which must be below `whole`. */
struct sh_piece sh_pack_whole(const struct sh_pack *p, int64_t row);

#endif
