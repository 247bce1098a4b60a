/* Layers cut over ranks: what is not combined with stages, or not yet, and what works instead. */
#include "src/base/number/exact.h"
#include "src/config/check/check.h"
#include "src/config/family.h"
#include "src/config/read/place.h"

static const char key[] = "parallelism.pipeline_parallel_degree";

/* A unit is gathered once for the whole step and reduced once; that is what stages are for. */
static bool gathers_once(const struct sh_config *c)
{
    int s = c->parallelism.sharding_strategy;

    return s == SH_SHARD_OPTIM || s == SH_SHARD_GRAD_OP || s == SH_HYBRID_SHARD_ZERO2;
}

/* With matrices cut over ranks, the vectors of all blocks of a stage lie end to end in one unit, whose squares are summed
 * in blocks: each vector must fill its own. */
static bool splits_blocks(const struct sh_config *c)
{
    const struct sh_family *family = sh_family_of(c->model.family);

    return c->model.dim % SH_EXACT_BLOCK ||
           (family->q_norm && !family->wide_qk_norm && c->model.head_dim % SH_EXACT_BLOCK);
}

/* As far as the configuration says; advice to have replicas no more would lead to the next refusal. */
static bool has_replicas(const struct sh_config *c)
{
    return c->parallelism.sharding_strategy == SH_HYBRID_SHARD || c->mesh.replicate > 1 ||
           c->mesh.shard != SH_CONFIG_UNSET;
}

#define TWICE                                                                                      \
    "stages keep their parameters for a whole step, and full_shard would gather each block twice " \
    "in every micro-step; give parallelism.sharding_strategy="

/* The first row that applies; NULL: none. */
static const char *bar_of(const struct sh_config *c)
{
    const struct {
        bool there;
        const char *what;
    } rows[] = {
        {!gathers_once(c) && has_replicas(c), TWICE "hybrid_shard_zero2 or shard_optim"},
        {!gathers_once(c), TWICE "shard_grad_op or shard_optim"},
        {sh_family_is_tied(&c->model),
         "stages have the embedding on the first and the head on the last, but this "
         "model's are one matrix; give parallelism.tensor_parallel_degree, or shard alone"},
        {c->model.kv_shared_layers,
         "stages hand on the stream alone, and blocks of this model read keys and values of earlier ones "
         "(model.kv_shared_layers); shard over all ranks"},
        {c->model.per_layer_dim,
         "stages hand on the stream alone, and blocks of this model read inputs made with the embedding "
         "(model.per_layer_dim); shard over all ranks"},
        {c->parallelism.tensor_parallel_degree > 1 && splits_blocks(c),
         "stages with matrices cut over ranks need vectors of a multiple of 64 elements, or the last bit of the gradient "
         "norm would depend on the stages; give such a model.dim and model.head_dim, or leave out "
         "parallelism.tensor_parallel_degree"},
        {c->training.row_leaves > 1,
         "stages sum whole micro-steps in the tree of training.reproducible=mesh; leave out training.row_leaves, and with "
         "parallelism.context_parallel_degree training.reproducible too"},
        {c->parallelism.gradient_sync == SH_GRAD_SYNC_EVERY,
         "stages reduce gradients once, after the last micro-step; leave out parallelism.gradient_sync"},
        {c->offload.mode == SH_OFFLOAD_BUDGET,
         "stages wait for each other, so the seconds of one stage do not choose its homes; choose them by "
         "offload.optimizer"},
        {c->offload.gradients != SH_OFFLOAD_NONE,
         "stages add up whole gradients in memory and reduce them once, so these would leave it for the update only; leave "
         "out offload.gradients"},
        {c->offload.parameters != SH_OFFLOAD_NONE,
         "stages use the parameters of all their blocks until a step ends; leave out offload.parameters"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].there)
            return rows[i].what;
    return NULL;
}

static sh_rc refuse_other(struct sh_config_state *state)
{
    static const char chunk[] = "parallelism.pipeline_parallel_layers_per_stage";
    const char *bar = bar_of(&state->cfg);

    if (!bar && state->cfg.parallelism.pipeline_parallel_schedule != SH_SCHEDULE_INTERLEAVED &&
        sh_config_place_typed(sh_config_place_of(state, chunk)))
        return sh_config_refuse(
            state, chunk,
            "has no effect without parallelism.pipeline_parallel_schedule=Interleaved1F1B: a stage has "
            "one chunk of blocks");
    return bar ? sh_config_refuse(state, key, "%d %s", state->cfg.parallelism.pipeline_parallel_degree, bar) : SH_OK;
}

bool sh_config_cuts_layers(const struct sh_config *c)
{
    return c->parallelism.pipeline_parallel_degree == 1 || !bar_of(c);
}

/* What says how stages work is typed in vain without them. */
static sh_rc refuse_idle(struct sh_config_state *state)
{
    static const char *const keys[] = {"parallelism.pipeline_parallel_schedule",
                                       "parallelism.pipeline_parallel_layers_per_stage",
                                       "parallelism.pipeline_parallel_first_stage_less_layers",
                                       "parallelism.pipeline_parallel_last_stage_less_layers"};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (sh_config_place_typed(sh_config_place_of(state, keys[i])))
            return sh_config_refuse(state, keys[i], "has no effect without %s above 1", key);
    return SH_OK;
}

sh_rc sh_config_check_pipeline(struct sh_config_state *state)
{
    return (state->cfg.parallelism.pipeline_parallel_degree == 1 ? refuse_idle : refuse_other)(state);
}
