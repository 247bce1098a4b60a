/* Turn the configuration into a request to the passes. Local; pure, but that plug-ins are opened first. */
#ifndef SH_PLAN_REQUEST_H
#define SH_PLAN_REQUEST_H

#include "src/config/config.h"
#include "src/config/read/batches.h"
#include "src/device/device.h"
#include "src/pass/build.h"
#include "src/plan/cache.h"
#include "src/plan/topology.h"

/* The mesh that configuration and strategy ask for. no_shard: nodes are the replicas if the ranks of each share memory,
 * and hold everything once, in shards; otherwise, and if mesh.shard or mesh.replicate is given, each rank has all of
 * it. Errors: SH_E_USAGE if they contradict each other (full_shard over a part of the ranks, no_shard with mesh.shard =
 * 4). */
sh_rc sh_request_mesh(const struct sh_config *cfg, const struct sh_topology *at, struct sh_mesh_shape *shape);
struct sh_mesh_request sh_request_axes(const struct sh_config *cfg, const struct sh_topology *at);

/* The strategy, and what the mesh makes of it: "no_shard (the 4 of a node hold it once in shared memory)". */
enum { SH_STRATEGY_TEXT = 96 };
const char *sh_request_strategy_text(const struct sh_config *cfg, const struct sh_mesh_shape *mesh,
                                     char text[SH_STRATEGY_TEXT]);

/* mesh: from sh_request_mesh() with the same topology.
 * Errors: SH_E_USAGE if global_batch_size is not a multiple of local_batch_size * ranks, if sizes are too large to be
 * counted, and the like. */
sh_rc sh_request_build(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_mesh_shape *mesh,
                       enum sh_purpose purpose, int threads, int64_t limit_bytes, struct sh_build *out);

/* Carry the update into the next step's forward if that hides something: states that move to and from a lower tier, or
 * whole matrices that ranks exchange. */
void sh_request_carry(struct sh_build *b);

/* Add the cache of keys and values to a build made for SH_TO_GENERATE; `resident`: what was chosen for its `parallel`.
 * Local. Errors: SH_E_USAGE if sizes are too large to be counted. */
sh_rc sh_request_cached(const struct sh_request_cache *cache, bool resident, struct sh_build *build);

/* The same for SH_TO_SCORE; rows become longer if ranks have parts of them. */
sh_rc sh_request_scored(const struct sh_request_score *score, struct sh_build *build);

/* Whether training.device means a GPU; auto: if this process sees one. *why: why auto does not, "" if that is no news.
 * Local. Errors: SH_E_USAGE if it asks for something that this build or host lacks; `only_plan`: a plan needs
 * neither. */
sh_rc sh_request_gpu(const struct sh_config *cfg, bool only_plan, bool *gpu, char why[256]);
const struct sh_device *sh_request_device(const struct sh_config *cfg, bool gpu);

/* Whether a run that trains plans room for a copy of what is saved: on a GPU, unless its states are on its host anyway,
 * and whenever saves are asynchronous. */
bool sh_request_snapshot(const struct sh_config *cfg, bool gpu, bool states_away);

/* The adapters that the section lora asks for; rank 0: none. */
struct sh_adapters sh_request_adapters(const struct sh_config *cfg);

/* Sequences of one training step over all ranks, whose data group has `parts` ranks. */
int64_t sh_request_global_batch(const struct sh_config *cfg, int parts);      /* the largest, if steps differ */
struct sh_batches sh_request_batches(const struct sh_config *cfg, int parts); /* of all steps; at least one phase */

#endif
