/* What a sharding strategy asks of the mesh, and what it keeps. */
#include "src/plan/parts.h"

#include <stdio.h>

/* One row per strategy: the table of doc/design.md. `hybrid`: both axes, with a node's ranks as the shard axis.
 * `whole`: everything everywhere, on each rank or once for the ranks that share memory. Otherwise the shard axis is all
 * ranks; `replicas`: except for the replicas that mesh.shard or mesh.replicate asks for. */
struct strategy {
    const char *name;
    bool hybrid, whole, replicas;
    struct sh_strategy keeps;
};

static const struct strategy strategies[] = {
    [SH_NO_SHARD] = {.name = "no_shard", .whole = true, .keeps = {.params_resident = true, .sync_last_only = true}},
    [SH_SHARD_OPTIM] = {.name = "shard_optim",
                        .replicas = true,
                        .keeps = {.params_resident = true, .sync_last_only = true}},
    [SH_SHARD_GRAD_OP] = {.name = "shard_grad_op", .keeps = {.keep_after_forward = true}},
    [SH_FULL_SHARD] = {.name = "full_shard"},
    [SH_HYBRID_SHARD] = {.name = "hybrid_shard", .hybrid = true},
    [SH_HYBRID_SHARD_ZERO2] = {.name = "hybrid_shard_zero2", .hybrid = true, .keeps = {.keep_after_forward = true}},
};

/* The row of the chosen strategy. */
static const struct strategy *strategy(const struct sh_config *cfg)
{
    return &strategies[cfg->parallelism.sharding_strategy];
}

/* The number of ranks that together hold one copy of everything: those of a node (doc/decisions/0032), unless replicas
 * are asked for. */
static int ranks_of_copy(const struct sh_config *cfg, const struct sh_topology *at)
{
    return sh_topology_shares(cfg, at) && cfg->mesh.replicate == SH_MESH_AUTO ? at->ranks_per_node : 1;
}

/* What to ask of the mesh. An explicit mesh.shard takes precedence; otherwise the strategy decides: a node's ranks, all
 * ranks, or one. */
struct sh_mesh_request sh_request_axes(const struct sh_config *cfg, const struct sh_topology *at)
{
    const struct strategy *s = strategy(cfg);
    struct sh_mesh_request r = {.shard = cfg->mesh.shard,
                                .replicate = cfg->mesh.replicate,
                                .inner = cfg->parallelism.reshard_after_forward,
                                .tensor = cfg->parallelism.tensor_parallel_degree,
                                .context = cfg->parallelism.context_parallel_degree,
                                .expert = cfg->parallelism.expert_parallel_degree,
                                .pipeline = cfg->parallelism.pipeline_parallel_degree,
                                .ranks_per_node = at->ranks_per_node};

    if (r.shard == SH_CONFIG_UNSET)
        r.shard = s->whole ? ranks_of_copy(cfg, at) : s->hybrid ? SH_MESH_NODE : SH_MESH_ALL;
    return r;
}

/* Make the shape, and check that it is what the strategy's name promises: a user who asks for full_shard and gets
 * replicas would run with another memory use than planned. Local. */
sh_rc sh_request_mesh(const struct sh_config *cfg, const struct sh_topology *at, struct sh_mesh_shape *shape)
{
    const struct strategy *s = strategy(cfg);
    struct sh_mesh_request r = sh_request_axes(cfg, at);
    int shard, replicas;

    SH_TRY(sh_mesh_shape_make(&r, at->world, at->rank, shape));
    shard = sh_group_size(shape, shape->shard);
    replicas = sh_group_size(shape, shape->replicate);
    if (s->whole && cfg->mesh.shard != SH_CONFIG_UNSET && shard != 1)
        return sh_fail(SH_E_USAGE,
                       "parallelism.sharding_strategy=%s needs mesh.shard=1, but it is %d; leave mesh.shard "
                       "unset or choose a strategy that shards",
                       s->name, shard);
    if (!s->hybrid && !s->whole && !s->replicas && replicas != 1)
        return sh_fail(SH_E_USAGE,
                       "parallelism.sharding_strategy=%s shards over all %d ranks, but the mesh has %d replicas; "
                       "choose %shybrid_shard_zero2 or shard_optim for replicas",
                       s->name, at->world, replicas,
                       cfg->parallelism.sharding_strategy == SH_FULL_SHARD ? "hybrid_shard, " : "");
    return SH_OK;
}

/* The name, or a text when a node holds its copy once. `text` is used only then. */
const char *sh_request_strategy_text(const struct sh_config *cfg, const struct sh_mesh_shape *mesh,
                                     char text[SH_STRATEGY_TEXT])
{
    const struct strategy *s = strategy(cfg);
    int shard = sh_group_size(mesh, mesh->shard);

    if (!s->whole || shard == 1)
        return s->name;
    snprintf(text, SH_STRATEGY_TEXT, "%s (the %d of a node hold it once in shared memory)", s->name, shard);
    return text;
}

/* The number of ranks of a node that share a segment: all if shard groups lie within nodes and sharing gains something;
 * otherwise 0. */
int sh_request_segment(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_mesh_shape *mesh)
{
    int shard = sh_group_size(mesh, mesh->shard);
    bool fits = sh_topology_shares(cfg, at) && at->ranks_per_node % shard == 0;
    bool gains = shard > 1 || (at->world > 1 && at->world == at->ranks_per_node);
    /* Resharding asks for gathers over some of the ranks, so there must be gathers. */
    bool resharded = sh_group_size(mesh, mesh->inner) > 1;

    return fits && gains && !resharded ? at->ranks_per_node : 0;
}

/* The strategy's row, changed by keys. A reproducible sum needs all micro-steps on the rank before it meets others, so
 * it overrides gradient_sync. */
struct sh_strategy sh_request_keeps(const struct sh_config *cfg)
{
    struct sh_strategy s = strategy(cfg)->keeps;

    if (cfg->parallelism.gradient_sync != SH_GRAD_SYNC_AUTO)
        s.sync_last_only = cfg->parallelism.gradient_sync == SH_GRAD_SYNC_LAST;
    if (sh_request_reproducible(cfg))
        s.sync_last_only = true;
    return s;
}
