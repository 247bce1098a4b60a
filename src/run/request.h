/* From the configuration to what the passes are asked for. Local, pure. */
#ifndef SH_RUN_REQUEST_H
#define SH_RUN_REQUEST_H

#include "src/config/config.h"
#include "src/device/device.h"
#include "src/pass/build.h"

enum sh_purpose { SH_TO_TRAIN, SH_TO_EVALUATE, SH_TO_GENERATE };

/* The mesh that configuration and strategy ask for. ranks_per_node: of the smallest node. Errors: SH_E_USAGE where
 * they contradict each other (full_shard over a part of the ranks, no_shard with mesh.shard = 4). */
sh_rc sh_request_mesh(const struct sh_config *cfg, int world, int rank, int ranks_per_node,
                      struct sh_mesh_shape *shape);

struct sh_mesh_request sh_request_axes(const struct sh_config *cfg, int ranks_per_node);

/* Ranks of a node that may share a segment: ranks_per_node where shard groups lie within nodes, the nodes are full and
 * it gains something; else 0. For CPUs. */
int sh_request_segment(const struct sh_config *cfg, const struct sh_mesh_shape *mesh, int ranks_per_node);

/* segment_ranks: of sh_request_segment().
 * Errors: SH_E_USAGE when global_batch_size does not divide by local_batch_size * ranks, and the like. */
sh_rc sh_request_build(const struct sh_config *cfg, const struct sh_mesh_shape *mesh, enum sh_purpose purpose, bool gpu,
                       int segment_ranks, int threads, int64_t limit_bytes, struct sh_build *out);

struct sh_model sh_request_model(const struct sh_config *cfg);

/* Whether training.device means a GPU; auto: when this process sees one. *why: why auto does not, "" when that is no
 * news. Local. Errors: SH_E_USAGE where it asks for what this build or host has not; `only_plan`: a plan needs neither. */
sh_rc sh_request_gpu(const struct sh_config *cfg, bool only_plan, bool *gpu, char why[256]);
const struct sh_device *sh_request_device(const struct sh_config *cfg, bool gpu);

/* Sequences of one training step over all ranks. */
int64_t sh_request_global_batch(const struct sh_config *cfg, int world);

const char *sh_request_strategy_name(const struct sh_config *cfg);

#endif
