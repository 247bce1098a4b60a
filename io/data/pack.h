/* Packing: documents into rows of T places, several in a row, none in two rows but what is longer than a row. Which
 * document goes where depends on lengths, T and the method alone, so that all ranks, and a later run, have the same rows.
 * Local.
 *
 * A document of n tokens predicts n - 1 of them and takes n - 1 places; one of less than two tokens takes none. */
#ifndef IO_DATA_PACK_H
#define IO_DATA_PACK_H

#include "src/base/err.h"
#include "src/config/words.h"

#include <stdint.h>

struct sh_pack {
    int seq_len;
    enum sh_cfg_excess excess;
    int64_t documents;
    int64_t rows;               /* whole ones first */
    int64_t whole;              /* rows that are a piece of a long document each, and full */
    int64_t used;               /* places of all rows that have a token */
    int64_t left_out;           /* documents without a place: too short, or dropped */
    int64_t cut;                /* documents longer than a row */
    int32_t *first;             /* [rows - whole] a document of the row */
    int32_t *next;              /* [documents] the next one of its row; -1: the last. NULL: a row has one document */
    struct sh_pack_long *longs; /* [n_longs] whose pieces the whole rows are */
    int64_t n_longs;
};

struct sh_pack_long {
    int64_t document, row; /* its first whole row; it has all up to that of the next one */
};

/* Part of a document: its tokens begin .. begin + places, the last of which is a target only. */
struct sh_piece {
    int64_t document, begin;
    int places;
};

/* Tokens of documents [first, first + n). */
typedef sh_rc (*sh_pack_tokens)(const void *ctx, int64_t first, int64_t n, int64_t *tokens);

/*   name  of the set, for messages
 * Packing bfd: documents in falling order of length, each into the row with the least room that is enough; of rows with
 * as much room, into the one that was filled last. none: a row each, in their order. O(documents x log T).
 * Memory: 4 bytes a document, 8 a row.
 * Errors: SH_E_DATA: too long documents with SH_EXCESS_RAISE; no row at all; 2^31 documents or more; of `tokens`. */
sh_rc sh_pack_build(const char *name, int seq_len, enum sh_cfg_packing packing, enum sh_cfg_excess excess,
                    int64_t documents, sh_pack_tokens tokens, const void *ctx, struct sh_pack *out);
void sh_pack_free(struct sh_pack *p);

/* What the document that is `d` has in rows that are not whole: its end after split, its beginning after truncate. */
struct sh_piece sh_pack_piece(const struct sh_pack *p, int64_t d, int64_t tokens);

/* The piece that a row with number < whole is. */
struct sh_piece sh_pack_whole(const struct sh_pack *p, int64_t row);

#endif
