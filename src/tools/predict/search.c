/* The search has two rounds. The first tries every strategy, mesh and micro-batch, with the least of three degrees of
 * recomputation that fits: none, selective, full. The second refines the best of those: the ladder of src/pass/fit.c,
 * prefetch, resharding over a node.
 *
 * What need not be planned, as it would not change the list: a mesh whose parameters and states alone do not fit, or that shards less
 * than one that was far too large with all else equal; and stages of which the first one alone is too slow. */
#include "src/tools/predict/search.h"

#include "kernels/rows.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/plan/make.h"
#include "src/plan/request.h"
#include "src/cost/step.h"
#include "src/optim/optim.h"
#include "src/pass/pipeline/order.h"
#include "src/pass/pipeline/stages.h"
#include "src/plan/pinned.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* FINE: how many of the fastest results of the coarse round are refined. MOST_BATCH: maximum sequences of a
 * micro-batch. */
enum { FINE = 6, MOST_BATCH = 64, MOST_LESS = 2, MOST_SHARD = 4, FEW_STAGES = 2 };

/* What a stage alone may be predicted too slow by. */
static const double unsure = 0.97;
/* A choice that needs that much more than the limit needs more if it shards less. */
static const double clearly = 1.02;

static const int strategies[] = {SH_FULL_SHARD,  SH_HYBRID_SHARD,       SH_SHARD_GRAD_OP,
                                 SH_SHARD_OPTIM, SH_HYBRID_SHARD_ZERO2, SH_NO_SHARD};
static const int modes[] = {SH_RECOMPUTE_NONE, SH_RECOMPUTE_SELECTIVE, SH_RECOMPUTE_FULL};

/* Powers of two: batches of a step, and of a micro-step. The modes of recomputation, and full in tiles. */
enum { GROWN = 3, BATCHES = 7, TRIED_MODES = 4, KEPT = 4 };

struct state {
    const struct sh_search *s;
    struct sh_search_found *found;
    int *n;
    double least_bytes;    /* minimum that all ranks together keep of the model */
    double least_resident; /* minimum of trained parameters in the compute type, if each rank has all of them */
    int64_t sequences;     /* per step */
    int (*too_small)[BATCHES][TRIED_MODES][KEPT]; /* [GROWN] see forget(); NULL: in the fine round */
    bool lacks_memory;                            /* some choice would be possible with more memory */
    bool kept;                                    /* some choice was possible with these degrees */
};

/* Ranks that share neither matrices nor layers: what mesh.shard, mesh.replicate and the batch divide. */
static int groups_of(const struct sh_search *s, const struct sh_search_found *f)
{
    return s->ranks / (f->tensor * f->pipeline);
}

/* Of a node. */
static int node_of(const struct sh_search *s, const struct sh_search_found *f)
{
    return s->ranks_per_node > f->tensor ? s->ranks_per_node / f->tensor : 1;
}

/* Whether the strategy accepts groups of ranks that are replicas of each other. */
static bool takes_replicas(int strategy)
{
    return strategy == SH_HYBRID_SHARD || strategy == SH_HYBRID_SHARD_ZERO2 || strategy == SH_SHARD_OPTIM;
}

void sh_search_apply(const struct sh_search *s, const struct sh_search_found *f, struct sh_config *out)
{
    *out = *s->cfg;
    out->mesh.ranks = s->ranks;
    out->mesh.ranks_per_node = s->ranks_per_node;
    out->mesh.shard = f->shard;
    out->mesh.replicate = f->replicate;
    out->training.local_batch_size = f->local_batch;
    out->training.global_batch_size = f->local_batch * f->micro_steps * (groups_of(s, f) / f->context);
    if (f->tiles)
        out->training.tile_rows = SH_TILE_ROWS_AUTO;
    out->parallelism.context_parallel_degree = f->context;
    out->parallelism.tensor_parallel_degree = f->tensor;
    out->parallelism.tensor_parallel_tiles = f->tensor > 1 ? f->stripes : 1;
    out->parallelism.pipeline_parallel_degree = f->pipeline;
    if (f->pipeline > 1) {
        out->parallelism.pipeline_parallel_schedule = f->schedule;
        out->parallelism.pipeline_parallel_last_stage_less_layers = f->last_less;
    }
    out->parallelism.sharding_strategy = f->strategy;
    out->parallelism.reshard_after_forward = f->inner;
    out->parallelism.expert_parallel_degree = f->expert;
    if (f->expert == 1)
        out->moe.capacity_factor = SH_CAPACITY_FACTOR;
    out->parallelism.forward_prefetch = f->forward_prefetch;
    out->parallelism.backward_prefetch = f->backward_prefetch;
    out->training.mixed_precision_reduce = f->reduce;
    out->training.deterministic = s->cfg->training.deterministic && !f->any_order;
    out->activation_checkpoint.mode = f->mode;
    if (f->mode == SH_RECOMPUTE_MEMORY_BUDGET || s->cfg->memory.limit_bytes)
        out->memory.limit_bytes = s->limit_bytes;
}

/* Price what was built; p is destroyed. `alone`: as if no stage ever waited for another one. */
static sh_rc price(const struct sh_search *s, const struct sh_mesh_shape *mesh, const struct sh_build *b,
                   struct sh_program *p, int64_t tokens, bool shares, bool alone, struct sh_search_found *f)
{
    struct sh_pipe_stages stages = {0};
    struct sh_cost_request r = {.mesh = mesh,
                                .machine = s->machine,
                                .ranks_per_node = s->ranks_per_node,
                                .shares = shares,
                                .faster = sh_cost_as_is,
                                .p = p};
    struct sh_cost_step step;
    char text[SH_RECOMPUTE_TEXT], homes[SH_HOMES_TEXT];
    sh_rc rc = sh_pass_fits(b, p) ? SH_OK : SH_E_MEMORY;

    if (rc == SH_OK)
        rc = sh_pinned_check(p, s->ranks_per_node, (int64_t)s->machine->host.memory_bytes, "a node has");
    f->bytes = p->arena_bytes;
    if (rc == SH_OK && f->pipeline > 1 && !alone) {
        rc = sh_pipe_stages_build(b, true, p, &stages);
        r.stages = &stages;
        if (rc == SH_OK)
            f->bytes = stages.p[sh_pipe_stages_largest(&stages)]->arena_bytes;
    }
    if (rc == SH_OK && f->bytes > s->limit_bytes)
        rc = SH_E_MEMORY;
    if (rc == SH_OK)
        rc = sh_cost_step(&r, &step);
    if (rc == SH_OK) {
        f->seconds = step.seconds;
        f->tokens_per_second = (double)tokens / step.seconds;
        snprintf(f->recompute, sizeof f->recompute, "%s%s", sh_recompute_text(&b->recompute, b->model.n_layers, text),
                 sh_pass_homes_text(b, homes));
    }
    if (!stages.n)
        sh_program_destroy(p);
    sh_pipe_stages_free(&stages);
    return rc;
}

/* SH_E_MEMORY: the choice does not fit. SH_E_USAGE: the strategy, the batch or the mesh is not possible. */
static sh_rc try_as_is(struct state *st, bool alone, struct sh_search_found *f)
{
    const struct sh_search *s = st->s;
    struct sh_config cfg;
    struct sh_topology at = {.world = s->ranks,
                             .ranks_per_node = s->ranks_per_node,
                             .in_blocks = true,
                             .on_paper = true,
                             .gpu = sh_machine_is_gpu(s->machine)};
    struct sh_mesh_shape mesh;
    struct sh_plan_request ask = {.cfg = &cfg,
                                  .at = &at,
                                  .mesh = &mesh,
                                  .purpose = SH_TO_TRAIN,
                                  .limit_bytes = s->limit_bytes,
                                  .node_bytes = (int64_t)s->machine->host.memory_bytes,
                                  .node_ranks = s->ranks_per_node,
                                  .weigh = true};
    struct sh_program *p;
    struct sh_build b;

    sh_search_apply(s, f, &cfg);
    if (!sh_config_cuts_matrices(&cfg) || !sh_config_cuts_layers(&cfg))
        return SH_E_USAGE;
    SH_TRY(sh_request_mesh(&cfg, &at, &mesh));
    ask.threads = cfg.training.threads ? cfg.training.threads : 1;
    SH_TRY(sh_plan_make(&ask, &b, &p));
    return price(s, &mesh, &b, p, (int64_t)cfg.training.global_batch_size * cfg.training.seq_len,
                 sh_topology_shares(&cfg, &at), alone, f);
}

static int64_t tokens_of(const struct state *st, const struct sh_search_found *f)
{
    return (int64_t)f->local_batch * f->micro_steps * (groups_of(st->s, f) / f->context) * st->s->cfg->training.seq_len;
}

/* A stage that is busy takes equally long for each more micro-step, and as many bytes for its inputs: a long step is
 * that of two shorter ones, in a line. */
static sh_rc try_in_line(struct state *st, bool alone, struct sh_search_found *f)
{
    struct sh_search_found less = *f, more = *f;
    double seconds;
    sh_rc rc;

    less.micro_steps = 2 * f->pipeline;
    more.micro_steps = 3 * f->pipeline;
    if (f->pipeline == 1 || f->micro_steps <= more.micro_steps ||
        (f->micro_steps % f->pipeline && f->schedule == SH_SCHEDULE_INTERLEAVED))
        return try_as_is(st, alone, f);
    rc = try_as_is(st, alone, &less);
    f->bytes = less.bytes;
    if (rc == SH_OK)
        rc = try_as_is(st, alone, &more);
    if (rc != SH_OK)
        return rc;
    seconds = (more.seconds - less.seconds) / f->pipeline;
    more.seconds += seconds * (f->micro_steps - more.micro_steps);
    more.bytes += (more.bytes - less.bytes) / f->pipeline * (f->micro_steps - more.micro_steps);
    more.micro_steps = f->micro_steps;
    more.tokens_per_second = (double)tokens_of(st, f) / more.seconds;
    *f = more;
    return f->bytes <= st->s->limit_bytes ? SH_OK : SH_E_MEMORY;
}

/* Whether the list is full of faster ones. With 1F1B the first stage, which has the most blocks, works for a step, and waits
 * at least half as long as if all stages had as many. */
static bool is_too_slow(const struct state *st, const struct sh_search_found *alone)
{
    struct sh_pipe pipe = {.stages = alone->pipeline, .micro_steps = alone->micro_steps, .chunks = 1};
    double waits = alone->schedule == SH_SCHEDULE_1F1B ? sh_pipe_bubble(&pipe) / 2 : 0;

    return alone->tokens_per_second < unsure * (1 + waits) * st->found[SH_SEARCH_MOST - 1].tokens_per_second;
}

/* Stages are many plans: the first one alone may show that the choice does not fit, or that it is too slow for the list
 * (*f is that of this stage then, and slower than any choice that fits into the list). */
static sh_rc try_one(struct state *st, struct sh_search_found *f)
{
    struct sh_search_found alone = *f;

    if (f->pipeline > FEW_STAGES && *st->n == SH_SEARCH_MOST) {
        sh_rc rc = try_in_line(st, true, &alone);

        if (rc != SH_OK || is_too_slow(st, &alone)) {
            *f = alone;
            f->tokens_per_second = 0;
            return rc;
        }
    }
    return try_in_line(st, false, f);
}

/* Insert by speed; if the list is full, the last one drops out. */
static void keep(struct state *st, const struct sh_search_found *f)
{
    int at = *st->n;

    while (at > 0 && st->found[at - 1].tokens_per_second < f->tokens_per_second)
        at--;
    if (at == SH_SEARCH_MOST)
        return;
    if (*st->n < SH_SEARCH_MOST)
        ++*st->n;
    memmove(&st->found[at + 1], &st->found[at], (size_t)(*st->n - 1 - at) * sizeof *st->found);
    st->found[at] = *f;
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
static int *too_small_for(const struct state *st, const struct sh_search_found *f, int mode)
{
    int64_t step = (int64_t)f->local_batch * f->micro_steps * (groups_of(st->s, f) / f->context);

    return st->too_small[power_of(step / st->sequences)][power_of(f->local_batch)][mode];
}

static void forget(struct state *st)
{
    memset(st->too_small, 0, GROWN * sizeof *st->too_small);
}

/* A choice that shards less than one that was too large is not planned. */
static sh_rc try_mode(struct state *st, int mode, struct sh_search_found *f)
{
    int *shards = st->too_small ? too_small_for(st, f, mode) : NULL, kept = kept_by(f->strategy);
    sh_rc rc;

    /* With the parameters whole, a rank's own part of them lies in these: shard_optim may need less than full_shard. */
    for (int k = kept == 2 ? 2 : 0; shards && k <= kept; k++)
        if (shards[k] >= f->shard)
            return SH_E_MEMORY;
    f->bytes = 0;
    rc = try_one(st, f);
    if (rc == SH_E_MEMORY && shards && (double)f->bytes > clearly * (double)st->s->limit_bytes &&
        f->shard > shards[kept])
        shards[kept] = f->shard;
    return rc;
}

/* The least recomputation of the three that fits, and then tiles; more of either is only slower. */
static sh_rc find_mode(struct state *st, struct sh_search_found *f)
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

static sh_rc try_modes(struct state *st, struct sh_search_found f)
{
    sh_rc rc = find_mode(st, &f);

    if (rc == SH_OK) {
        st->kept = true;
        keep(st, &f);
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

/* Find the minimum bytes of what is trained: masters and optimizer states, and two bytes in the compute type. */
static void find_least(struct state *st)
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

    st->least_bytes = (least_master(cfg, away, parameters) + states) * trained;
    st->least_resident = 2 * trained;
}

/* A lower bound: activations and gathered units come on top. A choice that fails here need not be planned, which takes
 * far longer. */
static bool could_fit(const struct state *st, const struct sh_search_found *f)
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

/* No choice is faster than its products at the best rate, and stages that wait for each other, with the best schedule a third
 * of 1F1B's: one that is slower than what was found all the same need not be planned. */
static bool could_win(const struct state *st, const struct sh_search_found *f)
{
    bool small = st->s->cfg->parallelism.pipeline_parallel_layers_per_stage >
                 0; /* chunks: any bound could be too high */
    const struct sh_machine *m = st->s->machine;
    double peak = st->s->cfg->training.mixed_precision_param == SH_PRECISION_BFLOAT16 ? m->peak.bfloat16
                                                                                      : m->peak.float32;
    double rate = st->s->ranks * peak * m->product.share / (6.0 * (double)sh_model_active(&st->s->cfg->model));

    return *st->n < SH_SEARCH_MOST / 2 ||
           rate / (1 + (small ? 0 : (f->pipeline - 1) / 3.0 / f->micro_steps)) > st->found[0].tokens_per_second;
}

/* Try micro-batches of 1, 2, 4, ... that divide a rank's share of a step. */
static sh_rc try_micro_batches(struct state *st, struct sh_search_found f, int64_t each, sh_rc *last)
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
static sh_rc try_batches(struct state *st, struct sh_search_found f, sh_rc *last)
{
    for (int times = 1; times <= (st->s->may_grow ? SH_SEARCH_GROWS : 1); times *= 2)
        SH_TRY(try_micro_batches(st, f, times * st->sequences * f.context / groups_of(st->s, &f), last));
    return SH_OK;
}

/* Divisors of the ranks of a node, and multiples of them, that divide the number of ranks. */
static bool is_shard(const struct sh_search *s, const struct sh_search_found *f, int shard)
{
    int node = node_of(s, f), strategy = f->strategy, groups = groups_of(s, f);

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
static sh_rc try_meshes(struct state *st, struct sh_search_found degrees, int strategy, sh_rc *last)
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
                                .last_less = degrees.last_less,
                                .reduce = s->cfg->training.mixed_precision_reduce,
                                .forward_prefetch = s->cfg->parallelism.forward_prefetch,
                                .backward_prefetch = s->cfg->parallelism.backward_prefetch};

    for (int shard = groups_of(s, &f); shard >= 1; shard--) {
        if (!is_shard(s, &f, shard))
            continue;
        f.shard = shard;
        f.replicate = groups_of(s, &f) / shard;
        SH_TRY(try_batches(st, f, last));
    }
    return SH_OK;
}

/* Whether sequences can be cut over that many neighbours, in a node, so that all ranks have as many. */
static bool takes_context(const struct state *st, const struct sh_search_found *f, int degree)
{
    const struct sh_search *s = st->s;
    int groups = groups_of(s, f);

    if (degree == s->cfg->parallelism.context_parallel_degree)
        return st->sequences * degree % groups == 0;
    return node_of(s, f) % degree == 0 && sh_config_cuts_sequences(s->cfg, degree) &&
           s->cfg->training.reproducible != SH_REPRODUCIBLE_MESH && st->sequences * degree % groups == 0;
}

/* If quick, only the first two of the list, full_shard and hybrid_shard. Stages keep their parameters, so shard_optim gathers
 * no more than others. Sequences are cut over as few ranks as possible. */
static sh_rc try_contexts(struct state *st, struct sh_search_found f, sh_rc *last)
{
    size_t n = st->s->quick ? 2 : sizeof strategies / sizeof *strategies;
    int first = st->s->cfg->parallelism.context_parallel_degree;

    st->kept = false;
    for (f.context = first; !st->kept && (f.context == first || f.context <= node_of(st->s, &f)); f.context *= 2) {
        forget(st);
        for (size_t i = 0; i < n && takes_context(st, &f, f.context); i++)
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
                                    .last_less = cfg->parallelism.pipeline_parallel_last_stage_less_layers};
}

/* Whether parts of matrices or layers could help: nothing fits, or the best recomputes or cuts sequences. */
static bool wants_parts(const struct state *st)
{
    const struct sh_search_found *best = st->found;

    return !st->s->quick && (!*st->n || best->mode != SH_RECOMPUTE_NONE || best->context > 1 || st->s->may_stage);
}

static int most_stages(const struct state *st)
{
    return st->s->may_stage ? st->s->cfg->model.n_layers : st->s->cfg->parallelism.pipeline_parallel_degree;
}

/* Ranks that share matrices are in a node. */
static int most_parts(const struct state *st)
{
    return st->s->quick ? st->s->cfg->parallelism.tensor_parallel_degree : st->s->ranks_per_node;
}

static bool divides(const struct sh_search *s, const struct sh_search_found *f)
{
    return s->ranks % (f->pipeline * f->tensor) == 0;
}

/* As configured, then with more ranks that share matrices, and more stages. */
static sh_rc coarse(struct state *st, sh_rc *last)
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

/* Try a finer neighbour of a result, and keep it if it fits and is faster. */
static sh_rc refine(struct state *st, struct sh_search_found f, double than)
{
    sh_rc rc = try_one(st, &f);

    if (rc == SH_OK && f.seconds < than * 0.9995)
        keep(st, &f);
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

/* Experts spread over 2, 4, ... ranks of a node that divide them and the shard group. */
static sh_rc spread_experts(struct state *st, struct sh_search_found f)
{
    int experts = st->s->cfg->model.n_experts;
    double than = f.seconds;

    for (f.expert = 2; experts && f.expert <= st->s->ranks_per_node; f.expert *= 2)
        if (experts % f.expert == 0 && f.shard % f.expert == 0)
            SH_TRY(refine(st, f, than));
    return SH_OK;
}

/* Sequences cut over more ranks of a node: as many micro-steps more, each with less to keep. */
static sh_rc cut_sequences(struct state *st, struct sh_search_found f)
{
    double than = f.seconds;
    int first = f.context, micro_steps = f.micro_steps;

    for (f.context = 2 * first; f.context <= node_of(st->s, &f); f.context *= 2) {
        sh_rc rc;

        if (!takes_context(st, &f, f.context) || f.shard % f.context)
            continue;
        f.micro_steps = micro_steps * f.context / first;
        rc = find_mode(st, &f);
        if (rc == SH_OK && f.seconds < than * 0.9995)
            keep(st, &f);
        if (rc != SH_OK && rc != SH_E_MEMORY && rc != SH_E_USAGE)
            return rc;
    }
    return SH_OK;
}

/* Less layers for the stage with the head. */
static sh_rc shift_layers(struct state *st, struct sh_search_found f)
{
    double than = f.seconds;
    int first = f.last_less;

    for (f.last_less = first + 1; f.pipeline > 1 && f.last_less <= first + MOST_LESS; f.last_less++)
        SH_TRY(refine(st, f, than));
    return SH_OK;
}

/* Rows exchanged in more tiles, beside products. */
static sh_rc cut_exchanges(struct state *st, struct sh_search_found f)
{
    enum { MOST = 4 };
    double than = f.seconds;

    for (f.stripes *= 2; f.tensor > 1 && f.stripes <= MOST; f.stripes *= 2)
        SH_TRY(refine(st, f, than));
    return SH_OK;
}

/* Other orders of a stage's work; those that such micro-steps or blocks rule out are passed over. */
static sh_rc change_schedule(struct state *st, struct sh_search_found f)
{
    double than = f.seconds;
    int first = f.schedule;

    for (f.schedule = SH_SCHEDULE_1F1B; f.pipeline > 1 && f.schedule <= SH_SCHEDULE_INTERLEAVED; f.schedule++)
        if (f.schedule != first)
            SH_TRY(refine(st, f, than));
    return SH_OK;
}

/* One change at a time, from the same result: finer recomputation, deeper prefetch, resharding over a node, experts on
 * several ranks, sequences on more, exchanges in tiles, the order of stages. */
static sh_rc refine_one(struct state *st, struct sh_search_found f)
{
    struct sh_search_found other = f;

    if (f.mode != SH_RECOMPUTE_NONE) {
        other.mode = SH_RECOMPUTE_MEMORY_BUDGET;
        SH_TRY(refine(st, other, f.seconds));
    }
    other.forward_prefetch = other.backward_prefetch = 2;
    SH_TRY(refine(st, other, f.seconds));
    other = f;
    other.inner = node_of(st->s, &f);
    if (f.shard > other.inner && f.shard % other.inner == 0 &&
        (f.strategy == SH_FULL_SHARD || f.strategy == SH_HYBRID_SHARD))
        SH_TRY(refine(st, other, f.seconds));
    SH_TRY(cut_sequences(st, f));
    SH_TRY(cut_exchanges(st, f));
    SH_TRY(shift_layers(st, f));
    SH_TRY(change_schedule(st, f));
    return spread_experts(st, f);
}

/* Refine the coarse results; results added by refinement are not refined again. */
static sh_rc fine(struct state *st)
{
    struct sh_search_found first[FINE];
    int n = *st->n < FINE ? *st->n : FINE;

    memcpy(first, st->found, (size_t)n * sizeof *first);
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
    return SH_OK;
}

/* A penalty for what a user has to understand. Simplest are the requested numbers, one axis instead of two, no budget,
 * no resharding, the usual prefetch. */
static int complexity(const struct sh_search *s, int64_t sequences, const struct sh_search_found *f)
{
    return 8 * (f->reduce != s->cfg->training.mixed_precision_reduce) + 8 * f->any_order +
           8 * ((int64_t)f->local_batch * f->micro_steps * (groups_of(s, f) / f->context) != sequences) +
           4 * (f->tensor > s->cfg->parallelism.tensor_parallel_degree) +
           (f->stripes > s->cfg->parallelism.tensor_parallel_tiles) +
           4 * (f->pipeline > s->cfg->parallelism.pipeline_parallel_degree) +
           4 * (f->strategy == SH_HYBRID_SHARD_ZERO2) + 2 * (f->shard > 1 && f->replicate > 1) + 2 * (f->inner > 1) +
           2 * (f->expert > 1) + 2 * (f->context > s->cfg->parallelism.context_parallel_degree) + f->tiles +
           2 * (f->mode == SH_RECOMPUTE_MEMORY_BUDGET) + (f->forward_prefetch > 1) + (f->micro_steps > 1);
}

/* Results within 2 % count as equal, since a prediction is not more precise than that; the simplest of them is the
 * best. Pareto: no faster result takes as little memory. */
static void mark(const struct state *st, struct sh_search_found *found, int n)
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
}

static bool takes_any_context(const struct state *st)
{
    struct sh_search_found first = degrees_of(st->s->cfg), f = first;
    bool any = false;

    for (f.pipeline = first.pipeline; f.pipeline <= most_stages(st); f.pipeline *= 2)
        for (f.tensor = first.tensor; f.tensor <= most_parts(st); f.tensor *= 2)
            for (int degree = first.context; divides(st->s, &f) && degree <= node_of(st->s, &f); degree *= 2)
                any |= takes_context(st, &f, degree);
    return any || takes_context(st, &first, first.context);
}

/* The error of the last try is reported only if nothing was found and nothing was possible: single meshes may be
 * impossible. */
sh_rc sh_search_run(const struct sh_search *s, struct sh_search_found found[SH_SEARCH_MOST], int *n)
{
    struct state st = {.s = s, .found = found, .n = n};
    int too_small[GROWN][BATCHES][TRIED_MODES][KEPT];
    sh_rc last = SH_OK;

    *n = 0;
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
                       "training.global_batch_size %lld is not a multiple of %d ranks, however many share a sequence; "
                       "--allow=batch tries larger ones",
                       (long long)st.sequences, s->ranks);
    st.too_small = too_small;
    SH_TRY(coarse(&st, &last));
    st.too_small = NULL;
    if (!*n && last != SH_OK && !st.lacks_memory)
        return last;
    sh_error_clear();
    SH_TRY(s->quick ? SH_OK : fine(&st));
    mark(&st, found, *n);
    return SH_OK;
}
