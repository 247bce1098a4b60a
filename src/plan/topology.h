/* Where a rank is, as far as the plan of a run depends on it: the same for sherd train, which finds it, and for sherd
 * plan, which is told. */
#ifndef SH_PLAN_TOPOLOGY_H
#define SH_PLAN_TOPOLOGY_H

#include "src/base/err.h"
#include "src/comm/comm.h"
#include "src/config/config.h"
#include "src/device/device.h"

#include <stdbool.h>

struct sh_topology {
    int rank, world;
    int ranks_per_node; /* mesh.ranks_per_node, else of the smallest node; 0: not known to a plan */
    bool gpu;           /* every rank computes on one */
    bool in_blocks;     /* nodes of ranks_per_node hold neighbouring ranks */

    int node_rank, node_size; /* as MPI found it; no plan depends on them */
};

/* gpu: this rank could. Collective over the job. Errors: SH_E_COMM. */
sh_rc sh_topology_find(const struct sh_config *cfg, bool gpu, struct sh_topology *at);

/* The GPU of this rank, open. */
struct sh_topology_gpu {
    struct sh_device_info info;
    int sharing; /* ranks that use it */
};

/* Each rank its own, unless ranks may share. Collective over the job. Errors, agreed: SH_E_USAGE. */
sh_rc sh_topology_open_gpu(const struct sh_config *cfg, const struct sh_device *device, const struct sh_topology *at,
                           struct sh_topology_gpu *gpu);

/* What an arena may take of it: what is free, without what CUDA's libraries and NCCL take later. Local. Errors:
 * SH_E_MEMORY when that is nothing. */
sh_rc sh_topology_gpu_room(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_topology_gpu *gpu,
                           int64_t *bytes);

/* Whether the ranks of a node can hold memory together: full nodes of neighbours that compute on CPUs. Local. */
bool sh_topology_shares(const struct sh_config *cfg, const struct sh_topology *at);

/* How the ranks talk: as the configuration says, without report_dir. device: that of the operands; NULL: host memory.
 * Local. */
struct sh_comm_options sh_topology_comm(const struct sh_config *cfg, const struct sh_topology *at,
                                        const struct sh_device *device, int sharing);

/* Bytes that a rank may pin on the host of its GPU: memory.host_limit_bytes, else with offload.mode=memory_budget its share of
 * four fifths of its node's memory; 0: no limit. Local, pure.
 *   node_bytes  memory of the node beside its GPUs; 0: not known
 *   ranks       that share it */
int64_t sh_topology_host_room(const struct sh_config *cfg, const struct sh_topology *at, int64_t node_bytes, int ranks);

#endif
