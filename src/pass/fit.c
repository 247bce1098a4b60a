/* The least recomputation that fits: a ladder of requests, and a real plan of each to choose by.
 *
 * Level 0 keeps everything; level k is selective in the first k of L blocks; level L + k is full in the first k and
 * selective in the others. First blocks first: whatever is kept is alive at the end of the forward, whichever block it
 * belongs to; but the first blocks recompute last, when the activations of all later blocks are gone, while the last
 * block would recompute at the peak and save nothing there.
 *
 * So each level takes no more than the one before it, up to the level that takes least; if the last block sets the
 * peak, the topmost levels gain nothing, and may lose a little: from there on each takes no less
 * (tests/unit/test_pass_fit.c). If this did not hold somewhere, the answer would still fit, only with a level right
 * below it that does not.
 *
 * A stage of a pipeline has some of the blocks: levels that change only those of others take the same, and the lowest is
 * chosen. */
#include "kernels/rows.h"
#include "src/base/mem.h"
#include "src/pass/build.h"

#include <stdlib.h>

struct sh_recompute sh_pass_fit_level(int blocks, int level)
{
    if (level <= blocks)
        return (struct sh_recompute){.selective = level};
    return (struct sh_recompute){.full = level - blocks, .selective = blocks};
}

/* A plan of a large model takes a noticeable time, so each level is planned at most once. */
struct ladder {
    const struct sh_build *b;
    int64_t *bytes; /* [levels] the arena of each, 0: not planned yet */
};

/* The arena of a level, planned with everything else unchanged. */
static sh_rc arena_of(struct ladder *l, int level, int64_t *bytes)
{
    struct sh_build trial = *l->b;
    struct sh_program *p;

    if (!l->bytes[level]) {
        trial.recompute = sh_pass_fit_level(trial.model.n_layers, level);
        SH_TRY(sh_pass_weigh(&trial, &p));
        l->bytes[level] = p->arena_bytes;
        sh_program_destroy(p);
    }
    *bytes = l->bytes[level];
    return SH_OK;
}

/* A level strictly between the two. Each block adds about the same, so a straight line through the arenas of both ends
 * comes near the edge, and a second one finds its other side; after two that leave much, as at the bend between selective
 * and full, the middle is next.
 *   far  guesses in a row that have not halved the gap */
static int between(const struct ladder *l, int out, int in, int64_t most, int far)
{
    int64_t above = out > 2 * l->b->model.n_layers ? 0 : l->bytes[out], below = l->bytes[in];
    int way = in > out ? 1 : -1, gap = (in - out) * way, back;

    if (far > 1 || above <= most || below == most)
        return (in + out) / 2;
    back = (int)((double)gap * (double)(most - below) / (double)(above - below));
    return in - way * (back < 1 ? 1 : back < gap ? back : gap - 1);
}

/* Of the levels that take at most `most`, the one next to `out`: these levels are contiguous, `in` is one of them, already
 * planned, and `out`, on either side, is not. */
static sh_rc edge_of(struct ladder *l, int out, int in, int64_t most, int *edge)
{
    int far = 0;

    while (abs(in - out) > 1) {
        int gap = abs(in - out), level = between(l, out, in, most, far);
        int64_t bytes;

        SH_TRY(arena_of(l, level, &bytes));
        if (bytes <= most)
            in = level;
        else
            out = level;
        far = far < 2 && abs(in - out) > gap / 2 ? far + 1 : 0;
    }
    *edge = in;
    return SH_OK;
}

/* Whether a level takes less than *least; then the search continues from it. */
static sh_rc improves(struct ladder *l, int level, int *best, int64_t *least, bool *better)
{
    int64_t bytes;

    SH_TRY(arena_of(l, level, &bytes));
    *better = bytes < *least;
    if (*better) {
        *best = level;
        *least = bytes;
    }
    return SH_OK;
}

/* A level above `from` that fits, or the lowest of those that take least. Starts from the top level: the levels that
 * take no more than the best one so far are contiguous, and a better one is at one of their ends or between them. If
 * the ends and the middle take the same, all do. */
static sh_rc find_best(struct ladder *l, int from, int *best, int64_t *least)
{
    int below = from, above = 2 * l->b->model.n_layers + 1;
    bool better = true;

    *best = above - 1;
    SH_TRY(arena_of(l, *best, least));
    while (better && *least > l->b->limit_bytes) {
        int low, high;

        SH_TRY(edge_of(l, below, *best, *least, &low));
        SH_TRY(edge_of(l, above, *best, *least, &high));
        below = low - 1;
        above = high + 1;
        SH_TRY(improves(l, low, best, least, &better));
        if (!better)
            SH_TRY(improves(l, high, best, least, &better));
        if (!better)
            SH_TRY(improves(l, low + (high - low) / 2, best, least, &better));
        if (!better)
            *best = low;
    }
    return SH_OK;
}

/* From the present level upwards: the present one if it fits or no higher one takes less, or the lowest level above that
 * fits, or else that takes least. *level is unchanged if `from` fits. */
static sh_rc climb(struct ladder *l, int from, int *level)
{
    int64_t bytes, least;
    int best;

    SH_TRY(arena_of(l, from, &bytes));
    if (bytes <= l->b->limit_bytes || from == 2 * l->b->model.n_layers)
        return SH_OK;
    SH_TRY(find_best(l, from, &best, &least));
    *level = least < bytes ? best : from;
    return least <= l->b->limit_bytes ? edge_of(l, from, best, l->b->limit_bytes, level) : SH_OK;
}

/* The level with b->tile_rows, and its arena. */
static sh_rc climb_with(const struct sh_build *b, int *level, int64_t *bytes)
{
    struct ladder l = {.b = b, .bytes = sh_calloc(2 * (size_t)b->model.n_layers + 1, sizeof *l.bytes)};
    sh_rc rc = climb(&l, *level, level);

    if (rc == SH_OK)
        rc = arena_of(&l, *level, bytes);
    free(l.bytes);
    return rc;
}

static int64_t rows_of(const struct sh_build *b)
{
    const struct sh_mesh_shape *mesh = &b->options.mesh;

    return (int64_t)b->batch.batch * b->batch.seq / sh_group_size(mesh, mesh->context | mesh->tensor);
}

/* Whole blocks in tiles cost next to nothing, but recomputing one more costs a forward: tiles are taken if they save
 * such blocks, or if nothing fits without. */
static sh_rc try_tiles(struct sh_build *b, int from, int *level, int64_t bytes)
{
    bool fits = bytes <= b->limit_bytes;
    int with = from;

    if (!b->fit_tiles || *level <= b->model.n_layers || rows_of(b) <= SH_ROW_BLOCK)
        return SH_OK;
    b->tile_rows = SH_ROW_BLOCK;
    SH_TRY(climb_with(b, &with, &bytes));
    if (bytes <= b->limit_bytes && (!fits || with < *level))
        *level = with;
    else
        b->tile_rows = 0;
    return SH_OK;
}

/* Local; *level is in/out, so that ranks can raise each other's (src/plan/budget.c). Without b->fit nothing happens. */
sh_rc sh_pass_fit(struct sh_build *b, int *level)
{
    int from = *level;
    int64_t bytes;

    if (!b->fit)
        return SH_OK;
    if (b->fit_tiles)
        b->tile_rows = 0;
    SH_TRY(climb_with(b, level, &bytes));
    SH_TRY(try_tiles(b, from, level, bytes));
    b->recompute = sh_pass_fit_level(b->model.n_layers, *level);
    return SH_OK;
}

const char *sh_pass_recompute_text(const struct sh_build *b, char text[SH_RECOMPUTE_TEXT])
{
    if (!b->fit || sh_group_size(&b->options.mesh, b->options.mesh.pipeline) == 1)
        return sh_recompute_text(&b->recompute, b->model.n_layers, text);
    return "what each stage needs";
}

sh_rc sh_pass_widen(struct sh_build *b, int64_t *most)
{
    static const int64_t wider[] = {8192, 4096};
    const struct sh_mesh_shape *mesh = &b->options.mesh;
    int64_t all = rows_of(b), before = b->batch.chunk_rows;

    if (sh_group_index(mesh, mesh->pipeline) < sh_group_size(mesh, mesh->pipeline) - 1)
        return SH_OK;
    for (size_t i = 0; b->widen && i < sizeof wider / sizeof *wider; i++) {
        struct sh_build trial = *b;
        struct sh_program *p;
        bool fits;

        if (wider[i] > *most || wider[i] > all || wider[i] <= before)
            continue;
        trial.batch.chunk_rows = wider[i];
        SH_TRY(sh_pass_weigh(&trial, &p));
        fits = p->arena_bytes <= b->limit_bytes;
        sh_program_destroy(p);
        if (!fits)
            continue;
        *most = b->batch.chunk_rows = wider[i];
        return SH_OK;
    }
    *most = before;
    return SH_OK;
}
