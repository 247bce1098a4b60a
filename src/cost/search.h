/* The best configuration for a machine: strategies, meshes, micro-batches, recomputation, prefetch and resharding are
 * tried; what changes numbers only where it is allowed. Local, pure. */
#ifndef SH_COST_SEARCH_H
#define SH_COST_SEARCH_H

#include "src/config/config.h"
#include "src/cost/machine.h"

/* What is asked for: cfg has the model, the batch and what is not searched. */
struct sh_search {
    const struct sh_config *cfg;
    const struct sh_machine *machine;
    int ranks, ranks_per_node;
    int64_t limit_bytes; /* of a rank; at least 1 */
    bool quick;          /* full_shard and hybrid_shard only, at a third of the cost */
    bool may_round;      /* gradients may be reduced in bfloat16; not where it is quick */
    bool may_grow;       /* the batch may be larger: what the ranks divide, and up to SH_SEARCH_GROWS times that */
};

struct sh_search_found {
    int strategy, shard, replicate;
    int inner, forward_prefetch, backward_prefetch;
    int local_batch, micro_steps;
    int reduce;          /* training.mixed_precision_reduce */
    int mode;            /* activation_checkpoint.mode: none, selective, full, or memory_budget of limit_bytes */
    char recompute[208]; /* that in words, and what has its home below the device */
    double seconds, tokens_per_second;
    int64_t bytes; /* of a rank */
    bool best;     /* the simplest of those within 2 % of the first */
    bool pareto;   /* none is both faster and smaller */
};

enum { SH_SEARCH_MOST = 24, SH_SEARCH_GROWS = 4 };

/* The most tokens a second first; *n of them, none where nothing fits. Errors: SH_E_USAGE: what the configuration asks for
 * is not possible on any mesh, with the last reason; those of sh_cost_check_network(). Cost: for 70B parameters and 4,096
 * ranks some 2 s. */
sh_rc sh_search_run(const struct sh_search *s, struct sh_search_found found[SH_SEARCH_MOST], int *n);

/* The configuration of a result: all keys that were searched, in *out. */
void sh_search_apply(const struct sh_search *s, const struct sh_search_found *found, struct sh_config *out);

#endif
