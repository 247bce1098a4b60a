/* The least recomputation that fits: a ladder of wishes, and the real plan of each to choose by.
 *
 * Level 0 keeps all; level k is selective in the first k of L blocks; level L + k is full in the first k and selective in
 * the others. First blocks first: all that is kept is alive at the end of the forward, whatever its block; but what the
 * first blocks compute again they do last, when the activations of all later ones are gone, while the last block would do
 * it at the peak and save nothing there. */
#include "src/pass/build.h"

static struct sh_recompute of_level(int blocks, int level)
{
    if (level <= blocks)
        return (struct sh_recompute){.selective = level};
    return (struct sh_recompute){.full = level - blocks, .selective = blocks};
}

static sh_rc arena_of(const struct sh_build *b, int level, int64_t *bytes)
{
    struct sh_build trial = *b;
    struct sh_program *p;

    trial.recompute = of_level(b->model.layers, level);
    trial.limit_bytes = 0;
    SH_TRY(sh_pass_build(&trial, &p));
    *bytes = p->arena_bytes;
    sh_program_destroy(p);
    return SH_OK;
}

/* From the top down to the first level that fits, or to the one that takes least: where the last block sets the peak,
 * the topmost levels gain nothing, and may lose a little. */
static sh_rc find_top(const struct sh_build *b, int from, int *top, int64_t *least)
{
    int64_t bytes;

    *top = 2 * b->model.layers;
    SH_TRY(arena_of(b, *top, least));
    for (int level = *top - 1; *least > b->limit_bytes && level > from; level--) {
        SH_TRY(arena_of(b, level, &bytes));
        if (bytes <= *least) {
            *least = bytes;
            *top = level;
        }
    }
    return SH_OK;
}

/* Below the one that takes least, each level takes no more than the one before it (tests/unit/test_pass_fit.c). Were
 * there one that did, the answer would still fit, with one that does not right below it. */
static sh_rc bisect(const struct sh_build *b, int too_low, int fits, int *level)
{
    while (fits - too_low > 1) {
        int middle = too_low + (fits - too_low) / 2;
        int64_t bytes;

        SH_TRY(arena_of(b, middle, &bytes));
        if (bytes <= b->limit_bytes)
            fits = middle;
        else
            too_low = middle;
    }
    *level = fits;
    return SH_OK;
}

sh_rc sh_pass_fit(struct sh_build *b, int *level)
{
    int from = *level, top;
    int64_t bytes;

    if (!b->fit)
        return SH_OK;
    SH_TRY(arena_of(b, from, &bytes));
    if (bytes > b->limit_bytes) {
        SH_TRY(find_top(b, from, &top, &bytes));
        *level = top;
        if (bytes <= b->limit_bytes)
            SH_TRY(bisect(b, from, top, level));
    }
    b->recompute = of_level(b->model.layers, *level);
    return SH_OK;
}
