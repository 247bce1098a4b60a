#include "src/pass/pipeline/order.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

/* Forwards that a stage has started before its first backward. */
static int ahead_of(const struct sh_pipe *pipe, int place)
{
    int after = pipe->stages - 1 - place;

    return pipe->chunks == 1 ? after : 2 * after + (pipe->chunks - 1) * pipe->stages;
}

static enum sh_pipe_part next_part(const struct sh_pipe *pipe, int place, const int *done)
{
    int n = pipe->micro_steps * pipe->chunks, owed = done[SH_PIPE_BACKWARD] - done[SH_PIPE_WEIGHTS];

    if (pipe->weights_apart && (owed > place || done[SH_PIPE_BACKWARD] == n))
        return SH_PIPE_WEIGHTS;
    if (done[SH_PIPE_FORWARD] < n && done[SH_PIPE_FORWARD] <= done[SH_PIPE_BACKWARD] + ahead_of(pipe, place))
        return SH_PIPE_FORWARD;
    return SH_PIPE_BACKWARD;
}

/* The n-th of a part: a group of micro-steps in each chunk in turn; backwards begin with the last chunk. */
static struct sh_pipe_item item_of(const struct sh_pipe *pipe, enum sh_pipe_part part, int n)
{
    int in_chunk = pipe->chunks == 1 ? pipe->micro_steps : pipe->stages, all = in_chunk * pipe->chunks;
    int chunk = n % all / in_chunk;

    return (struct sh_pipe_item){part, n / all * in_chunk + n % in_chunk,
                                 part == SH_PIPE_FORWARD ? chunk : pipe->chunks - 1 - chunk};
}

int sh_pipe_items(const struct sh_pipe *pipe, int place, struct sh_pipe_item *items)
{
    int done[SH_PIPE_PARTS] = {0}, n = (pipe->weights_apart ? 3 : 2) * pipe->micro_steps * pipe->chunks;

    for (int i = 0; i < n; i++) {
        enum sh_pipe_part part = next_part(pipe, place, done);

        items[i] = item_of(pipe, part, done[part]++);
    }
    return n;
}

/* When each part of each micro-step ends in each chunk of all stages; an item begins once the stage is free and what it
 * needs is there. */
struct clock {
    const struct sh_pipe *pipe;
    double *ends; /* [stages chunks][SH_PIPE_PARTS][micro_steps]; 0: not yet */
};

static double *end_of(const struct clock *c, int chunk, enum sh_pipe_part part, int micro)
{
    return &c->ends[(chunk * SH_PIPE_PARTS + part) * c->pipe->micro_steps + micro];
}

/* When what an item needs from elsewhere is there; 0: not yet known. The order of a stage sees to the rest. */
static double needs(const struct clock *c, int chunk, const struct sh_pipe_item *item)
{
    bool last = chunk == c->pipe->stages * c->pipe->chunks - 1;

    if (item->part == SH_PIPE_BACKWARD && !last)
        return *end_of(c, chunk + 1, SH_PIPE_BACKWARD, item->micro);
    return *end_of(c, chunk - (item->part == SH_PIPE_FORWARD), SH_PIPE_FORWARD, item->micro);
}

/* Returns whether the item could be timed; *now is when the stage is free. */
static bool run(const struct clock *c, int place, const struct sh_pipe_item *item, double *now)
{
    int chunk = item->chunk * c->pipe->stages + place;
    bool first = item->part == SH_PIPE_FORWARD && chunk == 0;
    double from = first ? 0 : needs(c, chunk, item);

    if (from == 0 && !first)
        return false;
    *now = fmax(*now, from) + (item->part == SH_PIPE_BACKWARD && !c->pipe->weights_apart ? 2 : 1);
    *end_of(c, chunk, item->part, item->micro) = *now;
    return true;
}

double sh_pipe_bubble(const struct sh_pipe *pipe)
{
    int busy = 3 * pipe->micro_steps * pipe->chunks;
    size_t most = (size_t)SH_PIPE_PARTS * (size_t)pipe->micro_steps * (size_t)pipe->chunks,
           stages = (size_t)pipe->stages;
    struct sh_pipe_item *items = sh_calloc(stages * most, sizeof *items);
    struct clock c = {pipe, sh_calloc(stages * most, sizeof(double))};
    int *at = sh_calloc(stages, sizeof *at), left = pipe->stages, n = 0;
    double *now = sh_calloc(stages, sizeof *now), end = 0;

    for (int i = 0; i < pipe->stages; i++)
        n = sh_pipe_items(pipe, i, items + (size_t)i * most);
    while (left > 0)
        for (int i = 0; i < pipe->stages; i++)
            while (at[i] < n && run(&c, i, &items[(size_t)i * most + (size_t)at[i]], &now[i]) && ++at[i] == n)
                left--;
    for (int i = 0; i < pipe->stages; i++)
        end = fmax(end, now[i]);
    free(items);
    free(c.ends);
    free(at);
    free(now);
    return end / busy - 1;
}
