#include "src/run/run.h"

#include "src/base/file.h"
#include "src/base/isa.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/number/size.h"
#include "src/base/string/str.h"
#include "src/job/job.h"
#include "src/mesh/segment.h"
#include "src/plan/make.h"
#include "src/plan/pinned.h"
#include "src/plugin/plugin.h"
#include "src/run/kept/kept.h"
#include "src/run/products.h"
#include "src/run/save/map.h"
#include "src/run/stages.h"
#include "src/tier/tier.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* A key for job scripts: a job that got fewer ranks than it asked for stops instead of training with another batch. */
static sh_rc check_ranks(const struct sh_config *cfg, const struct sh_mesh_shape *shape)
{
    if (cfg->mesh.ranks && cfg->mesh.ranks != sh_mesh_ranks(shape))
        return sh_fail(SH_E_USAGE, "mesh.ranks=%d, but the job has %d; start it with that many or leave mesh.ranks out",
                       cfg->mesh.ranks, sh_mesh_ranks(shape));
    return SH_OK;
}

/* The mesh, and what the arena may take: what a GPU has free, or this rank's share of the node's memory. Local. */
static sh_rc find_limits(struct sh_run *r, const struct sh_topology *at, struct sh_mesh_shape *shape, int64_t *limit)
{
    *limit = r->cfg.memory.limit_bytes;
    SH_TRY(sh_request_mesh(&r->cfg, at, shape));
    SH_TRY(check_ranks(&r->cfg, shape));
    if (!*limit && r->device->gpu)
        return sh_topology_gpu_room(&r->cfg, at, &r->gpu, shape, limit);
    if (!*limit)
        *limit = sh_device_node_memory() / at->node_size;
    return SH_OK;
}

/* One choice for all ranks. Collective, agreed. */
static sh_rc most_of_all(sh_rc rc, double *most)
{
    SH_TRY(sh_agree(rc));
    return most ? sh_mesh_max(most, 1) : SH_OK;
}

/* Collective, agreed. */
static sh_rc plan(struct sh_run *r, const struct sh_topology *at, enum sh_purpose purpose,
                  const struct sh_request_cache *cache, const struct sh_request_score *score)
{
    struct sh_mesh_shape shape;
    struct sh_plan_request ask = {.cfg = &r->cfg,
                                  .at = at,
                                  .mesh = &shape,
                                  .purpose = purpose,
                                  .threads = r->threads,
                                  .node_bytes = sh_device_node_memory(),
                                  .node_ranks = at->node_size,
                                  .cache = cache,
                                  .score = score,
                                  .together = most_of_all};

    SH_TRY(sh_agree(find_limits(r, at, &shape, &ask.limit_bytes)));
    return sh_plan_make(&ask, &r->build, &r->p);
}

static sh_rc connect(struct sh_run *r, const struct sh_topology *at)
{
    struct sh_mesh_request req = sh_request_axes(&r->cfg, at);
    struct sh_comm_options opt = sh_topology_comm(&r->cfg, at, r->device, r->gpu.sharing);

    opt.report_dir = r->folder;
    opt.groups = r->p->groups;
    opt.n_groups = r->p->n_groups;
    opt.streams = r->p->streams;
    opt.n_streams = r->p->n_streams;
    opt.program = r->p;
    SH_TRY(sh_mesh_create(&req, &r->mesh));
    for (int i = 0; i < opt.n_groups; i++)
        SH_TRY(sh_mesh_open(r->mesh, opt.groups[i].axes));
    SH_TRY(sh_mesh_self_test(r->mesh));
    if (!sh_mesh_same(XXH3_64bits(sh_isa_architecture(), strlen(sh_isa_architecture()))))
        return sh_fail(SH_E_USAGE,
                       "the nodes of this job have processors of several architectures, whose results differ; "
                       "this rank runs on %s: start the job on nodes of one kind",
                       sh_isa_architecture());
    if (!sh_mesh_same(sh_plugin_sum()))
        return sh_fail(SH_E_DATA,
                       "plugin.files: the ranks have opened files with different bytes; is each node's copy the "
                       "same?");
    if (!sh_mesh_same((unsigned long long)r->cfg.data.token_weight))
        return sh_fail(SH_E_DATA, "data.token_weight=auto: only some ranks see weights beside the files of "
                                  "training.dataset_path; is each node's copy the same?");
    SH_TRY(sh_stages_agree(r));
    SH_TRY(sh_stages_weigh(r, &r->stage_bytes));
    return sh_comm_create(r->mesh, &opt, &r->comm);
}

/* Check the folder of the scratch files, once per node and before anything is allocated: the ranks of a node share its
 * room. */
static sh_rc check_offload(const struct sh_run *r, const struct sh_topology *at)
{
    int file = sh_program_file_tier(r->p);
    sh_rc rc;

    if (file == SH_NONE || at->node_rank != 0)
        return SH_OK;
    rc = sh_tier_check(r->cfg.offload.nvme_path, sh_size_mul(r->p->tiers[file].bytes, at->node_size),
                       r->cfg.offload.allow_network);
    return rc == SH_OK ? rc : sh_fail_prefix(rc, "offload.nvme_path: ");
}

static sh_rc make_folder(const char *path)
{
    sh_rc rc = sh_mkdir_p(path);

    return rc == SH_OK ? rc : sh_fail_prefix(rc, "job.dump_folder: ");
}

/* Check the pinned memory of the ranks of a node together, once per node. */
static sh_rc check_pinned(const struct sh_run *r, const struct sh_topology *at)
{
    if (!sh_pinned_bytes(r->p) || at->node_rank != 0)
        return SH_OK;
    return sh_pinned_check(r->p, at->node_size, sh_device_node_free(), "the free memory of their node is");
}

/* Collective, agreed. */
static sh_rc allocate(struct sh_run *r)
{
    const struct sh_exec_file file = {.folder = r->cfg.offload.nvme_path, .verify = r->cfg.offload.verify};
    const struct sh_segment *w = &r->p->segment;
    int fd = -1;
    sh_rc rc;

    if (w->ranks)
        SH_TRY(sh_segment_create(r->mesh, w->ranks, sh_program_segment_bytes(w), &fd));
    rc = sh_exec_create(r->p, r->device, r->comm, fd, &file, &r->exec);
    if (fd >= 0)
        close(fd);
    if (rc == SH_OK)
        sh_exec_set_sync(r->exec, r->cfg.debug.sync_ops);
    return sh_agree(rc);
}

/* Refuse settings that only a GPU supports. Local. */
static sh_rc not_for_a_gpu(const struct sh_config *cfg)
{
    if (cfg->debug.sync_ops)
        return sh_fail(SH_E_USAGE,
                       "debug.sync_ops is for GPUs: on a CPU each operation is done before the next begins");
    if (!cfg->training.deterministic)
        return sh_fail(SH_E_USAGE,
                       "training.deterministic=false is for GPUs: on a CPU all kernels add in one order, and no other "
                       "order is faster; leave it out");
    if (cfg->training.measure_products)
        return sh_fail(SH_E_USAGE,
                       "training.measure_products is for GPUs: a CPU has one kernel for a product; leave it out");
    return SH_OK;
}

/* All ranks take the same kind of device. Collective. */
static sh_rc find_place(struct sh_run *r, struct sh_topology *at)
{
    char why[256];
    bool gpu;

    SH_TRY(sh_agree(sh_request_gpu(&r->cfg, false, &gpu, why)));
    SH_TRY(sh_topology_find(&r->cfg, gpu, at));
    if (!at->gpu && why[0])
        sh_log_info("no usable GPU, training on the CPU: %s", why);
    r->device = sh_request_device(&r->cfg, at->gpu);
    return SH_OK;
}

static const char *describe_device(const struct sh_run *r, char text[128])
{
    char threads[SH_STR_SHORT];

    if (r->device->gpu)
        snprintf(text, 128, "%s, %s", r->gpu.info.name, sh_comm_name(r->comm));
    else
        snprintf(text, 128, "%s each", sh_str_plural(r->threads, "thread", threads));
    return text;
}

/* ", 1.09 M of them in adapters", if there are adapters to train; else "". */
static const char *describe_adapters(const struct sh_run *r, char text[64])
{
    char count[SH_STR_SHORT];
    int64_t n = 0;

    text[0] = '\0';
    for (int i = 0; i < r->p->n_saved; i++)
        n += sh_param_info(r->p->saved[i].role)->adapter ? r->p->saved[i].elems : 0;
    if (n)
        snprintf(text, 64, ", %s of them in adapters", sh_str_count(n, count));
    return text;
}

static const char *precision_name(enum sh_dtype act)
{
    return act == SH_BF16 ? "bfloat16" : act == SH_F16 ? "float16" : "float32";
}

/* The line that a user compares with the plan. It names the type of the reduction unless both types are float32. */
static void announce(const struct sh_run *r)
{
    char adapters[64], ranks[SH_MESH_TEXT], arena[SH_STR_SHORT], params[SH_STR_SHORT], device[128];
    char strategy[SH_STRATEGY_TEXT];
    char words[SH_RECOMPUTE_TEXT], recompute[SH_RECOMPUTE_TEXT + 64] = "", homes[SH_HOMES_TEXT];
    const char *reduce = r->build.options.reduce == SH_BF16 ? "bfloat16" : "float32";
    enum sh_dtype dtype = r->p->n_states ? r->p->state[0].dtype : SH_F32;
    const char *states = dtype == SH_BF16 ? ", optimizer state in bfloat16"
                         : dtype == SH_U8 ? ", optimizer state in int8"
                                          : "";
    bool mixed = r->p->act != r->build.options.reduce || r->p->act != SH_F32;

    if (r->build.options.training && r->cfg.activation_checkpoint.mode != SH_RECOMPUTE_NONE)
        snprintf(recompute, sizeof recompute, ", recompute %s", sh_pass_recompute_text(&r->build, words));
    if (r->build.batch.cache)
        snprintf(recompute, sizeof recompute, ", %s, cache %d x %d positions",
                 r->build.options.strategy.params_resident ? "resident" : "gathered for each token",
                 r->build.batch.batch, r->build.batch.cache);
    sh_log_info("%s parameters%s, %s on %s, %s, %s%s%s%s%s%s%s%s, arena %s per rank",
                sh_str_count(sh_model_params(&r->build.model), params), describe_adapters(r, adapters),
                sh_request_strategy_text(&r->cfg, &r->mesh->shape, strategy), sh_mesh_text(&r->mesh->shape, ranks),
                describe_device(r, device), precision_name(r->p->act), mixed ? " compute, " : "", mixed ? reduce : "",
                mixed ? " reduction" : "", states, recompute, sh_pass_homes_text(&r->build, homes),
                r->build.batch.balance.forced ? ", experts by turn, not by score" : "",
                sh_str_bytes(r->p->arena_bytes, arena));
    sh_stages_say(r);
}

/* Collective. Each phase is agreed before the next begins, so that a rank that cannot continue stops all of them at the
 * same place, and the error comes from it. Order: device, keeper, threads, request, plan, network, memory. Only the last
 * two cost time. */
static sh_rc open_run(const struct sh_config *cfg, enum sh_purpose purpose, const struct sh_request_cache *cache,
                      const struct sh_request_score *score, struct sh_run **out)
{
    struct sh_run *r = sh_calloc(1, sizeof *r);
    struct sh_topology at;
    int sharing;
    sh_rc rc;

    *r = (struct sh_run){.cfg = *cfg, .folder = sh_strdup(cfg->job.dump_folder)};
    SH_TRY_OUT(find_place(r, &at));
    if (purpose == SH_TO_TRAIN)
        SH_TRY_OUT(sh_kept_arrive(r, &at));
    SH_TRY_OUT(sh_agree(r->device->gpu ? SH_OK : not_for_a_gpu(cfg)));
    if (r->device->gpu)
        SH_TRY_OUT(sh_topology_open_gpu(cfg, r->device, &at, &r->gpu));
    if (r->gpu.hidden)
        sh_log_info("note: %s", r->gpu.hidden);
    /* Ranks with the same set of cores share them, so each takes its part for threads. */
    SH_TRY_OUT(sh_mesh_alike_on_node(sh_device_cores(), &sharing));
    r->threads = cfg->training.threads ? cfg->training.threads : sh_device_threads(sharing);
    sh_device_set_threads(r->threads);
    SH_TRY_OUT(plan(r, &at, purpose, cache, score));
    sh_job_reached(SH_PHASE_PLAN);
    SH_TRY_OUT(sh_agree(check_offload(r, &at)));
    SH_TRY_OUT(sh_agree(check_pinned(r, &at)));
    if (purpose == SH_TO_TRAIN)
        SH_TRY_OUT(sh_agree(at.rank == 0 ? make_folder(r->folder) : SH_OK));
    SH_TRY_OUT(sh_agree(connect(r, &at)));
    sh_job_reached(SH_PHASE_MESH);
    SH_TRY_OUT(allocate(r));
    sh_job_reached(SH_PHASE_MEMORY);
    r->map = sh_map_make(r->p, &r->mesh->shape, r->exec);
    if (cfg->training.measure_products && purpose == SH_TO_TRAIN)
        SH_TRY_OUT(sh_products_choose(r->device, r->gpu.info.name, r->folder, at.rank));
    announce(r);
    *out = r;
    return SH_OK;
out:
    sh_run_close(r);
    return rc;
}

sh_rc sh_run_open(const struct sh_config *cfg, enum sh_purpose purpose, struct sh_run **out)
{
    return open_run(cfg, purpose, NULL, NULL, out);
}

sh_rc sh_run_open_cached(const struct sh_config *cfg, const struct sh_request_cache *cache, struct sh_run **out)
{
    return open_run(cfg, SH_TO_GENERATE, cache, NULL, out);
}

sh_rc sh_run_open_scoring(const struct sh_config *cfg, const struct sh_request_score *score, struct sh_run **out)
{
    return open_run(cfg, SH_TO_SCORE, NULL, score, out);
}

/* Also for a run that was opened in part. The save is abandoned first, because its child or thread reads the
 * snapshot. */
void sh_run_close(struct sh_run *r)
{
    if (!r)
        return;
    sh_run_save_abandon(r);
    sh_kept_close(r);
    sh_mesh_end_goes_on();
    if (r->comm)
        sh_comm_destroy(r->comm); /* before the labels that its reports show */
    sh_map_free(r->map);
    sh_exec_destroy(r->exec);
    if (r->device && r->device->close)
        r->device->close();
    if (r->mesh)
        sh_mesh_destroy(r->mesh);
    sh_program_destroy(r->p);
    free(r->folder);
    free(r->stage_bytes);
    free(r->resumed_from);
    free(r->parameters_from);
    free(r->before);
    sh_provenance_free(&r->provenance);
    free(r->guard);
    free(r->hf_config);
    free(r->chat_template);
    free(r->word_bytes);
    free(r->base.path);
    sh_ckpt_unlock(r->lock);
    free(r);
}
