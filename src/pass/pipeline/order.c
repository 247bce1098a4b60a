#include "src/pass/pipeline/order.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

void sh_pipe_items(int stages, int place, int micro_steps, struct sh_pipe_item *items)
{
    int ahead = stages - 1 - place, forward = 0, backward = 0, n = 0;

    while (backward < micro_steps) {
        if (forward < micro_steps && forward <= backward + ahead)
            items[n++] = (struct sh_pipe_item){false, forward++};
        else
            items[n++] = (struct sh_pipe_item){true, backward++};
    }
}

/* With the blocks that the first and the last stage lack, all have an equal share. */
static int blocks_of(int layers, int stages, int place, int first_less, int last_less)
{
    int all = layers + first_less + last_less, n = all / stages + (place < all % stages);

    return n - (place == 0 ? first_less : 0) - (place == stages - 1 ? last_less : 0);
}

struct sh_pipe_blocks sh_pipe_blocks(int layers, int stages, int place, int first_less, int last_less)
{
    struct sh_pipe_blocks b = {0};

    for (int i = 0; i < place; i++)
        b.first += blocks_of(layers, stages, i, first_less, last_less);
    b.last = b.first + blocks_of(layers, stages, place, first_less, last_less);
    return b;
}

bool sh_pipe_divides(int layers, int stages, int first_less, int last_less)
{
    for (int i = 0; i < stages; i++)
        if (blocks_of(layers, stages, i, first_less, last_less) < 1)
            return false;
    return true;
}

/* When each forward and each backward of a stage ends; an item begins once the stage is free and what it needs is there. */
struct clock {
    int micro_steps;
    double *forward, *backward; /* [stages][micro_steps]; 0: not yet */
};

/* Returns whether the item could be timed; *now is when the stage is free. */
static bool run(struct clock *c, int stages, int place, const struct sh_pipe_item *item, double *now)
{
    double *ends = item->backward ? c->backward : c->forward, needs = 0;
    int from = item->backward ? place + 1 : place - 1, at = place * c->micro_steps + item->micro;

    if (from >= 0 && from < stages)
        needs = ends[from * c->micro_steps + item->micro];
    else if (item->backward)
        needs = c->forward[at];
    if (needs == 0 && (item->backward || place > 0))
        return false;
    *now = fmax(*now, needs) + (item->backward ? 2 : 1);
    ends[at] = *now;
    return true;
}

double sh_pipe_bubble(int stages, int micro_steps)
{
    size_t n = (size_t)stages * (size_t)micro_steps;
    struct sh_pipe_item *items = sh_calloc(2 * n, sizeof *items);
    struct clock c = {micro_steps, sh_calloc(n, sizeof(double)), sh_calloc(n, sizeof(double))};
    int *at = sh_calloc((size_t)stages, sizeof *at), left = stages;
    double *now = sh_calloc((size_t)stages, sizeof *now), end = 0;

    for (int i = 0; i < stages; i++)
        sh_pipe_items(stages, i, micro_steps, items + (size_t)i * 2 * (size_t)micro_steps);
    while (left > 0)
        for (int i = 0; i < stages; i++)
            while (at[i] < 2 * micro_steps && run(&c, stages, i, &items[i * 2 * micro_steps + at[i]], &now[i]) &&
                   ++at[i] == 2 * micro_steps)
                left--;
    for (int i = 0; i < stages; i++)
        end = fmax(end, now[i]);
    free(items);
    free(c.forward);
    free(c.backward);
    free(at);
    free(now);
    return end / (3 * micro_steps) - 1;
}
