/* Merges one piece, by one of two methods with the same result. For short pieces, which is nearly all of them: the
 * ranks of all pairs of neighbours are in an array, which is searched for the lowest each time. For long pieces: a heap
 * of pairs by rank and place, and a list that links the remaining symbols; stale entries are recognized and dropped
 * when they come up. Example with the ranks 1 for th and 2 for the: t h e becomes th e, then the. */
#include "src/text/token/merge.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Up to this many symbols, scanning all ranks is faster than keeping them in order. */
enum { SCANNED = 64 };

/* Both ids in one number. */
static inline uint64_t key_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

/* Fibonacci hashing: the multiplication spreads neighbouring ids, the upper bits are the best ones. */
static inline uint64_t hash_of(uint64_t key)
{
    return (key ^ key >> 32) * 0x9e3779b97f4a7c15u;
}

static inline uint32_t row_of(const struct sh_merges *m, uint64_t hash)
{
    return (uint32_t)(hash >> 32) & m->mask;
}

/* The bits take a sixteenth of the memory of the rows, and most pairs that are absent are recognized without accessing
 * a row. */
static inline uint32_t bit_of(const struct sh_merges *m, uint64_t hash)
{
    return (uint32_t)(hash >> 29) & (m->mask << 3 | 7);
}

/* At most half full, so searches are short. */
void sh_merges_init(struct sh_merges *m, size_t n)
{
    size_t rows = 16; /* a file has fewer than 2^28 merges, as it has fewer bytes */

    while (rows < n * 2)
        rows *= 2;
    *m = (struct sh_merges){.row = sh_calloc(rows, sizeof *m->row),
                            .mask = (uint32_t)(rows - 1),
                            .bit = sh_calloc(rows / 4, sizeof *m->bit)};
    for (size_t i = 0; i < rows; i++)
        m->row[i].rank = SH_NO_RANK;
}

void sh_merges_free(struct sh_merges *m)
{
    free(m->row);
    free(m->bit);
    *m = (struct sh_merges){0};
}

/* Find the row of the pair, or the free row where it would be, whose rank is SH_NO_RANK. */
static inline struct sh_pair *find(const struct sh_merges *m, uint64_t key, uint64_t hash)
{
    uint32_t i = row_of(m, hash);

    while (m->row[i].rank != SH_NO_RANK && m->row[i].key != key)
        i = (i + 1) & m->mask;
    return &m->row[i];
}

/* The result for a pair that cannot be merged. */
static const struct sh_pair none = {.rank = SH_NO_RANK};

static inline const struct sh_pair *pair_of(const struct sh_merges *m, uint32_t left, uint32_t right)
{
    uint64_t key = key_of(left, right), hash = hash_of(key);
    uint32_t bit = bit_of(m, hash);

    return m->bit[bit >> 5] >> (bit & 31) & 1 ? find(m, key, hash) : &none;
}

void sh_merges_put(struct sh_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t key = key_of(left, right), hash = hash_of(key);
    uint32_t bit = bit_of(m, hash);

    m->bit[bit >> 5] |= 1u << (bit & 31);
    *find(m, key, hash) = (struct sh_pair){key, rank, id};
}

/* Zeroes the scratch, so it can be used again. */
void sh_merge_scratch_free(struct sh_merge_scratch *s)
{
    free(s->rank);
    free(s->made);
    free(s->next);
    free(s->prev);
    free(s->heap);
    *s = (struct sh_merge_scratch){0};
}

/* The state of a piece of few symbols: for each symbol its right and its left neighbour, and the pair that it forms
 * with the right one. A symbol that was merged into its left neighbour has no pair. */
struct scan {
    uint64_t pair[SCANNED]; /* rank << 32 | place; NO_PAIR */
    uint32_t made[SCANNED];
    unsigned char next[SCANNED + 1], prev[SCANNED + 1];
};

#define NO_PAIR UINT64_MAX

/* Look up the pair of symbol i and its right neighbour. */
static inline void look(const struct sh_merges *m, struct scan *s, const uint32_t *id, size_t i)
{
    const struct sh_pair *p = pair_of(m, id[i], id[s->next[i]]);

    s->pair[i] = p->rank == SH_NO_RANK ? NO_PAIR : (uint64_t)p->rank << 32 | i;
    s->made[i] = p->id;
}

static inline uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Find the minimum, four independent comparisons at a time. n is a multiple of four. */
static uint64_t least_of(const uint64_t *pair, size_t n)
{
    uint64_t a = pair[0], b = pair[1], c = pair[2], d = pair[3];

    for (size_t i = 4; i < n; i += 4) {
        a = less(a, pair[i]);
        b = less(b, pair[i + 1]);
        c = less(c, pair[i + 2]);
        d = less(d, pair[i + 3]);
    }
    return less(less(a, b), less(c, d));
}

/* Symbols keep their places until the end: closing gaps would cost more than scanning them. Of equal pairs, the left
 * one is lower because its place is. */
static size_t merge_by_scan(const struct sh_merges *m, uint32_t *id, size_t n)
{
    size_t whole = (n + 3) / 4 * 4, kept = 0;
    struct scan s;
    uint64_t top;

    for (size_t i = 0; i < n; i++) {
        s.next[i] = (unsigned char)(i + 1);
        s.prev[i + 1] = (unsigned char)i;
    }
    for (size_t i = 0; i + 1 < n; i++)
        look(m, &s, id, i);
    for (size_t i = n - 1; i < whole; i++)
        s.pair[i] = NO_PAIR;
    while ((top = least_of(s.pair, whole)) != NO_PAIR) {
        size_t i = (size_t)(top & UINT32_MAX), right = s.next[i], after = s.next[right];
        id[i] = s.made[i];
        s.pair[i] = s.pair[right] = NO_PAIR;
        s.next[i] = (unsigned char)after;
        s.prev[after] = (unsigned char)i;
        if (after < n)
            look(m, &s, id, i);
        if (i > 0)
            look(m, &s, id, s.prev[i]);
    }
    for (size_t i = 0; i < n; i = s.next[i])
        id[kept++] = id[i];
    return kept;
}

/* Rank in the upper half, place in the lower: one comparison orders both. */
static void push(struct sh_merge_scratch *s, uint64_t entry)
{
    if (s->heap_n == s->heap_room) {
        s->heap_room = s->heap_room ? 2 * s->heap_room : 256;
        s->heap = sh_realloc(s->heap, s->heap_room, sizeof *s->heap);
    }
    size_t i = s->heap_n++;
    for (; i > 0 && s->heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = entry;
}

/* Remove the lowest entry; the heap is not empty. */
static uint64_t pop(struct sh_merge_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->heap_n];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < s->heap_n; i = child) {
        if (child + 1 < s->heap_n && s->heap[child + 1] < s->heap[child])
            child++;
        if (s->heap[child] >= last)
            break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

/* Look up the pair that begins at i, and push it if it can be merged. */
static void offer(const struct sh_merges *m, struct sh_merge_scratch *s, const uint32_t *id, int64_t i)
{
    s->rank[i] = SH_NO_RANK;
    /* The last symbol has no right neighbour. */
    if (s->next[i] < 0)
        return;
    const struct sh_pair *p = pair_of(m, id[i], id[s->next[i]]);
    s->rank[i] = p->rank;
    s->made[i] = p->id;
    if (p->rank != SH_NO_RANK)
        push(s, (uint64_t)p->rank << 32 | (uint64_t)i);
}

/* The scratch only grows; a thread keeps it from piece to piece. */
static void make_room(struct sh_merge_scratch *s, size_t n)
{
    if (n <= s->room)
        return;
    s->room = 2 * n;
    s->rank = sh_realloc(s->rank, s->room, sizeof *s->rank);
    s->made = sh_realloc(s->made, s->room, sizeof *s->made);
    s->next = sh_realloc(s->next, s->room, sizeof *s->next);
    s->prev = sh_realloc(s->prev, s->room, sizeof *s->prev);
}

/* Merge the right neighbour into symbol i. Both pairs that touch it are looked up again. */
static void join(const struct sh_merges *m, struct sh_merge_scratch *s, uint32_t *id, int64_t i)
{
    int64_t right = s->next[i], after = s->next[right];

    id[i] = s->made[i];
    s->rank[right] = SH_NO_RANK; /* its entries in the heap are stale */
    s->next[i] = after;
    if (after >= 0)
        s->prev[after] = i;
    offer(m, s, id, i);
    if (s->prev[i] >= 0)
        offer(m, s, id, s->prev[i]);
}

/* An entry is stale if the pair at its place has a different rank by now. Equal ranks mean equal pairs: the left one
 * comes first. */
static size_t merge_by_heap(const struct sh_merges *m, struct sh_merge_scratch *s, uint32_t *id, size_t n)
{
    size_t kept = 0;

    make_room(s, n);
    s->heap_n = 0;
    for (size_t i = 0; i < n; i++) {
        s->next[i] = i + 1 < n ? (int64_t)i + 1 : -1;
        s->prev[i] = (int64_t)i - 1;
    }
    for (size_t i = 0; i < n; i++)
        offer(m, s, id, (int64_t)i);
    while (s->heap_n > 0) {
        uint64_t top = pop(s);
        int64_t i = (int64_t)(top & UINT32_MAX);
        /* Otherwise the entry is stale. */
        if (s->rank[i] == top >> 32)
            join(m, s, id, i);
    }
    /* Symbol 0 is never merged into another, so the list begins there. */
    for (int64_t i = 0; i >= 0; i = s->next[i])
        id[kept++] = id[i];
    return kept;
}

/* Merges ids [n] in place. */
size_t sh_merge(const struct sh_merges *m, struct sh_merge_scratch *s, uint32_t *ids, size_t n)
{
    return n < 2 ? n : n <= SCANNED ? merge_by_scan(m, ids, n) : merge_by_heap(m, s, ids, n);
}
