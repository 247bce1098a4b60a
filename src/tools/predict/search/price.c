/* One choice of the search: planned as a run would plan it, and priced. */
#include "src/tools/predict/search/state.h"

#include "src/cost/step.h"
#include "src/pass/pipeline/order.h"
#include "src/pass/pipeline/stages.h"
#include "src/plan/make.h"
#include "src/plan/pinned.h"
#include "src/plan/request.h"

#include <stdio.h>

enum { FEW_STAGES = 2 };

/* What a stage alone may be predicted too slow by. */
static const double unsure = 0.97;

void sh_search_apply(const struct sh_search *s, const struct sh_search_found *f, struct sh_config *out)
{
    *out = *s->cfg;
    out->mesh.ranks = s->ranks;
    out->mesh.ranks_per_node = s->ranks_per_node;
    out->mesh.shard = f->shard;
    out->mesh.replicate = f->replicate;
    out->training.local_batch_size = f->local_batch;
    out->training.global_batch_size = f->local_batch * f->micro_steps * (sh_search_groups(s, f) / f->context);
    if (f->tiles)
        out->training.tile_rows = SH_TILE_ROWS_AUTO;
    out->parallelism.context_parallel_degree = f->context;
    out->parallelism.tensor_parallel_degree = f->tensor;
    out->parallelism.tensor_parallel_tiles = f->tensor > 1 ? f->stripes : 1;
    out->parallelism.pipeline_parallel_degree = f->pipeline;
    if (f->pipeline > 1) {
        out->parallelism.pipeline_parallel_schedule = f->schedule;
        out->parallelism.pipeline_parallel_layers_per_stage = f->schedule == SH_SCHEDULE_INTERLEAVED ? f->chunk : 0;
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
        rc = sh_pipe_stages_build(b, true, p, NULL, &stages);
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
        snprintf(f->recompute, sizeof f->recompute, "%s%s", sh_pass_recompute_text(b, text),
                 sh_pass_homes_text(b, homes));
    }
    if (!stages.n)
        sh_program_destroy(p);
    sh_pipe_stages_free(&stages);
    return rc;
}

/* SH_E_MEMORY: the choice does not fit. SH_E_USAGE: the strategy, the batch or the mesh is not possible. */
static sh_rc try_as_is(struct sh_search_state *st, bool alone, struct sh_search_found *f)
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

static int64_t tokens_of(const struct sh_search_state *st, const struct sh_search_found *f)
{
    return (int64_t)f->local_batch * f->micro_steps * (sh_search_groups(st->s, f) / f->context) *
           st->s->cfg->training.seq_len;
}

/* A stage that is busy takes equally long for each more micro-step, and as many bytes for its inputs: a long step is
 * that of two shorter ones, in a line. With a budget each would recompute as much as it needs. */
static sh_rc try_in_line(struct sh_search_state *st, bool alone, struct sh_search_found *f)
{
    struct sh_search_found less = *f, more = *f;
    double seconds;
    sh_rc rc;

    less.micro_steps = 2 * f->pipeline;
    more.micro_steps = 3 * f->pipeline;
    if (f->pipeline == 1 || f->mode == SH_RECOMPUTE_MEMORY_BUDGET || f->micro_steps <= more.micro_steps ||
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

/* Whether the list is full of faster ones. With 1F1B the first stage works for a step, and waits at least half as long as if
 * all stages had as much to do. */
static bool is_too_slow(const struct sh_search_state *st, const struct sh_search_found *alone)
{
    struct sh_pipe pipe = {.stages = alone->pipeline, .micro_steps = alone->micro_steps, .chunks = 1};
    double waits = alone->schedule == SH_SCHEDULE_1F1B ? sh_pipe_bubble(&pipe) / 2 : 0;

    return alone->tokens_per_second < unsure * (1 + waits) * st->found[SH_SEARCH_MOST - 1].tokens_per_second;
}

/* Stages are many plans: the first one alone may show that the choice does not fit, or that it is too slow for the list
 * (*f is that of this stage then, and slower than any choice that fits into the list). */
sh_rc sh_search_try(struct sh_search_state *st, struct sh_search_found *f)
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
