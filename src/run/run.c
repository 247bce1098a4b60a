#include "src/run/run.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/str.h"
#include "src/mesh/segment.h"

#include <stdlib.h>
#include <unistd.h>

static sh_rc check_ranks(const struct sh_config *cfg, const struct sh_mesh_shape *shape)
{
    if (cfg->mesh.ranks && cfg->mesh.ranks != shape->size[SH_AXIS_WORLD])
        return sh_fail(SH_E_USAGE,
                       "mesh.ranks=%d, but the job has %d ranks; start it with that many or leave mesh.ranks out",
                       cfg->mesh.ranks, shape->size[SH_AXIS_WORLD]);
    return SH_OK;
}

struct place {
    int rank, world;
    int node_rank, node_size; /* as MPI found it */
    int ranks_per_node;       /* as taken */
    bool in_blocks;           /* nodes of that size hold neighbouring ranks */
};

static sh_rc find_place(const struct sh_config *cfg, struct place *at)
{
    int smallest;
    double scattered;

    sh_mesh_world(&at->rank, &at->world);
    SH_TRY(sh_mesh_nodes(&at->node_rank, &at->node_size, &smallest));
    at->ranks_per_node = cfg->mesh.ranks_per_node ? cfg->mesh.ranks_per_node : smallest;
    scattered = at->node_size % at->ranks_per_node ||
                at->rank % at->ranks_per_node != at->node_rank % at->ranks_per_node;
    SH_TRY(sh_mesh_max(&scattered, 1));
    at->in_blocks = !scattered;
    return SH_OK;
}

/* Everything that can be refused without touching memory or peers. */
static sh_rc plan(struct sh_run *r, enum sh_purpose purpose, const struct place *at)
{
    struct sh_mesh_shape shape;
    int64_t limit = r->cfg.memory.limit_bytes;
    int segment;

    if (!limit)
        limit = sh_device_node_memory() / at->node_size;
    SH_TRY(sh_request_mesh(&r->cfg, at->world, at->rank, at->ranks_per_node, &shape));
    SH_TRY(check_ranks(&r->cfg, &shape));
    segment = at->in_blocks ? sh_request_segment(&r->cfg, &shape, at->ranks_per_node) : 0;
    SH_TRY(sh_request_build(&r->cfg, &shape, purpose, segment, r->threads, limit, &r->build));
    return sh_pass_build(&r->build, &r->p);
}

static sh_rc connect(struct sh_run *r, int ranks_per_node)
{
    struct sh_mesh_request req = sh_request_axes(&r->cfg, ranks_per_node);
    struct sh_comm_options opt = {.timeout_seconds = r->cfg.comm.train_timeout_seconds,
                                  .history = r->cfg.comm.trace_buf_size,
                                  .report_dir = r->folder};

    SH_TRY(sh_mesh_create(&req, &r->mesh));
    SH_TRY(sh_mesh_self_test(r->mesh));
    if (!sh_mesh_same(sh_pass_hash(r->p)))
        return sh_fail(SH_E_BUG,
                       "the ranks have planned different collectives; are all of them the same build with the same "
                       "configuration?");
    return sh_comm_create(r->mesh, &opt, &r->comm);
}

/* Collective, agreed. */
static sh_rc allocate(struct sh_run *r)
{
    const struct sh_segment *w = &r->p->segment;
    int fd = -1;
    sh_rc rc;

    if (w->ranks)
        SH_TRY(sh_segment_create(r->mesh, w->ranks, sh_segment_bytes(w), &fd));
    rc = sh_exec_create(r->p, r->device, r->comm, fd, &r->exec);
    if (fd >= 0)
        close(fd);
    return sh_agree(rc);
}

static void announce(const struct sh_run *r)
{
    const int *size = r->mesh->shape.size;
    char arena[SH_STR_SHORT], params[SH_STR_SHORT];

    sh_log_info("%s parameters, %s on %d x %d ranks (replicate x shard), %d thread%s each, %s, arena %s a rank",
                sh_str_count(sh_model_params(&r->build.model), params), sh_request_strategy_name(&r->cfg),
                size[SH_AXIS_REPLICATE], size[SH_AXIS_SHARD], r->threads, r->threads == 1 ? "" : "s",
                r->p->act == SH_BF16 ? "bfloat16 compute, float32 reduction" : "float32",
                sh_str_bytes(r->p->arena_bytes, arena));
}

sh_rc sh_run_open(const struct sh_config *cfg, enum sh_purpose purpose, struct sh_run **out)
{
    struct sh_run *r = sh_calloc(1, sizeof *r);
    struct place at;
    int sharing;
    sh_rc rc;

    *r = (struct sh_run){.cfg = *cfg, .device = sh_request_device(cfg), .folder = sh_strdup(cfg->job.dump_folder)};
    SH_TRY_OUT(find_place(cfg, &at));
    SH_TRY_OUT(sh_mesh_alike_on_node(sh_device_cores(), &sharing));
    r->threads = cfg->training.threads ? cfg->training.threads : sh_device_threads(sharing);
    sh_device_set_threads(r->threads);
    SH_TRY_OUT(sh_agree(plan(r, purpose, &at)));
    if (purpose == SH_TO_TRAIN)
        SH_TRY_OUT(sh_agree(at.rank == 0 ? sh_mkdir_p(r->folder) : SH_OK));
    SH_TRY_OUT(sh_agree(connect(r, at.ranks_per_node)));
    SH_TRY_OUT(allocate(r));
    announce(r);
    *out = r;
    return SH_OK;
out:
    sh_run_close(r);
    return rc;
}

void sh_run_close(struct sh_run *r)
{
    if (!r)
        return;
    sh_run_save_abandon(r);
    if (r->comm)
        sh_comm_destroy(r->comm); /* before the labels that its reports show */
    sh_exec_destroy(r->exec);
    if (r->mesh)
        sh_mesh_destroy(r->mesh);
    sh_program_destroy(r->p);
    free(r->folder);
    free(r->resumed_from);
    free(r->parameters_from);
    free(r->guard);
    sh_ckpt_unlock(r->lock);
    free(r);
}
