#include "src/layout/layout.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* A unit of 1,000 elements over 4 ranks: 250 each, rounded up to 256. So rank 0 owns [0, 256), rank 1 [256, 512), rank
 * 2 [512, 768) and rank 3 [768, 1000), with 24 elements of padding in its chunk. Over 32 ranks a chunk is 64: ranks 0
 * to 14 own 64 elements, rank 15 owns the last 40, and the others nothing. */
int64_t sh_layout_chunk(int64_t elems, int size)
{
    return round_up((elems + size - 1) / size, SH_LAYOUT_ALIGN);
}

struct sh_range sh_layout_owned_chunk(int64_t elems, int64_t chunk, int index)
{
    int64_t begin = min64(chunk * index, elems);

    return (struct sh_range){.begin = begin, .end = min64(begin + chunk, elems)};
}

struct sh_range sh_layout_owned(int64_t elems, int size, int index)
{
    return sh_layout_owned_chunk(elems, sh_layout_chunk(elems, size), index);
}

/* An empty result keeps begin <= end, so that lengths are never negative. */
struct sh_range sh_layout_intersect(struct sh_range a, struct sh_range b)
{
    int64_t begin = max64(a.begin, b.begin);

    return (struct sh_range){.begin = begin, .end = max64(begin, min64(a.end, b.end))};
}

struct sh_range sh_layout_split(struct sh_range range, int parts, int index)
{
    struct sh_range part = sh_layout_owned(range.end - range.begin, parts, index);

    return (struct sh_range){.begin = range.begin + part.begin, .end = range.begin + part.end};
}
