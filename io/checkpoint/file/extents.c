/* A rank's pieces of tensors as extents, each of which lies in one block. A block of SH_CKPT_BLOCK_ELEMS elements has
 * one digest. It is a sum, so ranks that hold parts of the block add up their sums:
 *
 *     blocks     |-------0-------|-------1-------|---2---|
 *     piece          [ begin                 end )
 *     extents        [     a     ][      b      ) */
#include "io/checkpoint/file/extents.h"

#include "io/checkpoint/file/digest.h"
#include "src/base/mem.h"

#include <stdlib.h>

/* There is one for each block that the rank touches; their number is not known in advance. */
static void add(struct sh_ckpt_extents *extents, struct sh_ckpt_extent extent)
{
    extents->extent = sh_grow(extents->extent, extents->n, &extents->cap, sizeof *extents->extent);
    extents->extent[extents->n++] = extent;
}

/* The location of a range's data. */
struct source {
    struct sh_floats data;
    const struct sh_ckpt_far *far;
    int piece, state;
    bool zero;
    const uint64_t *early; /* [blocks that the range touches] sums made before; NULL: none */
};

/* Adds elements [begin, begin + elems) of a tensor, cut at the ends of its blocks. */
static void add_range(struct sh_ckpt_extents *extents, const struct sh_ckpt_index *index, const struct sh_ckpt_entry *e,
                      int state, int64_t begin, int64_t elems, const struct source *from)
{
    uint64_t seed = sh_ckpt_digest_seed(index->meta.step, state, e->name);
    for (int64_t done = 0, n; done < elems; done += n) {
        int64_t block = (begin + done) / SH_CKPT_BLOCK_ELEMS, at = (begin + done) % SH_CKPT_BLOCK_ELEMS;
        int64_t rest = SH_CKPT_BLOCK_ELEMS - at;
        n = elems - done < rest ? elems - done : rest;
        add(extents,
            (struct sh_ckpt_extent){.entry = e,
                                    .group = index->states.name[state],
                                    .state = state,
                                    .block = block,
                                    .at = at,
                                    .elems = n,
                                    .seed = seed,
                                    .data = sh_floats_at(from->data, done),
                                    .far = from->far,
                                    .zero = from->zero,
                                    .piece = from->piece,
                                    .piece_state = from->state,
                                    .piece_at = done,
                                    .early = from->early ? from->early + (block - begin / SH_CKPT_BLOCK_ELEMS) : NULL});
    }
}

/* Adds state s of piece i of the set; `state` is its position in the index. */
static sh_rc add_piece(struct sh_ckpt_extents *extents, const struct sh_ckpt_index *index, const int64_t *place,
                       int state, const struct sh_ckpt_set *set, int i, int s)
{
    const struct sh_ckpt_piece *p = &set->pieces[i];
    const struct sh_ckpt_entry *e = &index->entry[place ? place[p->tensor] : p->tensor];
    struct source from = {.data = p->data[s],
                          .far = p->far[s] && !set->zero[s] ? set->far : NULL,
                          .piece = i,
                          .state = s,
                          .zero = set->zero[s],
                          .early = p->early[s]};
    SH_REQUIRE(p->begin >= 0 && p->elems >= 0 && p->elems <= e->elems - p->begin);
    SH_REQUIRE(!p->far[s] || set->far);
    if (from.far || from.zero || !sh_floats_none(from.data))
        add_range(extents, index, e, state, p->begin, p->elems, &from);
    return SH_OK;
}

/* place: the index's position of each tensor of the set, since files may have another order; NULL: the same
 * order. */
sh_rc sh_ckpt_extents_of_set(struct sh_ckpt_extents *extents, const struct sh_ckpt_set *set,
                             const struct sh_ckpt_index *index, const int64_t *place)
{
    for (int s = 0; s < set->states.n; s++) {
        int state = sh_ckpt_states_find(&index->states, set->states.name[s]);
        SH_REQUIRE(state >= 0);
        for (int i = 0; i < set->n_pieces; i++) {
            SH_REQUIRE(set->pieces[i].tensor >= 0 && set->pieces[i].tensor < set->n_tensors);
            SH_TRY(add_piece(extents, index, place, state, set, i, s));
        }
    }
    return SH_OK;
}

/* The start of part `part` if `total` is cut into `parts` equal parts, without overflow. */
static int64_t cut(int64_t total, int part, int parts)
{
    return total / parts * part + total % parts * part / parts;
}

/* The first block of a tensor that starts at or after its element `at`. */
static int64_t first_block(const struct sh_ckpt_entry *e, int64_t at)
{
    int64_t block = at <= 0 ? 0 : sh_ckpt_blocks(at);
    return block < sh_ckpt_blocks(e->elems) ? block : sh_ckpt_blocks(e->elems);
}

/* The last block may be short, hence the limit. */
static int64_t block_begin(const struct sh_ckpt_entry *e, int64_t block)
{
    int64_t begin = block * SH_CKPT_BLOCK_ELEMS;
    return begin < e->elems ? begin : e->elems;
}

/* Shares are cut by elements and moved to the next block, so that each block belongs to one rank, which can compare it
 * alone. */
void sh_ckpt_extents_of_share(struct sh_ckpt_extents *extents, const struct sh_ckpt_index *index, int part, int parts)
{
    int64_t total = 0, at = 0;
    for (int64_t i = 0; i < index->n; i++)
        total += sh_ckpt_all_elems(&index->entry[i]);
    int64_t begin = cut(total, part, parts), end = cut(total, part + 1, parts);
    for (int s = 0; s < index->states.n; s++)
        for (int64_t i = 0; i < index->n; i++) {
            const struct sh_ckpt_entry *e = &index->entry[i];
            if (!sh_ckpt_has(e, s))
                continue;
            int64_t from = block_begin(e, first_block(e, begin - at)), to = block_begin(e, first_block(e, end - at));
            add_range(extents, index, e, s, from, to - from, &(struct source){.early = NULL});
            at += e->elems;
        }
}

/* Far data is not in memory: its owner hands over floats, a part at a time. */
sh_rc sh_ckpt_extent_get(const struct sh_ckpt_extent *s, int64_t at, int64_t n, float *to)
{
    return s->far->get(s->far->arg, s->piece, s->piece_state, s->piece_at + at, n, to);
}

sh_rc sh_ckpt_extent_put(const struct sh_ckpt_extent *s, int64_t at, int64_t n, const float *from)
{
    return s->far->put(s->far->arg, s->piece, s->piece_state, s->piece_at + at, n, from);
}

/* Bytes from the start of the file; a checkpoint contains only float32, 4 bytes each. */
int64_t sh_ckpt_extent_at(const struct sh_ckpt_extent *s)
{
    return s->entry->offset[s->state] + (s->block * SH_CKPT_BLOCK_ELEMS + s->at) * 4;
}

static int by_place(const void *a, const void *b)
{
    int64_t x = sh_ckpt_extent_at(a), y = sh_ckpt_extent_at(b);
    return (x > y) - (x < y);
}

/* Sorted by offset, since a disk reads and writes neighbours faster, and neighbours join into one range. */
int sh_ckpt_extents_ranges(struct sh_ckpt_extents *extents, struct sh_move_range **ranges)
{
    struct sh_move_range *r = sh_calloc((size_t)extents->n + 1, sizeof *r);
    int n = 0;
    if (extents->n > 0) /* else there is no array */
        qsort(extents->extent, (size_t)extents->n, sizeof *extents->extent, by_place);
    for (int i = 0; i < extents->n; i++) {
        int64_t at = sh_ckpt_extent_at(&extents->extent[i]), bytes = extents->extent[i].elems * 4;
        if (extents->extent[i].zero)
            continue;
        if (n > 0 && r[n - 1].at + r[n - 1].bytes == at)
            r[n - 1].bytes += bytes;
        else
            r[n++] = (struct sh_move_range){.at = at, .bytes = bytes};
    }
    *ranges = r;
    return n;
}

struct sh_ckpt_piece *sh_ckpt_pieces_far(struct sh_ckpt_set *set)
{
    struct sh_ckpt_piece *p = sh_calloc((size_t)set->n_tensors + 1, sizeof *p);
    for (int i = 0; i < set->n_tensors; i++) {
        p[i] = (struct sh_ckpt_piece){.tensor = i, .elems = set->tensors[i].elems};
        for (int s = 0; s < set->states.n; s++)
            p[i].far[s] = true;
    }
    set->pieces = p;
    set->n_pieces = set->n_tensors;
    return p;
}

/* The sum of the state was made before the write, so the change happened in memory. */
static sh_rc has_changed(const struct sh_ckpt_extent *s)
{
    int64_t first = s->block * SH_CKPT_BLOCK_ELEMS + s->at;
    return sh_fail(
        SH_E_DATA,
        "checkpoint: elements %lld to %lld of %s/%s changed between the copy of the state and the file: is the "
        "memory of this node sound?",
        (long long)first, (long long)(first + s->elems - 1), s->group, s->entry->name);
}

/* Compares only extents with an early sum, from the copy of the state: the others have nothing to compare with. */
sh_rc sh_ckpt_extents_compare(const struct sh_ckpt_extents *extents)
{
    for (int i = 0; i < extents->n; i++)
        if (extents->extent[i].early && *extents->extent[i].early != extents->extent[i].sum)
            return has_changed(&extents->extent[i]);
    return SH_OK;
}

void sh_ckpt_extents_free(struct sh_ckpt_extents *extents)
{
    free(extents->extent);
    *extents = (struct sh_ckpt_extents){0};
}
