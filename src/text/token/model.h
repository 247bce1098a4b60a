/* The words and merges of a byte pair encoding, which turn pieces of text into ids. Filled once, then read from any
 * thread. */
#ifndef IO_TOKEN_MODEL_H
#define IO_TOKEN_MODEL_H

#include "src/base/err.h"
#include "src/text/base/ids.h"
#include "src/text/base/place.h"
#include "src/text/token/cache.h"
#include "src/text/token/merge.h"
#include "src/text/token/words.h"

struct sh_bpe {
    struct sh_words words; /* texts to ids; for byte-level models, the bytes that a word stands for */
    struct sh_merges merges;
    bool byte_level; /* true: a symbol is a byte; false: a code point */
    bool byte_fallback, fuse_unk, ignore_merges;
    int64_t unk;           /* id for unknown symbols; SH_NO_ID: they are left out */
    int64_t byte_id[256];  /* byte level: id of each byte; else of "<0x00>", ... */
    int64_t ascii_id[128]; /* not byte level: id of each one-byte character */
};

/* A piece that waits while the cache row that may hold it is fetched from memory. */
struct sh_bpe_piece {
    const unsigned char *text;
    size_t bytes;
    uint64_t hash;
};

enum { SH_BPE_WAITING = 8 }; /* pieces; a power of two */

struct sh_bpe_scratch {
    struct sh_cache *cache;
    struct sh_merge_scratch merge;
    struct sh_ids symbols;
    struct sh_span *at; /* [room] of each symbol, in the piece; filled by sh_bpe_places() only */
    size_t n, room;
    struct sh_bpe_piece waiting[SH_BPE_WAITING]; /* a ring */
    unsigned put, done;                          /* numbers of pieces; the ring holds [done, put) */
};

void sh_bpe_free(struct sh_bpe *m);

/* Fill byte_id and ascii_id; call after words, merges and switches are set. */
void sh_bpe_settle(struct sh_bpe *m);

void sh_bpe_scratch_init(struct sh_bpe_scratch *s);
void sh_bpe_scratch_free(struct sh_bpe_scratch *s);

/* Append the ids of one piece, which is not empty. They are appended at the latest when SH_BPE_WAITING more pieces have
 * come, or in sh_bpe_finish(). Until then the piece is lent. */
void sh_bpe_encode(const struct sh_bpe *m, struct sh_bpe_scratch *s, const unsigned char *piece, size_t bytes,
                   struct sh_ids *out);

/* Append the ids of all waiting pieces. */
void sh_bpe_finish(const struct sh_bpe *m, struct sh_bpe_scratch *s, struct sh_ids *out);

/* Find the parts of a piece for which its ids [n] stand.
 *   width  in   bytes of each word as the file writes it: a merge adds those of its sides
 *   part   out  [n] */
sh_rc sh_bpe_places(const struct sh_bpe *m, struct sh_bpe_scratch *s, const uint32_t *width, const unsigned char *piece,
                    size_t bytes, const uint32_t *ids, size_t n, struct sh_span *part);

/* Return the byte that a code point of the byte-level alphabet stands for, -1 if it is not in the alphabet. Printable
 * bytes stand for themselves, the others are the code points from 256 on, in order. Source: GPT-2, encoder.py,
 * bytes_to_unicode. */
int sh_code_to_byte(uint32_t code);

#endif
