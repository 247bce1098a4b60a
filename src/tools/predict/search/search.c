/* The search has two rounds. The first tries every strategy, mesh and micro-batch, with the least of three degrees of
 * recomputation that fits: none, selective, full. The second refines the best of those: the ladder of src/pass/fit.c,
 * prefetch, resharding over a node.
 *
 * What need not be planned, as it would not change the list: a mesh whose parameters and states alone do not fit, or that shards less
 * than one that was far too large with all else equal; and stages of which the first one alone is too slow. */
#include "src/tools/predict/search/state.h"

#include "src/base/string/str.h"
#include "src/cost/step.h"
#include "src/optim/optim.h"
#include "src/plan/request.h"

#include <limits.h>
#include <malloc.h>

/* MOST_BATCH: maximum sequences of a micro-batch. */
enum { MOST_BATCH = 64, MOST_SHARD = 4 };

static const int strategies[] = {SH_FULL_SHARD,  SH_HYBRID_SHARD,       SH_SHARD_GRAD_OP,
                                 SH_SHARD_OPTIM, SH_HYBRID_SHARD_ZERO2, SH_NO_SHARD};

/* Whether the strategy accepts groups of ranks that are replicas of each other. */
static bool takes_replicas(int strategy)
{
    return strategy == SH_HYBRID_SHARD || strategy == SH_HYBRID_SHARD_ZERO2 || strategy == SH_SHARD_OPTIM;
}

static sh_rc try_modes(struct sh_search_state *st, struct sh_search_found f)
{
    sh_rc rc = sh_search_find_mode(st, &f);

    if (rc == SH_OK) {
        st->kept = true;
        sh_search_keep(st, &f);
        if (f.pipeline > 1 && f.schedule == SH_SCHEDULE_1F1B)
            sh_search_keep_staged(st, &f);
    }
    return rc;
}

/* The minimum bytes per element that a device keeps of the masters: all four, or with bfloat16 one half if the other
 * half is in a lower tier. */
static double least_master(const struct sh_config *cfg, bool states_away, bool parameters_away)
{
    bool halves = cfg->training.mixed_precision_param == SH_PRECISION_BFLOAT16;

    if (parameters_away)
        return halves && !states_away ? 2 : 0;
    return states_away ? 2 : 4;
}

/* Find the minimum bytes of what is trained: masters and optimizer states, and two bytes in the compute type; and the products of
 * a token. */
static void find_least(struct sh_search_state *st)
{
    const struct sh_config *cfg = st->s->cfg;
    const bool budget = cfg->offload.mode == SH_OFFLOAD_BUDGET;
    const bool away = budget || cfg->offload.optimizer != SH_OFFLOAD_NONE;
    const bool parameters = cfg->offload.parameters != SH_OFFLOAD_NONE || (budget && sh_machine_is_gpu(st->s->machine));
    const struct sh_adapters adapters = sh_request_adapters(cfg);
    const double trained = (double)sh_model_trained(&cfg->model, &adapters);
    static const double bytes_of[] = {[SH_PRECISION_FLOAT32] = 4, [SH_PRECISION_BFLOAT16] = 2, [SH_PRECISION_INT8] = 1};
    const double state_bytes = bytes_of[cfg->optimizer.state_dtype];
    const double mean = cfg->optimizer.ema_decay > 0 ? 4 : 0;
    const double states = away ? 0 : state_bytes * sh_optim_of(cfg->optimizer.name)->n_states + mean;

    st->token_flops =
        sh_model_flops_of(&cfg->model, &(struct sh_model_batch){.seq = cfg->training.seq_len, .adapters = adapters})
            .matmul;
    st->least_bytes = (least_master(cfg, away, parameters) + states) * trained;
    st->least_resident = 2 * trained;
}

/* A lower bound: activations and gathered units come on top. A choice that fails here need not be planned, which takes
 * far longer. */
static bool could_fit(const struct sh_search_state *st, const struct sh_search_found *f)
{
    int owners = f->strategy == SH_NO_SHARD ? 1 : f->shard, parts = f->tensor * f->pipeline;
    double bytes = st->least_bytes / owners;

    if (f->strategy == SH_SHARD_OPTIM)
        bytes += st->least_resident * (1 - 1.0 / owners);
    else if (f->pipeline > 1 && owners > 1) /* gathered, with gradients in float32, for the whole step */
        bytes += 3 * st->least_resident;
    bytes /= parts;
    return bytes <= (double)st->s->limit_bytes;
}

/* No choice is faster than its products at the best rate, plus the waits of its stages, which the smallest chunks cut to an
 * eighth of 1F1B's. One for which even this bound is below the best result is not planned. */
static bool could_win(const struct sh_search_state *st, const struct sh_search_found *f)
{
    bool small = st->s->cfg->parallelism.pipeline_parallel_layers_per_stage >
                 0; /* chunks: any bound could be too high */
    const struct sh_machine *m = st->s->machine;
    double peak = st->s->cfg->training.mixed_precision_param == SH_PRECISION_BFLOAT16 ? m->peak.bfloat16
                                                                                      : m->peak.float32;
    double rate = st->s->ranks * peak * m->product.share / st->token_flops;

    return *st->n < SH_SEARCH_MOST / 2 ||
           rate / (1 + (small ? 0 : (f->pipeline - 1) / (double)SH_SEARCH_CHUNKS / f->micro_steps)) >
               st->found[0].tokens_per_second;
}

/* Try micro-batches of 1, 2, 4, ... that divide a rank's share of a step. */
static sh_rc try_micro_batches(struct sh_search_state *st, struct sh_search_found f, int64_t each, sh_rc *last)
{
    for (int batch = 1; batch <= each && batch <= MOST_BATCH; batch *= 2) {
        sh_rc rc;

        if (each % batch)
            continue;
        if (!could_fit(st, &f)) {
            st->lacks_memory = true;
            break;
        }
        f.local_batch = batch;
        f.micro_steps = (int)(each / batch);
        if (f.pipeline > 1 && !could_win(st, &f))
            break;
        rc = try_modes(st, f);
        st->lacks_memory |= rc == SH_E_MEMORY;
        if (rc == SH_E_MEMORY)
            break; /* a larger one needs more */
        if (rc != SH_OK && rc != SH_E_USAGE)
            return rc;
        *last = rc == SH_OK ? *last : rc;
    }
    return SH_OK;
}

/* Try the batch as requested, then doubled, if the user allows that. */
static sh_rc try_batches(struct sh_search_state *st, struct sh_search_found f, sh_rc *last)
{
    for (int times = 1; times <= (st->s->may_grow ? SH_SEARCH_GROWS : 1); times *= 2)
        SH_TRY(try_micro_batches(st, f, times * st->sequences * f.context / sh_search_groups(st->s, &f), last));
    return SH_OK;
}

/* Divisors of the ranks of a node, and multiples of them, that divide the number of ranks. */
static bool is_shard(const struct sh_search *s, const struct sh_search_found *f, int shard)
{
    int node = sh_search_node(s, f), strategy = f->strategy, groups = sh_search_groups(s, f);

    if (groups % shard)
        return false;
    if (strategy == SH_NO_SHARD)
        return shard == 1;
    if (!takes_replicas(strategy))
        return shard == groups;
    if (shard == groups || shard == 1)
        return strategy == SH_SHARD_OPTIM && shard > 1;
    if (s->quick)
        return shard >= node && shard % node == 0;
    if (f->pipeline > 1) /* the optimizer's states are all that is cut */
        return shard >= node && shard % node == 0 && shard <= MOST_SHARD * node;
    return shard < node ? node % shard == 0 : shard % node == 0;
}

/* From the largest shard group down: it needs the least memory, so something fits early. */
static sh_rc try_meshes(struct sh_search_state *st, struct sh_search_found degrees, int strategy, sh_rc *last)
{
    const struct sh_search *s = st->s;
    struct sh_search_found f = {.strategy = strategy,
                                .inner = 1,
                                .expert = 1,
                                .context = degrees.context,
                                .tensor = degrees.tensor,
                                .stripes = s->cfg->parallelism.tensor_parallel_degree > 1
                                               ? s->cfg->parallelism.tensor_parallel_tiles
                                               : 1, /* those of a file mean nothing without a degree */
                                .pipeline = degrees.pipeline,
                                .chunk = degrees.chunk,
                                .reduce = s->cfg->training.mixed_precision_reduce,
                                .forward_prefetch = s->cfg->parallelism.forward_prefetch,
                                .backward_prefetch = s->cfg->parallelism.backward_prefetch};

    for (int shard = sh_search_groups(s, &f); shard >= 1; shard--) {
        if (!is_shard(s, &f, shard))
            continue;
        f.shard = shard;
        f.replicate = sh_search_groups(s, &f) / shard;
        SH_TRY(try_batches(st, f, last));
    }
    return SH_OK;
}

/* If quick, only the first two of the list, full_shard and hybrid_shard. Stages keep their parameters, so shard_optim gathers
 * no more than others. Sequences are cut over as few ranks as possible. */
static sh_rc try_contexts(struct sh_search_state *st, struct sh_search_found f, sh_rc *last)
{
    size_t n = st->s->quick ? 2 : sizeof strategies / sizeof *strategies;
    int first = st->s->cfg->parallelism.context_parallel_degree;

    st->kept = false;
    for (f.context = first; !st->kept && (f.context == first || f.context <= sh_search_most_context(st, &f));
         f.context *= 2) {
        sh_search_forget(st);
        for (size_t i = 0; i < n && sh_search_takes_context(st, &f, f.context); i++)
            if (f.pipeline == 1 || strategies[i] == SH_SHARD_OPTIM)
                SH_TRY(try_meshes(st, f, strategies[i], last));
    }
    return SH_OK;
}

static struct sh_search_found degrees_of(const struct sh_config *cfg)
{
    return (struct sh_search_found){.tensor = cfg->parallelism.tensor_parallel_degree,
                                    .pipeline = cfg->parallelism.pipeline_parallel_degree,
                                    .context = cfg->parallelism.context_parallel_degree,
                                    .schedule = cfg->parallelism.pipeline_parallel_schedule,
                                    .chunk = cfg->parallelism.pipeline_parallel_layers_per_stage};
}

/* Whether parts of matrices or layers could help: nothing fits, or the best recomputes or cuts sequences. */
static bool wants_parts(const struct sh_search_state *st)
{
    const struct sh_search_found *best = st->found;

    return !st->s->quick && (!*st->n || best->mode != SH_RECOMPUTE_NONE || best->context > 1 || st->s->may_stage);
}

static int most_stages(const struct sh_search_state *st)
{
    return st->s->may_stage ? st->s->cfg->model.n_layers : st->s->cfg->parallelism.pipeline_parallel_degree;
}

static int most_parts(const struct sh_search_state *st)
{
    return st->s->quick ? st->s->cfg->parallelism.tensor_parallel_degree : st->s->ranks_per_node;
}

/* Ranks that share matrices are in a node, as rank 0's are, which is priced: others would be across two if the degree does not
 * divide a node. The configuration's own is taken as it is. */
static bool divides(const struct sh_search *s, const struct sh_search_found *f)
{
    return s->ranks % (f->pipeline * f->tensor) == 0 &&
           (f->tensor == s->cfg->parallelism.tensor_parallel_degree || s->ranks_per_node % f->tensor == 0);
}

/* As configured, then with more ranks that share matrices, and more stages. */
static sh_rc coarse(struct sh_search_state *st, sh_rc *last)
{
    struct sh_search_found first = degrees_of(st->s->cfg), f = first;

    SH_TRY(try_contexts(st, first, last));
    if (!wants_parts(st))
        return SH_OK;
    for (f.pipeline = first.pipeline; f.pipeline <= most_stages(st); f.pipeline *= 2)
        for (f.tensor = first.tensor; f.tensor <= most_parts(st); f.tensor *= 2)
            if (f.pipeline * f.tensor > first.pipeline * first.tensor && divides(st->s, &f))
                SH_TRY(try_contexts(st, f, last));
    return SH_OK;
}

/* A penalty for what a user has to understand. Simplest are the requested numbers, one axis instead of two, no budget,
 * no resharding, the usual prefetch. */
static int complexity(const struct sh_search *s, int64_t sequences, const struct sh_search_found *f)
{
    return 8 * (f->reduce != s->cfg->training.mixed_precision_reduce) + 8 * f->any_order +
           8 * ((int64_t)f->local_batch * f->micro_steps * (sh_search_groups(s, f) / f->context) != sequences) +
           4 * (f->tensor > s->cfg->parallelism.tensor_parallel_degree) +
           (f->stripes > s->cfg->parallelism.tensor_parallel_tiles) +
           4 * (f->pipeline > s->cfg->parallelism.pipeline_parallel_degree) +
           4 * (f->strategy == SH_HYBRID_SHARD_ZERO2) + 2 * (f->shard > 1 && f->replicate > 1) + 2 * (f->inner > 1) +
           2 * (f->expert > 1) + 2 * (f->context > s->cfg->parallelism.context_parallel_degree) + f->tiles +
           2 * (f->mode == SH_RECOMPUTE_MEMORY_BUDGET) + (f->forward_prefetch > 1) + (f->micro_steps > 1);
}

/* Results within 2 % count as equal, since a prediction is not more precise than that; the simplest of them is the
 * best. Pareto: no faster result takes as little memory. */
static void mark(const struct sh_search_state *st, struct sh_search_found *found, int n)
{
    const double equal = 1.02;
    int best = 0;

    for (int i = 0; i < n; i++) {
        if (found[i].tokens_per_second * equal >= found[0].tokens_per_second &&
            complexity(st->s, st->sequences, &found[i]) < complexity(st->s, st->sequences, &found[best]))
            best = i;
        found[i].pareto = true;
        for (int k = 0; k < i; k++)
            found[i].pareto &= found[k].bytes > found[i].bytes;
    }
    if (n)
        found[best].best = true;
    for (int i = 0; i < n; i++)
        if (sh_search_plain(&found[i])) {
            found[i].plain = true;
            break;
        }
}

/* The fastest that only shards stays in the list, to show what all else brings. */
static void keep_plain(struct sh_search_state *st)
{
    int n = *st->n;

    for (int i = 0; i < n; i++)
        if (sh_search_plain(&st->found[i]))
            return;
    if (st->plain.seconds > 0)
        st->found[n - 1] = st->plain;
}

static bool takes_any_context(const struct sh_search_state *st)
{
    struct sh_search_found first = degrees_of(st->s->cfg), f = first;
    bool any = false;

    for (f.pipeline = first.pipeline; f.pipeline <= most_stages(st); f.pipeline *= 2)
        for (f.tensor = first.tensor; f.tensor <= most_parts(st); f.tensor *= 2)
            for (int degree = first.context; divides(st->s, &f) && degree <= sh_search_most_context(st, &f);
                 degree *= 2)
                any |= sh_search_takes_context(st, &f, degree);
    return any || sh_search_takes_context(st, &first, first.context);
}

/* Programs are built and freed by the thousand: what one frees stays for the next, and is not given back page by page. */
static void keep_pages(void)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

/* The error of the last try is reported only if nothing was found and nothing was possible: single meshes may be
 * impossible. */
sh_rc sh_search_run(const struct sh_search *s, struct sh_search_found found[SH_SEARCH_MOST], int *n)
{
    struct sh_search_state st = {.s = s, .found = found, .n = n};
    int too_small[GROWN][BATCHES][TRIED_MODES][KEPT];
    sh_rc last = SH_OK;

    *n = 0;
    keep_pages();
    if (s->may_grow && s->cfg->training.batch_schedule[0])
        return sh_fail(SH_E_USAGE, "--allow=batch would change the steps of training.batch_schedule; leave one of them "
                                   "out");
    SH_TRY(sh_cost_check_network(s->machine, s->ranks, s->ranks_per_node));
    find_least(&st);
    st.sequences = sh_request_global_batch(s->cfg, s->ranks);
    if (s->may_grow)
        st.sequences += (s->ranks - st.sequences % s->ranks) % s->ranks;
    if (!takes_any_context(&st))
        return sh_fail(SH_E_USAGE,
                       "training.global_batch_size %lld is not a multiple of %d ranks, however many of a node's %d "
                       "or of whole nodes share one; --allow=batch tries larger ones",
                       (long long)st.sequences, s->ranks, s->ranks_per_node);
    st.too_small = too_small;
    SH_TRY(coarse(&st, &last));
    st.too_small = NULL;
    if (!*n && last != SH_OK && !st.lacks_memory)
        return last;
    sh_error_clear();
    SH_TRY(s->quick ? SH_OK : sh_search_refine(&st));
    keep_plain(&st);
    mark(&st, found, *n);
    return SH_OK;
}
