/* Byte pair encoding of one piece: characters (or bytes) become symbols, and symbols are merged. GPT-2 gave each byte a
 * printable character, so a byte-level vocabulary can be written as text; the two functions at the top are that
 * alphabet. The rest is mostly about symbols that are not in the vocabulary. */
#include "src/text/token/model.h"

#include "src/base/string/utf8.h"

#include <stdio.h>
#include <stdlib.h>

/* Bytes that are not printable: 0 to 32, 127 to 160, 173. In this order they become the code points from 256 on. */
static uint32_t byte_to_code(unsigned char byte)
{
    if (byte <= 32)
        return 256u + byte;
    if (byte >= 127 && byte <= 160)
        return 256u + 33 + (byte - 127u);
    return byte == 173 ? 256u + 67 : byte;
}

/* The inverse; -1: not in the alphabet. */
int sh_code_to_byte(uint32_t code)
{
    if (code < 256)
        return byte_to_code((unsigned char)code) == code ? (int)code : -1;
    if (code < 256 + 33)
        return (int)(code - 256);
    if (code < 256 + 67)
        return (int)(code - 256 - 33 + 127);
    return code == 256 + 67 ? 173 : -1;
}

void sh_bpe_free(struct sh_bpe *m)
{
    sh_words_free(&m->words);
    sh_merges_free(&m->merges);
}

/* Fill the tables that are used for each symbol: the id of each byte and of each ASCII character, -1 if it has none. */
void sh_bpe_settle(struct sh_bpe *m)
{
    for (int b = 0; b < 256; b++) {
        unsigned char byte = (unsigned char)b;
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        m->byte_id[b] = m->byte_level ? sh_words_get(&m->words, &byte, 1) : sh_words_get(&m->words, name, 6);
        if (b < 128)
            m->ascii_id[b] = sh_words_get(&m->words, &byte, 1);
    }
}

/* Each thread has a cache, which is 24 MiB of address space. */
void sh_bpe_scratch_init(struct sh_bpe_scratch *s)
{
    *s = (struct sh_bpe_scratch){.cache = sh_cache_create()};
}

void sh_bpe_scratch_free(struct sh_bpe_scratch *s)
{
    sh_cache_destroy(s->cache);
    sh_merge_scratch_free(&s->merge);
    free(s->symbols.id);
    free(s->at);
}

/* Whether byte_fallback can spell the symbol as bytes. A byte-level model needs no fallback. */
static bool all_bytes_are_words(const struct sh_bpe *m, const unsigned char *symbol, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (m->byte_id[symbol[i]] < 0)
            return false;
    return m->byte_fallback && !m->byte_level;
}

/* The symbols of a piece as they are found. */
struct symbols {
    const struct sh_bpe *m;
    struct sh_bpe_scratch *s;
    bool places;         /* fill s->at as well */
    bool waits;          /* an unknown symbol is held back */
    struct sh_span held; /* its bytes */
};

static void put_id(struct symbols *y, int64_t id, size_t begin, size_t end)
{
    struct sh_bpe_scratch *s = y->s;

    sh_ids_put(&s->symbols, (uint32_t)id);
    if (!y->places)
        return;
    if (s->n == s->room) {
        s->room = 2 * s->room + 64;
        s->at = sh_realloc(s->at, s->room, sizeof *s->at);
    }
    s->at[s->n++] = (struct sh_span){(uint32_t)begin, (uint32_t)end};
}

/* The symbol at `at`. An unknown symbol is held back: with fuse_unk the unknown symbols that follow are fused with it.
 * A character spelled as bytes is put before the held symbol. */
static void put_symbol(struct symbols *y, const unsigned char *piece, size_t at, size_t n, int64_t id)
{
    const struct sh_bpe *m = y->m;

    if (id < 0 && all_bytes_are_words(m, piece + at, n)) {
        for (size_t i = at; i < at + n; i++)
            put_id(y, m->byte_id[piece[i]], i, i + 1);
        return;
    }
    if (id < 0 && m->unk < 0)
        return;
    if (y->waits && (id >= 0 || !m->fuse_unk)) {
        put_id(y, m->unk, y->held.begin, y->held.end);
        y->waits = false;
    }
    if (id >= 0) {
        put_id(y, id, at, at + n);
        return;
    }
    y->held = (struct sh_span){y->waits ? y->held.begin : (uint32_t)at, (uint32_t)(at + n)};
    y->waits = true;
}

/* Return the id of the symbol at p, -1 if unknown. *n: its length in bytes. */
static int64_t symbol_id(const struct sh_bpe *m, const unsigned char *p, size_t *n)
{
    *n = 1;
    if (m->byte_level)
        return m->byte_id[*p];
    if (*p < 0x80)
        return m->ascii_id[*p];
    sh_utf8_get(p, n);
    return sh_words_get(&m->words, p, *n);
}

/* Fill s->symbols with the symbols of a piece before any merge. */
static void find_symbols(const struct sh_bpe *m, struct sh_bpe_scratch *s, const unsigned char *piece, size_t bytes,
                         bool places)
{
    struct symbols y = {.m = m, .s = s, .places = places};

    s->symbols.n = s->n = 0;
    for (size_t i = 0, n; i < bytes; i += n) {
        int64_t id = symbol_id(m, piece + i, &n);
        put_symbol(&y, piece, i, n, id);
    }
    /* The piece ends with an unknown symbol. */
    if (y.waits)
        put_id(&y, m->unk, y.held.begin, y.held.end);
}

/* Merge a piece; its ids are in s->symbols afterwards. */
static void merge_piece(const struct sh_bpe *m, struct sh_bpe_scratch *s, const unsigned char *piece, size_t bytes)
{
    find_symbols(m, s, piece, bytes, false);
    s->symbols.n = sh_merge(&m->merges, &s->merge, s->symbols.id, s->symbols.n);
}

/* An id stands for as many symbols as make up its width. With ignore_merges it may be a word that no merge makes, and
 * whose characters are not words: then it is the only one. */
sh_rc sh_bpe_places(const struct sh_bpe *m, struct sh_bpe_scratch *s, const uint32_t *width, const unsigned char *piece,
                    size_t bytes, const uint32_t *ids, size_t n, struct sh_span *part)
{
    size_t k = 0;

    find_symbols(m, s, piece, bytes, true);
    for (size_t i = 0; i < n; i++) {
        struct sh_span p = {UINT32_MAX, 0};
        uint64_t got = 0;
        do {
            if (k == s->n)
                break;
            got += width[s->symbols.id[k]];
            p.begin = s->at[k].begin < p.begin ? s->at[k].begin : p.begin;
            p.end = s->at[k].end > p.end ? s->at[k].end : p.end;
        } while (++k, got < width[ids[i]]);
        SH_REQUIRE(n == 1 || (got == width[ids[i]] && p.end));
        part[i] = got == width[ids[i]] && p.end ? p : (struct sh_span){0, (uint32_t)bytes};
    }
    return SH_OK;
}

/* Try the cache first. With ignore_merges, a piece that is a word as a whole becomes that word, even if no merges lead
 * to it. */
static void encode_piece(const struct sh_bpe *m, struct sh_bpe_scratch *s, const struct sh_bpe_piece *p,
                         struct sh_ids *out)
{
    bool kept = p->bytes <= SH_CACHE_PIECE;
    int64_t whole;

    if (kept && sh_cache_get(s->cache, p->hash, p->text, p->bytes, out))
        return;
    if (m->ignore_merges && (whole = sh_words_get(&m->words, p->text, p->bytes)) >= 0) {
        s->symbols.n = 0;
        sh_ids_put(&s->symbols, (uint32_t)whole);
    } else {
        merge_piece(m, s, p->text, p->bytes);
    }
    /* Store the ids from the scratch; `out` may move when it grows. */
    if (kept)
        sh_cache_put(s->cache, p->hash, p->text, p->bytes, s->symbols.id, s->symbols.n);
    if (s->symbols.n)
        memcpy(sh_ids_room(out, s->symbols.n), s->symbols.id, s->symbols.n * sizeof *out->id);
    out->n += s->symbols.n;
}

static struct sh_bpe_piece *waiting(struct sh_bpe_scratch *s, unsigned number)
{
    return &s->waiting[number % SH_BPE_WAITING];
}

/* The oldest piece leaves the ring and is encoded; for the one in the middle, whose row has arrived by now, text and
 * ids are fetched; for the new one, the row. */
void sh_bpe_encode(const struct sh_bpe *m, struct sh_bpe_scratch *s, const unsigned char *piece, size_t bytes,
                   struct sh_ids *out)
{
    uint64_t hash = bytes <= SH_CACHE_PIECE ? sh_words_hash(piece, bytes) : 0;

    if (s->put - s->done == SH_BPE_WAITING)
        encode_piece(m, s, waiting(s, s->done++), out);
    /* If the ring is not half full yet, the middle has an old hash: an unneeded fetch does no harm. */
    sh_cache_fetch(s->cache, hash, waiting(s, s->put - SH_BPE_WAITING / 2)->hash);
    *waiting(s, s->put++) = (struct sh_bpe_piece){piece, bytes, hash};
}

void sh_bpe_finish(const struct sh_bpe *m, struct sh_bpe_scratch *s, struct sh_ids *out)
{
    while (s->done != s->put)
        encode_piece(m, s, waiting(s, s->done++), out);
}
