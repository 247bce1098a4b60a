/* The list of results, and the least recomputation with which a choice fits. */
#include "src/tools/predict/search/state.h"

#include "kernels/rows.h"
#include "src/pass/pipeline/order.h"

#include <string.h>

/* A choice that needs that much more than the limit needs more if it shards less. */
static const double clearly = 1.02;

static const int modes[] = {SH_RECOMPUTE_NONE, SH_RECOMPUTE_SELECTIVE, SH_RECOMPUTE_FULL};

void sh_search_keep(struct sh_search_state *st, const struct sh_search_found *f)
{
    int at = *st->n;

    if (sh_search_plain(f) && f->tokens_per_second > st->plain.tokens_per_second)
        st->plain = *f;
    while (at > 0 && st->found[at - 1].tokens_per_second < f->tokens_per_second)
        at--;
    if (at == SH_SEARCH_MOST)
        return;
    if (*st->n < SH_SEARCH_MOST)
        ++*st->n;
    memmove(&st->found[at + 1], &st->found[at], (size_t)(*st->n - 1 - at) * sizeof *st->found);
    st->found[at] = *f;
}

/* The speed that ZBH1 would make of a result by 1F1B, if all stages were equally fast. */
static double by_zbh1(const struct sh_search_found *f)
{
    struct sh_pipe pipe = {.stages = f->pipeline, .micro_steps = f->micro_steps, .chunks = 1};
    double waits = sh_pipe_bubble(&pipe);

    pipe.weights_apart = true;
    return f->tokens_per_second * (1 + waits) / (1 + sh_pipe_bubble(&pipe));
}

/* One of each product of degrees: those that only shard in another way would take the places of others. */
void sh_search_keep_staged(struct sh_search_state *st, const struct sh_search_found *f)
{
    struct sh_search_found *list = st->staged;
    int at = 0;

    while (at < st->n_staged && (list[at].pipeline != f->pipeline || list[at].tensor != f->tensor))
        at++;
    if (at == SH_SEARCH_STAGED)
        at--;
    if (at < st->n_staged && by_zbh1(&list[at]) >= by_zbh1(f))
        return;
    st->n_staged += at == st->n_staged;
    for (; at > 0 && by_zbh1(&list[at - 1]) < by_zbh1(f); at--)
        list[at] = list[at - 1];
    list[at] = *f;
}

/* Whether full recomputation has rows for more than one tile. */
static bool takes_tiles(const struct sh_search *s, const struct sh_search_found *f)
{
    return !s->cfg->training.tile_rows &&
           (int64_t)f->local_batch * s->cfg->training.seq_len / f->context > SH_ROW_BLOCK;
}

/* What a rank has whole: nothing, parameters, gradients too, or all. */
static int kept_by(int strategy)
{
    static const int kept[] = {
        [SH_SHARD_GRAD_OP] = 1, [SH_HYBRID_SHARD_ZERO2] = 1, [SH_SHARD_OPTIM] = 2, [SH_NO_SHARD] = 3};

    return kept[strategy];
}

static int power_of(int64_t n)
{
    return n > 1 ? 1 + power_of(n / 2) : 0;
}

/* The largest shard groups of strategies that have as much whole for which a choice with the same degrees, batch and
 * recomputation was far too large. */
static int *too_small_for(const struct sh_search_state *st, const struct sh_search_found *f, int mode)
{
    int64_t step = (int64_t)f->local_batch * f->micro_steps * (sh_search_groups(st->s, f) / f->context);

    return st->too_small[power_of(step / st->sequences)][power_of(f->local_batch)][mode];
}

void sh_search_forget(struct sh_search_state *st)
{
    memset(st->too_small, 0, GROWN * sizeof *st->too_small);
}

/* A choice that shards less than one that was too large is not planned. */
static sh_rc try_mode(struct sh_search_state *st, int mode, struct sh_search_found *f)
{
    int *shards = st->too_small ? too_small_for(st, f, mode) : NULL, kept = kept_by(f->strategy);
    sh_rc rc;

    /* With the parameters whole, a rank's own part of them lies in these: shard_optim may need less than full_shard. */
    for (int k = kept == 2 ? 2 : 0; shards && k <= kept; k++)
        if (shards[k] >= f->shard)
            return SH_E_MEMORY;
    f->bytes = 0;
    rc = sh_search_try(st, f);
    if (rc == SH_E_MEMORY && shards && (double)f->bytes > clearly * (double)st->s->limit_bytes &&
        f->shard > shards[kept])
        shards[kept] = f->shard;
    return rc;
}

sh_rc sh_search_find_mode(struct sh_search_state *st, struct sh_search_found *f)
{
    const int n = sizeof modes / sizeof *modes;
    sh_rc rc = SH_E_MEMORY;

    f->tiles = false;
    for (int i = 0; i < n && rc == SH_E_MEMORY; i++) {
        f->mode = modes[i];
        rc = try_mode(st, i, f);
    }
    f->tiles = rc == SH_E_MEMORY && takes_tiles(st->s, f);
    return f->tiles ? try_mode(st, n, f) : rc;
}

bool sh_search_takes_context(const struct sh_search_state *st, const struct sh_search_found *f, int degree)
{
    const struct sh_search *s = st->s;
    int groups = sh_search_groups(s, f), node = sh_search_node(s, f);

    if (degree == s->cfg->parallelism.context_parallel_degree)
        return st->sequences * degree % groups == 0;
    return (node % degree == 0 || degree % node == 0) && sh_config_cuts_sequences(s->cfg, degree) &&
           s->cfg->training.reproducible != SH_REPRODUCIBLE_MESH && st->sequences * degree % groups == 0;
}
