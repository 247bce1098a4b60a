/* Best fit decreasing: documents in descending order of length. There are three kinds of linked lists: documents of one
 * length, from which they are taken; documents of one row, into which they go; rows with the same amount of room. A
 * document is in one of the first two at a time, so one array holds the links of both. A tree of bits records which
 * amounts of room exist. */
#include "io/data/pack.h"

#include "src/base/mem.h"

#include <stdlib.h>

enum { BLOCK = 1 << 14, LEVELS = 5 };

/* Bits 0 .. n-1, and for each word of 64 bits one bit on the level above that says whether any of them is set. */
struct bits {
    uint64_t *level[LEVELS];
    int64_t words[LEVELS];
    int n_levels;
};

/* The state while rows are made. */
struct fit {
    struct sh_pack *p;
    int32_t *head;     /* [T+1] the last document of each length; -1: none */
    int32_t *roomy;    /* [T+1] a row with this much room; -1: none */
    int32_t *same;     /* [rows] another row with the same amount of room */
    struct bits room;  /* set for each amount of room that some row has */
    int64_t row_space; /* rows for which `first` and `same` have memory */
    int64_t n;         /* rows that are not whole */
    int64_t longest, too_long;
};

/* n is at most 64^LEVELS, far more than the length of any sequence. */
static struct bits make_bits(int64_t n)
{
    struct bits b = {0};

    do {
        n = (n + 63) / 64;
        b.words[b.n_levels] = n;
        b.level[b.n_levels++] = sh_calloc((size_t)n, sizeof(uint64_t));
    } while (n > 1);
    return b;
}

static void free_bits(struct bits *b)
{
    for (int i = 0; i < b->n_levels; i++)
        free(b->level[i]);
}

static void set_bit(struct bits *b, int64_t i)
{
    for (int l = 0; l < b->n_levels; l++, i /= 64)
        b->level[l][i / 64] |= UINT64_C(1) << i % 64;
}

/* Continues upwards as long as a word becomes empty. */
static void clear_bit(struct bits *b, int64_t i)
{
    for (int l = 0; l < b->n_levels; l++, i /= 64) {
        b->level[l][i / 64] &= ~(UINT64_C(1) << i % 64);
        if (b->level[l][i / 64])
            return;
    }
}

/* Find the lowest set bit from i on; -1: none. Goes up to a word that has a set bit after i, then down to the first one
 * below it. */
static int64_t next_bit(const struct bits *b, int64_t i)
{
    for (int l = 0; l < b->n_levels; l++, i = i / 64 + 1) {
        int64_t word = i / 64;
        if (word == b->words[l])
            return -1;
        uint64_t left = b->level[l][word] & ~UINT64_C(0) << i % 64;
        if (!left)
            continue;
        int64_t at = word * 64 + __builtin_ctzll(left);
        while (l-- > 0)
            at = at * 64 + __builtin_ctzll(b->level[l][at]);
        return at;
    }
    return -1;
}

struct sh_piece sh_pack_piece(const struct sh_pack *p, int64_t d, int64_t tokens)
{
    int64_t places = tokens > 1 ? tokens - 1 : 0, T = p->seq_len, begin = 0;

    if (places > T && p->excess == SH_EXCESS_SPLIT)
        begin = (places - 1) / T * T;
    else if (places > T)
        places = p->excess == SH_EXCESS_TRUNCATE ? T : 0;
    return (struct sh_piece){.document = d, .begin = begin, .places = (int)(places - begin)};
}

/* Search for the last long document that begins at or before the row. */
struct sh_piece sh_pack_whole(const struct sh_pack *p, int64_t row)
{
    int64_t low = 0, high = p->n_longs;

    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2;
        if (p->longs[mid].row <= row)
            low = mid;
        else
            high = mid;
    }
    return (struct sh_piece){
        .document = p->longs[low].document, .begin = (row - p->longs[low].row) * p->seq_len, .places = p->seq_len};
}

/* Add a long document; the memory doubles when it is full. */
static void add_long(struct sh_pack *p, int64_t document, int64_t whole)
{
    if ((p->n_longs & (p->n_longs - 1)) == 0)
        p->longs = sh_realloc(p->longs, p->n_longs ? 2 * (size_t)p->n_longs : 1, sizeof *p->longs);
    p->longs[p->n_longs++] = (struct sh_pack_long){document, p->whole};
    p->whole += whole;
}

/* Add a row. The memory grows by a quarter each time: with 10 million documents doubling would waste too much. */
static int64_t add_row(struct fit *f)
{
    if (f->n == f->row_space) {
        f->row_space += f->row_space / 4 + 64;
        f->p->first = sh_realloc(f->p->first, (size_t)f->row_space, sizeof *f->p->first);
        if (f->p->next)
            f->same = sh_realloc(f->same, (size_t)f->row_space, sizeof *f->same);
    }
    f->p->first[f->n] = -1;
    return f->n++;
}

/* Take a row with room for at least `places`; *room: how much it has. */
static int64_t take_row(struct fit *f, int places, int64_t *room)
{
    *room = next_bit(&f->room, places);
    if (*room < 0) {
        *room = f->p->seq_len;
        return add_row(f);
    }
    int32_t row = f->roomy[*room];
    f->roomy[*room] = f->same[row];
    if (f->roomy[*room] < 0)
        clear_bit(&f->room, *room);
    return row;
}

static void put_row(struct fit *f, int64_t row, int64_t room)
{
    if (room == 0)
        return;
    f->same[row] = f->roomy[room];
    f->roomy[room] = (int32_t)row;
    set_bit(&f->room, room);
}

/* Place documents from the longest down, each at the front of its row's list. */
static void fill_rows(struct fit *f)
{
    struct sh_pack *p = f->p;

    for (int places = p->seq_len; places > 0; places--)
        for (int32_t d = f->head[places], after; d >= 0; d = after) {
            int64_t room, row = take_row(f, places, &room);
            after = p->next[d];
            p->next[d] = p->first[row];
            p->first[row] = d;
            put_row(f, row, room - places);
        }
}

/* Add one document: count it, split off its whole rows, and put the rest into the list of its length or into its own
 * row. */
static void add_document(struct fit *f, int64_t d, int64_t tokens)
{
    struct sh_pack *p = f->p;
    struct sh_piece piece = sh_pack_piece(p, d, tokens);

    f->longest = tokens > f->longest ? tokens : f->longest;
    if (tokens - 1 > p->seq_len)
        p->cut++;
    if (piece.places == 0) {
        p->left_out++;
        return;
    }
    if (piece.begin)
        add_long(p, d, piece.begin / p->seq_len);
    p->used += piece.begin + piece.places;
    if (p->next) {
        p->next[d] = f->head[piece.places];
        f->head[piece.places] = (int32_t)d;
    } else {
        int64_t row = add_row(f); /* this may move p->first */
        p->first[row] = (int32_t)d;
    }
}

/* Read lengths in blocks, so they need no memory for all documents. */
static sh_rc add_documents(struct fit *f, sh_pack_tokens tokens, const void *ctx)
{
    int64_t *n = sh_calloc(BLOCK, sizeof *n);
    sh_rc rc = SH_OK;

    for (int64_t d = 0; d < f->p->documents && rc == SH_OK; d += BLOCK) {
        int64_t some = f->p->documents - d < BLOCK ? f->p->documents - d : BLOCK;
        rc = tokens(ctx, d, some, n);
        for (int64_t i = 0; i < some && rc == SH_OK; i++)
            add_document(f, d + i, n[i]);
    }
    free(n);
    return rc;
}

/* Refuse documents that cannot be trained on with the given options. */
static sh_rc check_rows(const struct fit *f, const char *name)
{
    const struct sh_pack *p = f->p;

    if (p->excess == SH_EXCESS_RAISE && p->cut)
        return sh_fail(
            SH_E_DATA,
            "%s: %lld of %lld documents have more than %d tokens (training.seq_len + 1), the longest %lld; "
            "give data.excess_length_strategy: drop, truncate (texts without labels) or split (texts without answers and "
            "labels), or longer sequences",
            name, (long long)p->cut, (long long)p->documents, p->seq_len + 1, (long long)f->longest);
    if (p->rows == 0)
        return sh_fail(SH_E_DATA, "%s: none of %lld documents has a token to predict", name, (long long)p->documents);
    return SH_OK;
}

static void fill_with(int32_t *to, int64_t n, int32_t value)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = value;
}

sh_rc sh_pack_build(const char *name, int seq_len, enum sh_cfg_packing packing, enum sh_cfg_excess excess,
                    int64_t documents, sh_pack_tokens tokens, const void *ctx, struct sh_pack *out)
{
    struct fit f = {.p = out};
    bool best_fit = packing == SH_PACKING_BFD;
    sh_rc rc;

    *out = (struct sh_pack){.seq_len = seq_len, .excess = excess, .documents = documents};
    if (documents > INT32_MAX)
        return sh_fail(SH_E_DATA, "%s has %lld documents; at most %d can be packed", name, (long long)documents,
                       INT32_MAX);
    if (best_fit) {
        out->next = sh_calloc((size_t)documents + 1, sizeof *out->next);
        f.head = sh_calloc((size_t)seq_len + 1, sizeof *f.head);
        f.roomy = sh_calloc((size_t)seq_len + 1, sizeof *f.roomy);
        fill_with(f.head, seq_len + 1, -1);
        fill_with(f.roomy, seq_len + 1, -1);
        f.room = make_bits((int64_t)seq_len + 1);
    }
    SH_TRY_OUT(add_documents(&f, tokens, ctx));
    if (best_fit)
        fill_rows(&f);
    out->rows = out->whole + f.n;
    rc = check_rows(&f, name);
out:
    free(f.head);
    free(f.roomy);
    free(f.same);
    free_bits(&f.room);
    if (rc != SH_OK)
        sh_pack_free(out);
    return rc;
}

/* A zeroed struct is fine. */
void sh_pack_free(struct sh_pack *p)
{
    free(p->first);
    free(p->next);
    free(p->longs);
    *p = (struct sh_pack){0};
}
