#include "src/tier/sums.h"

#include "src/base/mem.h"
#include "src/tier/tier.h"

#include <stdlib.h>

/* Extents are larger than a cell, so a cell has one or two pieces, in no particular order. */
struct cell {
    struct sh_tier_piece *pieces;
    int n, cap;
};

struct sh_tier_sums {
    int64_t n_cells;
    struct cell cells[];
};

struct sh_tier_sums *sh_tier_sums_create(int64_t bytes)
{
    int64_t n = (bytes + SH_TIER_PART_BYTES - 1) / SH_TIER_PART_BYTES;
    struct sh_tier_sums *s = sh_calloc(1, sizeof *s + (size_t)n * sizeof *s->cells);

    s->n_cells = n;
    return s;
}

void sh_tier_sums_destroy(struct sh_tier_sums *s)
{
    for (int64_t i = 0; s && i < s->n_cells; i++)
        free(s->cells[i].pieces);
    free(s);
}

static void drop_of_cell(struct cell *c, int64_t at, int64_t end)
{
    int left = 0;

    for (int i = 0; i < c->n; i++)
        if (c->pieces[i].end <= at || c->pieces[i].at >= end)
            c->pieces[left++] = c->pieces[i];
    c->n = left;
}

void sh_tier_sums_drop(struct sh_tier_sums *s, int64_t at, int64_t end)
{
    for (int64_t i = at / SH_TIER_PART_BYTES; i * SH_TIER_PART_BYTES < end; i++)
        drop_of_cell(&s->cells[i], at, end);
}

void sh_tier_sums_put(struct sh_tier_sums *s, struct sh_tier_piece piece)
{
    struct cell *c = &s->cells[piece.at / SH_TIER_PART_BYTES];

    c->pieces = sh_grow(c->pieces, c->n, &c->cap, sizeof *c->pieces);
    c->pieces[c->n++] = piece;
}

bool sh_tier_sums_find(const struct sh_tier_sums *s, int64_t at, struct sh_tier_piece *out)
{
    const struct cell *c = &s->cells[at / SH_TIER_PART_BYTES];

    for (int i = 0; i < c->n; i++)
        if (c->pieces[i].at == at) {
            *out = c->pieces[i];
            return true;
        }
    return false;
}

int64_t sh_tier_sums_cover(const struct sh_tier_sums *s, int64_t at, int64_t end)
{
    struct sh_tier_piece piece;

    while (at < end && sh_tier_sums_find(s, at, &piece) && piece.end <= end)
        at = piece.end;
    return at;
}
