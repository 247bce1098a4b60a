/* The second round of the search: neighbours of the best results, one change at a time. */
#include "src/tools/predict/search/state.h"

#include "src/cost/machine.h"

/* FINE, PLAIN: how many results are refined, of all and of those that only shard. */
enum { FINE = 6, PLAIN = 3, MOST_TILES = 4 };

/* Try a finer neighbour of a result, and keep it if it fits and is faster. */
static sh_rc refine(struct sh_search_state *st, struct sh_search_found f, double than)
{
    sh_rc rc = sh_search_try(st, &f);

    if (rc == SH_OK && f.seconds < than * 0.9995)
        sh_search_keep(st, &f);
    return rc == SH_E_MEMORY || rc == SH_E_USAGE ? SH_OK : rc;
}

/* float16 requires reduction in float32, and equal bits on every mesh require sums that do not round. */
static bool may_round(const struct sh_search *s)
{
    return s->may_round && s->cfg->training.mixed_precision_param != SH_PRECISION_FLOAT16 &&
           s->cfg->training.reproducible != SH_REPRODUCIBLE_MESH;
}

/* Only GPUs have such kernels, and equal bits on every mesh leave no choice. */
static bool may_reorder(const struct sh_search *s)
{
    return s->may_reorder && s->cfg->training.deterministic && sh_machine_is_gpu(s->machine) &&
           s->cfg->training.reproducible != SH_REPRODUCIBLE_MESH;
}

/* Experts spread over 2, 4, ... ranks that divide them and the shard group, and lie alike to nodes in every group. */
static sh_rc spread_experts(struct sh_search_state *st, struct sh_search_found f)
{
    int experts = st->s->cfg->model.n_experts, node = sh_search_node(st->s, &f);
    double than = f.seconds;

    for (f.expert = 2; experts && f.expert <= st->s->ranks_per_node; f.expert *= 2)
        if (experts % f.expert == 0 && f.shard % f.expert == 0 &&
            (node % (f.context * f.expert) == 0 || f.context * f.expert % node == 0))
            SH_TRY(refine(st, f, than));
    return SH_OK;
}

/* Sequences cut over more ranks of a node: as many micro-steps more, each with less to keep. */
static sh_rc cut_sequences(struct sh_search_state *st, struct sh_search_found f)
{
    double than = f.seconds;
    int first = f.context, micro_steps = f.micro_steps;

    for (f.context = 2 * first; f.context <= sh_search_node(st->s, &f); f.context *= 2) {
        sh_rc rc;

        if (!sh_search_takes_context(st, &f, f.context) || f.shard % f.context)
            continue;
        f.micro_steps = micro_steps * f.context / first;
        rc = sh_search_find_mode(st, &f);
        if (rc == SH_OK && f.seconds < than * 0.9995)
            sh_search_keep(st, &f);
        if (rc != SH_OK && rc != SH_E_MEMORY && rc != SH_E_USAGE)
            return rc;
    }
    return SH_OK;
}

/* Rows exchanged in more tiles, beside products. */
static sh_rc cut_exchanges(struct sh_search_state *st, struct sh_search_found f)
{
    double than = f.seconds;

    for (f.stripes *= 2; f.tensor > 1 && f.stripes <= MOST_TILES; f.stripes *= 2)
        SH_TRY(refine(st, f, than));
    return SH_OK;
}

/* The best of interleaved chunks of fewer blocks, with rows exchanged in as many tiles or twice as many. */
static sh_rc cut_chunks(struct sh_search_state *st, struct sh_search_found f)
{
    struct sh_search_found best = f;
    int layers = st->s->cfg->model.n_layers;

    f.schedule = SH_SCHEDULE_INTERLEAVED;
    for (int chunks = 2;
         f.pipeline > 1 && (chunks == 2 || layers % (f.pipeline * chunks) == 0) && chunks <= SH_SEARCH_CHUNKS;
         chunks *= 2)
        for (int twice = 0; twice <= (f.tensor > 1 && 2 * f.stripes <= MOST_TILES); twice++) {
            struct sh_search_found other = f;
            sh_rc rc;

            other.chunk = chunks == 2 ? f.chunk : layers / (f.pipeline * chunks);
            other.stripes <<= twice;
            rc = sh_search_try(st, &other);
            if (rc == SH_OK && other.seconds < best.seconds * 0.9995)
                best = other;
            if (rc != SH_OK && rc != SH_E_MEMORY && rc != SH_E_USAGE)
                return rc;
        }
    if (best.seconds < f.seconds)
        sh_search_keep(st, &best);
    return SH_OK;
}

/* Other orders of a stage's work, and rows exchanged in more tiles with them; those that such micro-steps or blocks rule out
 * are passed over. */
static sh_rc change_schedule(struct sh_search_state *st, struct sh_search_found f)
{
    double than = f.seconds;
    int first = f.schedule;

    for (f.schedule = SH_SCHEDULE_1F1B; f.pipeline > 1 && f.schedule < SH_SCHEDULE_INTERLEAVED; f.schedule++)
        if (f.schedule != first) {
            SH_TRY(refine(st, f, than));
            SH_TRY(cut_exchanges(st, f));
        }
    return cut_chunks(st, f);
}

/* As much as the memory has room for; smaller micro-batches leave more of it. */
static sh_rc recompute_less(struct sh_search_state *st, struct sh_search_found f)
{
    double than = f.seconds;

    f.mode = SH_RECOMPUTE_MEMORY_BUDGET;
    SH_TRY(refine(st, f, than));
    while (f.local_batch % 2 == 0) {
        f.local_batch /= 2;
        f.micro_steps *= 2;
        SH_TRY(refine(st, f, than));
    }
    return SH_OK;
}

/* One change at a time, from the same result: finer recomputation, deeper prefetch, resharding over a node, experts on
 * several ranks, sequences on more, exchanges in tiles, the order of stages. */
static sh_rc refine_one(struct sh_search_state *st, struct sh_search_found f)
{
    struct sh_search_found other = f;

    if (f.mode != SH_RECOMPUTE_NONE) {
        SH_TRY(recompute_less(st, f));
        other.mode = SH_RECOMPUTE_MEMORY_BUDGET;
    }
    other.forward_prefetch = other.backward_prefetch = 2;
    SH_TRY(refine(st, other, f.seconds));
    other = f;
    other.inner = sh_search_node(st->s, &f);
    if (f.shard > other.inner && f.shard % other.inner == 0 &&
        (f.strategy == SH_FULL_SHARD || f.strategy == SH_HYBRID_SHARD))
        SH_TRY(refine(st, other, f.seconds));
    SH_TRY(cut_sequences(st, f));
    SH_TRY(cut_exchanges(st, f));
    SH_TRY(change_schedule(st, f));
    return spread_experts(st, f);
}

/* What is refined: the fastest, and those that only shard. */
static int take_coarse(const struct sh_search_state *st, struct sh_search_found first[FINE + PLAIN + 1])
{
    int n = 0, plain = 0;

    for (int i = 0; i < *st->n; i++)
        if (n < FINE || (sh_search_plain(&st->found[i]) && plain < PLAIN)) {
            plain += sh_search_plain(&st->found[i]);
            first[n++] = st->found[i];
        }
    if (!plain && st->plain.seconds > 0)
        first[n++] = st->plain;
    return n;
}

static bool is_among(const struct sh_search_found *f, const struct sh_search_found *list, int n)
{
    for (int i = 0; i < n; i++)
        if (f->pipeline == list[i].pipeline && f->tensor == list[i].tensor && f->context == list[i].context &&
            f->shard == list[i].shard && f->local_batch == list[i].local_batch && f->micro_steps == list[i].micro_steps)
            return true;
    return false;
}

/* Stages that wait long with 1F1B may be fastest with another order, which may need the memory that most shards leave. */
static sh_rc refine_staged(struct sh_search_state *st, const struct sh_search_found *done, int n)
{
    for (int i = 0; i < st->n_staged; i++) {
        struct sh_search_found f = st->staged[i];
        int most = sh_search_groups(st->s, &f);

        if (!is_among(&f, done, n))
            SH_TRY(change_schedule(st, f));
        if (f.shard == most)
            continue;
        f.shard = most;
        f.replicate = 1;
        SH_TRY(change_schedule(st, f));
    }
    return SH_OK;
}

/* Results added by refinement are not refined again. */
sh_rc sh_search_refine(struct sh_search_state *st)
{
    struct sh_search_found first[FINE + PLAIN + 1];
    int n = take_coarse(st, first);

    for (int i = 0; i < n; i++) {
        SH_TRY(refine_one(st, first[i]));
        if (may_reorder(st->s)) {
            first[i].any_order = true;
            SH_TRY(refine(st, first[i], first[i].seconds));
            SH_TRY(refine_one(st, first[i]));
        }
        if (!may_round(st->s) || first[i].reduce == SH_PRECISION_BFLOAT16)
            continue;
        first[i].reduce = SH_PRECISION_BFLOAT16;
        SH_TRY(refine(st, first[i], first[i].seconds));
        SH_TRY(refine_one(st, first[i]));
    }
    return refine_staged(st, first, n);
}
