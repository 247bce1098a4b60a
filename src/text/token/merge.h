/* Byte pair encoding: the pair of neighbours with the lowest rank is merged into one, again and again. Local; any
 * thread may read the table, each thread needs its own scratch. */
#ifndef IO_TOKEN_MERGE_H
#define IO_TOKEN_MERGE_H

#include <stddef.h>
#include <stdint.h>

struct sh_pair {
    uint64_t key;      /* left << 32 | right */
    uint32_t rank, id; /* rank SH_NO_RANK: the row is free */
};

#define SH_NO_RANK UINT32_MAX

struct sh_merges {
    struct sh_pair *row; /* [mask + 1] */
    uint32_t mask;
    uint32_t
        *bit; /* [(mask + 1) / 4]: eight bits per row, set if a pair may be there: most pairs looked up are not there */
};

void sh_merges_init(struct sh_merges *m, size_t n);
void sh_merges_free(struct sh_merges *m);

/* Add a pair. A later rank replaces an earlier one, as in a map that is filled in order. */
void sh_merges_put(struct sh_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

struct sh_merge_scratch {
    uint32_t *rank, *made; /* for the pair of a symbol and its right neighbour */
    int64_t *next, *prev;
    uint64_t *heap; /* rank << 32 | place */
    size_t room, heap_n, heap_room;
};
void sh_merge_scratch_free(struct sh_merge_scratch *s);

/* Merge ids [n] in place; returns how many remain. Cost: n^2 / 4 comparisons up to 64 symbols, n log n above. */
size_t sh_merge(const struct sh_merges *m, struct sh_merge_scratch *s, uint32_t *ids, size_t n);

#endif
