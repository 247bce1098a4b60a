/* What src/plan/request.c puts together, by purpose. Local, and pure but for the search for a GPU. */
#ifndef SH_PLAN_PARTS_H
#define SH_PLAN_PARTS_H

#include "src/plan/request.h"

static inline bool sh_request_reproducible(const struct sh_config *cfg)
{
    return cfg->training.reproducible == SH_REPRODUCIBLE_MESH;
}

/* strategy.c. keeps: the strategy's row, changed by keys. segment: the number of ranks of a node that share one, or 0. */
struct sh_strategy sh_request_keeps(const struct sh_config *cfg);
int sh_request_segment(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_mesh_shape *mesh);

/* device.c. Each check refuses what the device cannot do, with SH_E_USAGE; offload also fills *out, for training. */
const struct sh_kernel_table *sh_request_kernels(const struct sh_config *cfg, bool gpu);
sh_rc sh_request_check_device(const struct sh_config *cfg, const struct sh_topology *at);
sh_rc sh_request_check_heads(const struct sh_config *cfg);
sh_rc sh_request_offload(const struct sh_config *cfg, bool gpu, struct sh_offload *out);

/* steps.c. chunks: of all stages. steps: micro_steps and fewer of *o, over `parts` ranks with different data.
 * check_stages: micro_steps 0: none are counted. Errors: SH_E_USAGE: what does not divide. */
int sh_request_chunks(const struct sh_config *cfg);
sh_rc sh_request_steps(const struct sh_config *cfg, int parts, struct sh_pass_options *o);
sh_rc sh_request_check_stages(const struct sh_config *cfg, int micro_steps);

#endif
