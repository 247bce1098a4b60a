/* The sequences of a step, in micro-steps of each rank and over stages. */
#include "src/plan/parts.h"

#include "src/base/number/size.h"
#include "src/pass/pipeline/deal.h"

#include <stdio.h>

/* Sequences of a step; by default one micro-step per rank. */
int64_t sh_request_global_batch(const struct sh_config *cfg, int parts)
{
    if (cfg->training.global_batch_size > 0)
        return cfg->training.global_batch_size;
    return (int64_t)cfg->training.local_batch_size * parts;
}

/* Without a schedule, one phase. It was read when the configuration was checked. */
struct sh_batches sh_request_batches(const struct sh_config *cfg, int parts)
{
    struct sh_batches b;

    if (sh_batches_read(cfg->training.batch_schedule, &b) != SH_OK || b.n == 0)
        b = (struct sh_batches){.n = 1, .at = {{0, sh_request_global_batch(cfg, parts)}}};
    return b;
}

/* Micro-steps that each rank runs. A remainder is refused, not rounded: another batch size is another training run.
 * Example: 100 sequences do not divide among 8 ranks of 4; 96 is offered. */
static sh_rc count_micro_steps(const struct sh_config *cfg, int64_t global, int world, int *micro_steps)
{
    int64_t each = (int64_t)cfg->training.local_batch_size * world;

    if (global % each)
        return sh_fail(SH_E_USAGE,
                       "%s%lld does not divide into micro-steps of local_batch_size %d x %d "
                       "ranks = %lld sequences; nearest that does: %lld",
                       cfg->training.batch_schedule[0] ? "training.batch_schedule: " : "training.global_batch_size=",
                       (long long)global, cfg->training.local_batch_size, world, (long long)each,
                       /* At least one micro-step per rank, if the batch is smaller than half of that. */
                       (long long)((global + each / 2) / each > 0 ? (global + each / 2) / each * each : each));
    *micro_steps = (int)(global / each);
    return SH_OK;
}

/* The largest power of two up to n. */
static int64_t power_below(int64_t n)
{
    int64_t power = 1;

    while (power * 2 <= n)
        power *= 2;
    return power;
}

/* For the tree over the global batch, whatever its size. */
static sh_rc check_ranks(const struct sh_config *cfg, int world)
{
    int each = cfg->parallelism.tensor_parallel_degree * cfg->parallelism.context_parallel_degree *
               cfg->parallelism.pipeline_parallel_degree;
    long long fits = (long long)power_below(world) * each;
    char groups[64] = "";

    if (sh_size_is_power_of_two(world))
        return SH_OK;
    if (each > 1)
        snprintf(groups, sizeof groups, "groups of %d ranks, each with other sequences", each);
    return sh_fail(SH_E_USAGE,
                   "training.reproducible=mesh needs a power-of-two number of %s, not %d; give %lld or %lld ranks",
                   each > 1 ? groups : "ranks", world, fits, 2 * fits);
}

/* Check what the tree over the global batch needs, so that each rank has a whole branch of it. */
static sh_rc check_tree(const struct sh_config *cfg, int64_t global, int world, int micro_steps)
{
    int64_t leaves = global / cfg->training.local_batch_size;
    int64_t below = power_below(leaves) * cfg->training.local_batch_size;

    if (!sh_size_is_power_of_two(leaves))
        return sh_fail(SH_E_USAGE,
                       "training.reproducible=mesh needs a power-of-two number of micro-steps over all ranks, but "
                       "global_batch_size %lld / local_batch_size %d is %lld; nearest global_batch_size: %lld or %lld",
                       (long long)global, cfg->training.local_batch_size, (long long)leaves, (long long)below,
                       (long long)below * 2);
    /* A micro-step's sum ends with the ranks that share its sequences; those of several would have to be summed one by
     * one. */
    if (micro_steps > 1 && cfg->parallelism.context_parallel_degree > 1)
        return sh_fail(
            SH_E_USAGE,
            "training.reproducible=mesh with parallelism.context_parallel_degree=%d takes one micro-step, not "
            "%d; give a training.global_batch_size of %lld or %d times as many ranks",
            cfg->parallelism.context_parallel_degree, micro_steps, (long long)cfg->training.local_batch_size * world,
            micro_steps);
    /* Each level of the tree keeps a gradient until its partner arrives, and SH_GRAD_LEVELS of them are planned. */
    if (micro_steps > 1 << SH_GRAD_LEVELS)
        return sh_fail(SH_E_USAGE,
                       "training.reproducible=mesh takes at most %d micro-steps on a rank, not %d; use more ranks or a "
                       "larger training.local_batch_size",
                       1 << SH_GRAD_LEVELS, micro_steps);
    return SH_OK;
}

/* The most micro-steps of a step, and the other numbers of them. */
sh_rc sh_request_steps(const struct sh_config *cfg, int parts, struct sh_pass_options *o)
{
    struct sh_batches b = sh_request_batches(cfg, parts);
    int64_t most = sh_batches_most(&b);

    if (sh_request_reproducible(cfg))
        SH_TRY(check_ranks(cfg, parts));
    for (int i = 0; i < b.n; i++) {
        int n = 0;

        SH_TRY(count_micro_steps(cfg, b.at[i].sequences, parts, &n));
        if (sh_request_reproducible(cfg))
            SH_TRY(check_tree(cfg, b.at[i].sequences, parts, n));
        if (b.at[i].sequences < most)
            o->fewer[o->n_fewer++] = n;
        else
            o->micro_steps = n;
    }
    if (o->n_fewer && cfg->parallelism.pipeline_parallel_degree > 1) /* a search tries stages too */
        return sh_fail(SH_E_USAGE, "training.batch_schedule: stages have one list of all micro-steps of a step");
    return SH_OK;
}

static int number_of(int less)
{
    return less == SH_LESS_AUTO ? 0 : less;
}

/* Chunks of all stages. */
int sh_request_chunks(const struct sh_config *cfg)
{
    int stages = cfg->parallelism.pipeline_parallel_degree, each = cfg->parallelism.pipeline_parallel_layers_per_stage;
    int blocks = cfg->model.n_layers + number_of(cfg->parallelism.pipeline_parallel_first_stage_less_layers) +
                 number_of(cfg->parallelism.pipeline_parallel_last_stage_less_layers);

    if (stages == 1 || cfg->parallelism.pipeline_parallel_schedule != SH_SCHEDULE_INTERLEAVED)
        return stages;
    return each ? (blocks + each - 1) / each : 2 * stages;
}

static sh_rc check_interleaved(const struct sh_config *cfg, int micro_steps)
{
    int stages = cfg->parallelism.pipeline_parallel_degree, chunks = sh_request_chunks(cfg);

    if (chunks % stages || chunks == stages)
        return sh_fail(
            SH_E_USAGE,
            "parallelism.pipeline_parallel_layers_per_stage=%d makes %d chunks, but %d interleaved stages need "
            "%d, %d, ...",
            cfg->parallelism.pipeline_parallel_layers_per_stage, chunks, stages, 2 * stages, 3 * stages);
    if (micro_steps % stages)
        return sh_fail(
            SH_E_USAGE,
            "parallelism.pipeline_parallel_schedule=Interleaved1F1B: %d stages need a multiple of %d "
            "micro-steps, but a step has %d; give another training.local_batch_size or global_batch_size, or "
            "ZBH1",
            stages, stages, micro_steps);
    return SH_OK;
}

/* "auto" or the number. */
static const char *less_text(int less, char text[16])
{
    snprintf(text, 16, "%d", less);
    return less == SH_LESS_AUTO ? "auto" : text;
}

/* Refuse stages without a block, and chunks that do not come out even. */
sh_rc sh_request_check_stages(const struct sh_config *cfg, int micro_steps)
{
    int stages = cfg->parallelism.pipeline_parallel_degree, chunks = sh_request_chunks(cfg);
    struct sh_pipe_deal d = {.layers = cfg->model.n_layers,
                             .stages = stages,
                             .chunks = chunks / stages,
                             .first_less = cfg->parallelism.pipeline_parallel_first_stage_less_layers,
                             .last_less = cfg->parallelism.pipeline_parallel_last_stage_less_layers};
    char first[16], last[16], most[48] = "smaller numbers, or auto";

    if (stages > 1 && cfg->parallelism.pipeline_parallel_schedule == SH_SCHEDULE_INTERLEAVED)
        SH_TRY(check_interleaved(cfg, micro_steps));
    if (stages == 1 || sh_pipe_divides(&d))
        return SH_OK;
    if (d.layers < chunks)
        snprintf(most, sizeof most, "at most %d stages, or less of the others", d.layers / d.chunks);
    return sh_fail(SH_E_USAGE,
                   "parallelism.pipeline_parallel_degree=%d: with model.n_layers %d, first_stage_less_layers %s and "
                   "last_stage_less_layers %s, not every stage has a block%s; give %s",
                   stages, d.layers, less_text(d.first_less, first), less_text(d.last_less, last),
                   d.chunks > 1 ? " in each of its chunks" : "", most);
}
