/* Where a rank is, as far as the plan of a run depends on it. sherd train finds it out and sherd plan is told it; both
 * use the same struct. */
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
    bool gpu;           /* every rank computes on a GPU */
    bool in_blocks;     /* nodes of ranks_per_node hold neighbouring ranks */
    bool on_paper;      /* a plan for a machine that is not here, which may have what its devices lack so far */

    int node_rank, node_size; /* as found by MPI; no plan depends on them */
};

/* gpu: this rank could use one. Collective over the job. Errors: SH_E_COMM. */
sh_rc sh_topology_find(const struct sh_config *cfg, bool gpu, struct sh_topology *at);

/* The GPU of this rank, open. */
struct sh_topology_gpu {
    struct sh_device_info info;
    int sharing;        /* ranks that use it */
    const char *hidden; /* NULL; or in words: the ranks of some node do not see each other's GPUs */
};

/* Open a GPU for each rank, its own unless ranks may share. Collective over the job. Errors, agreed: SH_E_USAGE. */
sh_rc sh_topology_open_gpu(const struct sh_config *cfg, const struct sh_device *device, const struct sh_topology *at,
                           struct sh_topology_gpu *gpu);

/* The bytes of the GPU that an arena may take: what is free, less what CUDA's libraries and NCCL take later. Local.
 * Errors: SH_E_MEMORY if nothing is left. */
sh_rc sh_topology_gpu_room(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_topology_gpu *gpu,
                           const struct sh_mesh_shape *mesh, int64_t *bytes);

/* What a run keeps of it for CUDA's libraries and NCCL. gpu: only `sharing` counts. Local. */
int64_t sh_topology_kept(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_topology_gpu *gpu,
                         const struct sh_mesh_shape *mesh);

/* What NCCL's communicators take of it in such a mesh, as far as is known before a run. Local. */
int64_t sh_topology_nccl_room(const struct sh_topology *at, const struct sh_topology_gpu *gpu,
                              const struct sh_mesh_shape *mesh);

/* Whether the ranks of a node can share memory: full nodes of neighbours that compute on CPUs. Local. */
bool sh_topology_shares(const struct sh_config *cfg, const struct sh_topology *at);

/* How the ranks communicate: as the configuration says, without report_dir. device: where the operands are; NULL: host
 * memory. Local. */
struct sh_comm_options sh_topology_comm(const struct sh_config *cfg, const struct sh_topology *at,
                                        const struct sh_device *device, int sharing);

/* Bytes that a rank may pin on the host of its GPU: memory.host_limit_bytes, else with offload.mode=memory_budget its
 * share of four fifths of its node's memory; 0: no limit. Local, pure.
 *   node_bytes  host memory of the node; 0: not known
 *   ranks       that share it */
int64_t sh_topology_host_room(const struct sh_config *cfg, const struct sh_topology *at, int64_t node_bytes, int ranks);

#endif
