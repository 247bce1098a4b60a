/* The words and merges of a byte pair encoding: pieces of text to ids. Filled once, then read from any thread. */
#ifndef IO_TOKEN_MODEL_H
#define IO_TOKEN_MODEL_H

#include "io/token/cache.h"
#include "io/token/ids.h"
#include "io/token/merge.h"
#include "io/token/words.h"

struct sh_bpe {
    struct sh_words words; /* texts to ids; of byte-level models the bytes that a word stands for */
    struct sh_merges merges;
    bool byte_level; /* a symbol is a byte; else a code point */
    bool byte_fallback, fuse_unk, ignore_merges;
    int64_t unk;           /* SH_NO_ID: what is no word is left out */
    int64_t byte_id[256];  /* byte level: of each byte; else of "<0x00>", ... */
    int64_t ascii_id[128]; /* else: of the characters that are one byte */
};

/* A piece that waits while the row of the cache where it may be is on its way from memory. */
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
    struct sh_bpe_piece waiting[SH_BPE_WAITING]; /* a ring */
    unsigned put, done;                          /* numbers of pieces; the ring has [done, put) */
};

void sh_bpe_free(struct sh_bpe *m);

/* After words, merges and switches are set: byte_id, ascii_id. */
void sh_bpe_settle(struct sh_bpe *m);

void sh_bpe_scratch_init(struct sh_bpe_scratch *s);
void sh_bpe_scratch_free(struct sh_bpe_scratch *s);

/* Append the ids of one piece, which is not empty: at the latest when SH_BPE_WAITING more have come, or in
 * sh_bpe_finish(). Until then the piece is lent. */
void sh_bpe_encode(const struct sh_bpe *m, struct sh_bpe_scratch *s, const unsigned char *piece, size_t bytes,
                   struct sh_ids *out);

/* Append the ids of all pieces that wait. */
void sh_bpe_finish(const struct sh_bpe *m, struct sh_bpe_scratch *s, struct sh_ids *out);

/* The byte of a code point of the byte-level alphabet: bytes that print are themselves, the others are code points
 * from 256 on, in order. -1: it is not in it. Source: GPT-2, encoder.py, bytes_to_unicode. */
int sh_code_to_byte(uint32_t code);

#endif
