/* The best configuration for a machine. Strategies, meshes, micro-batches, recomputation, tiles of rows, prefetch,
 * resharding and sequences cut over ranks are tried; choices that change results beyond rounding only if they are
 * allowed. Local, pure. */
#ifndef SH_PREDICT_SEARCH_H
#define SH_PREDICT_SEARCH_H

#include "src/config/config.h"
#include "src/cost/machine.h"

/* The request: cfg has the model, the batch and all keys that are not searched. */
struct sh_search {
    const struct sh_config *cfg;
    const struct sh_machine *machine;
    int ranks, ranks_per_node;
    int64_t limit_bytes; /* of a rank; at least 1 */
    bool quick;          /* full_shard and hybrid_shard only, at a third of the cost */
    bool may_round;      /* gradients may be reduced in bfloat16; not with quick */
    bool may_reorder;    /* training.deterministic may be false; not with quick */
    bool may_stage;      /* layers may be cut over stages, which no GPU has run yet; not with quick */
    bool may_grow;       /* the batch may be larger: a multiple of the ranks, up to SH_SEARCH_GROWS times that */
};

struct sh_search_found {
    int strategy, shard, replicate;
    int expert;          /* parallelism.expert_parallel_degree */
    int context;         /* parallelism.context_parallel_degree */
    int tensor, stripes; /* parallelism.tensor_parallel_degree, and _tiles */
    int pipeline;        /* parallelism.pipeline_parallel_degree */
    int schedule, chunk; /* parallelism.pipeline_parallel_schedule, and _layers_per_stage (0: half of a stage's) */
    bool tiles;          /* training.tile_rows=auto */
    int inner, forward_prefetch, backward_prefetch;
    int local_batch, micro_steps;
    int reduce;          /* training.mixed_precision_reduce */
    bool any_order;      /* training.deterministic is false */
    int mode;            /* activation_checkpoint.mode: none, selective, full, or memory_budget of limit_bytes */
    char recompute[208]; /* the mode in words, and what lives in a lower tier */
    double seconds, tokens_per_second;
    int64_t bytes; /* of a rank */
    bool best;     /* the simplest result within 2 % of the first */
    bool pareto;   /* no result is both faster and smaller */
    bool plain;    /* the fastest that cuts neither matrices, sequences nor layers, and spreads no experts */
};

enum { SH_SEARCH_MOST = 24, SH_SEARCH_GROWS = 4 };

/* Search; *n results, in order of falling tokens per second, none if nothing fits.
 * Errors: SH_E_USAGE: the configuration is not possible on any mesh, with the last reason; those of
 * sh_cost_check_network().
 * Cost: about 2 s for 70B parameters and 4,096 ranks. */
sh_rc sh_search_run(const struct sh_search *s, struct sh_search_found found[SH_SEARCH_MOST], int *n);

/* Write the configuration of a result to *out, with all keys that were searched. */
void sh_search_apply(const struct sh_search *s, const struct sh_search_found *found, struct sh_config *out);

#endif
