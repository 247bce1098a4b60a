/* Where a rank is, as far as the plan of a run depends on it: the same for sherd train, which finds it, and for sherd
 * plan, which is told. */
#ifndef SH_RUN_PLACE_H
#define SH_RUN_PLACE_H

#include "src/base/err.h"
#include "src/config/config.h"

#include <stdbool.h>

struct sh_place {
    int rank, world;
    int ranks_per_node; /* mesh.ranks_per_node, else of the smallest node; 0: not known to a plan */
    bool gpu;           /* every rank computes on one */
    bool in_blocks;     /* nodes of ranks_per_node hold neighbouring ranks */

    int node_rank, node_size; /* as MPI found it; no plan depends on them */
};

/* gpu: this rank could. Collective over the job. Errors: SH_E_COMM. */
sh_rc sh_place_find(const struct sh_config *cfg, bool gpu, struct sh_place *at);

#endif
