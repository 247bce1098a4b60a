#include "src/plan/request.h"

#include "kernels/cuda/work.h"
#include "kernels/plug.h"
#include "kernels/rows.h"
#include "src/base/number/size.h"
#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/model/objective.h"
#include "src/pass/pipeline/order.h"
#include "src/plugin/plugin.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

static bool sees_gpu(char why[256])
{
    const struct sh_device *cuda = sh_device_find("cuda");

    snprintf(why, 256, "this sherd was built without CUDA");
    return cuda && cuda->count(why) > 0;
}

/* Which device, truth table:
 *   device=  kernels=  GPU seen  only_plan   result
 *   auto     not ref   yes       any         GPU
 *   auto     not ref   no        any         CPU; `why` says what is missing
 *   auto     ref       any       any         CPU
 *   cuda     any       any       yes         GPU, so that a laptop plans for a cluster
 *   cuda     any       no        no          error
 *   cpu      any       any       any         CPU */
sh_rc sh_request_gpu(const struct sh_config *cfg, bool only_plan, bool *gpu, char why[256])
{
    bool any = cfg->training.device == SH_DEVICE_AUTO && cfg->training.kernels != SH_KERNELS_REF;
    bool must = cfg->training.device == SH_DEVICE_CUDA;

    why[0] = '\0';
    *gpu = must && only_plan;
    if (*gpu || (!any && !must))
        return SH_OK;
    *gpu = sees_gpu(why);
    if (!*gpu && must)
        return sh_fail(SH_E_USAGE, "training.device=cuda: %s", why);
    /* A build without CUDA is no surprise to its user: training on the CPU then needs no explanation. */
    if (!sh_device_find("cuda"))
        why[0] = '\0';
    return SH_OK;
}

const struct sh_device *sh_request_device(const struct sh_config *cfg, bool gpu)
{
    return sh_device_find(gpu ? "cuda" : cfg->training.kernels == SH_KERNELS_REF ? "ref" : "cpu");
}

static const struct sh_kernel_table *kernels(const struct sh_config *cfg, bool gpu)
{
    return gpu ? &sh_kernels_cuda : sh_request_device(cfg, false)->kernels;
}

/* Sequences of a step; by default one micro-step per rank. */
int64_t sh_request_global_batch(const struct sh_config *cfg, int parts)
{
    if (cfg->training.global_batch_size > 0)
        return cfg->training.global_batch_size;
    return (int64_t)cfg->training.local_batch_size * parts;
}

/* Without a schedule, one phase. It was read when the configuration was checked. */
struct sh_batches sh_request_batches(const struct sh_config *cfg, int parts)
{
    struct sh_batches b;

    if (sh_batches_read(cfg->training.batch_schedule, &b) != SH_OK || b.n == 0)
        b = (struct sh_batches){.n = 1, .at = {{0, sh_request_global_batch(cfg, parts)}}};
    return b;
}

/* Micro-steps that each rank runs. A remainder is refused, not rounded: another batch size is another training run.
 * Example: 100 sequences do not divide among 8 ranks of 4; 96 is offered. */
static sh_rc count_micro_steps(const struct sh_config *cfg, int64_t global, int world, int *micro_steps)
{
    int64_t each = (int64_t)cfg->training.local_batch_size * world;

    if (global % each)
        return sh_fail(SH_E_USAGE,
                       "%s%lld does not divide into micro-steps of local_batch_size %d x %d "
                       "ranks = %lld sequences; nearest that does: %lld",
                       cfg->training.batch_schedule[0] ? "training.batch_schedule: " : "training.global_batch_size=",
                       (long long)global, cfg->training.local_batch_size, world, (long long)each,
                       /* At least one micro-step per rank, if the batch is smaller than half of that. */
                       (long long)((global + each / 2) / each > 0 ? (global + each / 2) / each * each : each));
    *micro_steps = (int)(global / each);
    return SH_OK;
}

static bool reproducible(const struct sh_config *cfg)
{
    return cfg->training.reproducible == SH_REPRODUCIBLE_MESH;
}

/* The largest power of two up to n. */
static int64_t power_below(int64_t n)
{
    int64_t power = 1;

    while (power * 2 <= n)
        power *= 2;
    return power;
}

/* For the tree over the global batch, whatever its size. */
static sh_rc check_ranks(const struct sh_config *cfg, int world)
{
    int each = cfg->parallelism.tensor_parallel_degree * cfg->parallelism.context_parallel_degree *
               cfg->parallelism.pipeline_parallel_degree;
    long long fits = (long long)power_below(world) * each;
    char groups[64] = "";

    if (sh_size_is_power_of_two(world))
        return SH_OK;
    if (each > 1)
        snprintf(groups, sizeof groups, "groups of %d ranks, each with other sequences", each);
    return sh_fail(SH_E_USAGE,
                   "training.reproducible=mesh needs a power-of-two number of %s, not %d; give %lld or %lld ranks",
                   each > 1 ? groups : "ranks", world, fits, 2 * fits);
}

/* Check what the tree over the global batch needs, so that each rank has a whole branch of it. */
static sh_rc check_tree(const struct sh_config *cfg, int64_t global, int world, int micro_steps)
{
    int64_t leaves = global / cfg->training.local_batch_size;
    int64_t below = power_below(leaves) * cfg->training.local_batch_size;

    if (!sh_size_is_power_of_two(leaves))
        return sh_fail(SH_E_USAGE,
                       "training.reproducible=mesh needs a power-of-two number of micro-steps over all ranks, but "
                       "global_batch_size %lld / local_batch_size %d is %lld; nearest global_batch_size: %lld or %lld",
                       (long long)global, cfg->training.local_batch_size, (long long)leaves, (long long)below,
                       (long long)below * 2);
    /* A micro-step's sum ends with the ranks that share its sequences; those of several would have to be summed one by
     * one. */
    if (micro_steps > 1 && cfg->parallelism.context_parallel_degree > 1)
        return sh_fail(
            SH_E_USAGE,
            "training.reproducible=mesh with parallelism.context_parallel_degree=%d takes one micro-step, not "
            "%d; give a training.global_batch_size of %lld or %d times as many ranks",
            cfg->parallelism.context_parallel_degree, micro_steps, (long long)cfg->training.local_batch_size * world,
            micro_steps);
    /* Each level of the tree keeps a gradient until its partner arrives, and SH_GRAD_LEVELS of them are planned. */
    if (micro_steps > 1 << SH_GRAD_LEVELS)
        return sh_fail(SH_E_USAGE,
                       "training.reproducible=mesh takes at most %d micro-steps on a rank, not %d; use more ranks or a "
                       "larger training.local_batch_size",
                       1 << SH_GRAD_LEVELS, micro_steps);
    return SH_OK;
}

/* The most micro-steps of a step, and the other numbers of them. */
static sh_rc count_steps(const struct sh_config *cfg, int parts, struct sh_pass_options *o)
{
    struct sh_batches b = sh_request_batches(cfg, parts);
    int64_t most = sh_batches_most(&b);

    if (reproducible(cfg))
        SH_TRY(check_ranks(cfg, parts));
    for (int i = 0; i < b.n; i++) {
        int n = 0;

        SH_TRY(count_micro_steps(cfg, b.at[i].sequences, parts, &n));
        if (reproducible(cfg))
            SH_TRY(check_tree(cfg, b.at[i].sequences, parts, n));
        if (b.at[i].sequences < most)
            o->fewer[o->n_fewer++] = n;
        else
            o->micro_steps = n;
    }
    if (o->n_fewer && cfg->parallelism.pipeline_parallel_degree > 1) /* a search tries stages too */
        return sh_fail(SH_E_USAGE, "training.batch_schedule: stages have one list of all micro-steps of a step");
    return SH_OK;
}

/* The number of ranks of a node that share a segment: all if shard groups lie within nodes and sharing gains something;
 * otherwise 0. */
static int segment_ranks(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_mesh_shape *mesh)
{
    int shard = sh_group_size(mesh, mesh->shard);
    bool fits = sh_topology_shares(cfg, at) && at->ranks_per_node % shard == 0;
    bool gains = shard > 1 || (at->world > 1 && at->world == at->ranks_per_node);
    /* Resharding asks for gathers over some of the ranks, so there must be gathers. */
    bool resharded = sh_group_size(mesh, mesh->inner) > 1;

    return fits && gains && !resharded ? at->ranks_per_node : 0;
}

static enum sh_dtype dtype_of(int precision)
{
    static const enum sh_dtype dtypes[] = {[SH_PRECISION_FLOAT32] = SH_F32,
                                           [SH_PRECISION_BFLOAT16] = SH_BF16,
                                           [SH_PRECISION_FLOAT16] = SH_F16,
                                           [SH_PRECISION_INT8] = SH_U8};

    return dtypes[precision];
}

/* Parts of the update have kernels for CPUs only. */
static sh_rc check_updates_of_gpus(const struct sh_config *cfg)
{
    if (cfg->optimizer.state_dtype == SH_PRECISION_INT8)
        return sh_fail(SH_E_USAGE,
                       "optimizer.state_dtype=int8: its kernels are for CPUs, but the job runs on GPUs; give "
                       "bfloat16, or training.device=cpu");
    return SH_OK;
}

/* Generation has a kernel of its own, which takes any size. */
static sh_rc check_heads_on_gpu(const struct sh_config *cfg)
{
    const struct sh_model *m = &cfg->model;

    for (int i = 0; i < m->n_layers; i++) {
        bool global = sh_family_is_global(m, i);
        int dim = global ? sh_family_global_dim(m) : m->head_dim;

        if (sh_family_has_mixer(m, i) && !sh_family_has_delta(m, i) && dim > SH_ATTENTION_MAX_DIM)
            return sh_fail(
                SH_E_USAGE,
                "model.%s=%d: attention on GPUs takes heads of at most %d elements; give training.device=cpu",
                global ? "global_head_dim" : "head_dim", dim, SH_ATTENTION_MAX_DIM);
    }
    return SH_OK;
}

/* Refuse what does not work with float16, or not yet on GPUs. */
static sh_rc check_device(const struct sh_config *cfg, const struct sh_topology *at, bool train)
{
    const struct {
        bool there;
        const char *what;
    } bars[] = {
        {at->gpu, "its kernels are for CPUs, but the job runs on GPUs; give bfloat16, or training.device=cpu"},
        {cfg->lora.rank > 0, "adapters (lora.rank) need a base in bfloat16 or float32; give one of these"},
    };
    const bool gpu = at->gpu;

    if (gpu && cfg->parallelism.gather_dtype == SH_GATHER_INT8)
        return sh_fail(SH_E_USAGE, "parallelism.gather_dtype=int8: its kernels are for CPUs, but the job runs on GPUs; "
                                   "give compute, or training.device=cpu");
    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++)
        if (cfg->training.mixed_precision_param == SH_PRECISION_FLOAT16 && bars[i].there)
            return sh_fail(SH_E_USAGE, "training.mixed_precision_param=float16: %s", bars[i].what);
    return gpu && train ? check_updates_of_gpus(cfg) : SH_OK;
}

/* Words of a teacher: no more than there are, and to make them a rank needs all logits of a row. */
static sh_rc check_top_words(const struct sh_config *cfg, enum sh_purpose purpose, bool gpu)
{
    bool makes = purpose == SH_TO_TEACH,
         learns = purpose == SH_TO_TRAIN && cfg->objective.name == SH_OBJECTIVE_DISTILLATION;

    if ((makes || learns) && cfg->objective.top_k > cfg->model.vocab_size)
        return sh_fail(SH_E_USAGE, "%s%d: the model has only %d words",
                       makes ? "--top-k " : "objective.top_k=", cfg->objective.top_k, cfg->model.vocab_size);
    if (makes && gpu)
        return sh_fail(SH_E_USAGE, "--top-k has kernels for CPUs only, but the job runs on GPUs; give "
                                   "--training.device=cpu");
    if (makes && (cfg->parallelism.tensor_parallel_degree > 1 || cfg->parallelism.pipeline_parallel_degree > 1))
        return sh_fail(SH_E_USAGE, "--top-k needs all blocks and whole matrices on each rank; leave out "
                                   "parallelism.tensor_parallel_degree and pipeline_parallel_degree");
    return SH_OK;
}

/* Chunks of all stages. */
static int chunks_of(const struct sh_config *cfg)
{
    int stages = cfg->parallelism.pipeline_parallel_degree, each = cfg->parallelism.pipeline_parallel_layers_per_stage;
    int blocks = cfg->model.n_layers + cfg->parallelism.pipeline_parallel_first_stage_less_layers +
                 cfg->parallelism.pipeline_parallel_last_stage_less_layers;

    if (stages == 1 || cfg->parallelism.pipeline_parallel_schedule != SH_SCHEDULE_INTERLEAVED)
        return stages;
    return each ? (blocks + each - 1) / each : 2 * stages;
}

static sh_rc check_interleaved(const struct sh_config *cfg, int micro_steps)
{
    int stages = cfg->parallelism.pipeline_parallel_degree, chunks = chunks_of(cfg);

    if (chunks % stages || chunks == stages)
        return sh_fail(
            SH_E_USAGE,
            "parallelism.pipeline_parallel_layers_per_stage=%d makes %d chunks, but %d interleaved stages need "
            "%d, %d, ...",
            cfg->parallelism.pipeline_parallel_layers_per_stage, chunks, stages, 2 * stages, 3 * stages);
    if (micro_steps % stages)
        return sh_fail(
            SH_E_USAGE,
            "parallelism.pipeline_parallel_schedule=Interleaved1F1B: %d stages need a multiple of %d "
            "micro-steps, but a step has %d; give another training.local_batch_size or global_batch_size, or "
            "ZBH1",
            stages, stages, micro_steps);
    return SH_OK;
}

/* Refuse stages without a block, and chunks that do not come out even. */
static sh_rc check_stages(const struct sh_config *cfg, int micro_steps)
{
    int stages = cfg->parallelism.pipeline_parallel_degree, layers = cfg->model.n_layers, chunks = chunks_of(cfg);
    int first = cfg->parallelism.pipeline_parallel_first_stage_less_layers;
    int last = cfg->parallelism.pipeline_parallel_last_stage_less_layers;

    if (stages > 1 && cfg->parallelism.pipeline_parallel_schedule == SH_SCHEDULE_INTERLEAVED)
        SH_TRY(check_interleaved(cfg, micro_steps));
    if (stages == 1 || sh_pipe_divides(layers, chunks, first, last))
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "parallelism.pipeline_parallel_degree=%d: with model.n_layers %d, first_stage_less_layers %d and "
        "last_stage_less_layers %d, not every stage has a block%s; give at most %d stages, or less of the others",
        stages, layers, first, last, chunks > stages ? " in each of its chunks" : "", layers / (chunks / stages));
}

/* Refuse what only some commands can do. */
static sh_rc check_purpose(const struct sh_config *cfg, enum sh_purpose purpose, bool gpu)
{
    if (cfg->model.num_labels && purpose != SH_TO_TRAIN && purpose != SH_TO_EVALUATE)
        return sh_fail(SH_E_USAGE,
                       "the model has model.num_labels %d and does not predict tokens; `sherd eval --data` "
                       "evaluates it",
                       cfg->model.num_labels);
    if (gpu && cfg->parallelism.tensor_parallel_degree > 1 && sh_family_of(cfg->model.family)->wide_qk_norm)
        return sh_fail(
            SH_E_USAGE,
            "parallelism.tensor_parallel_degree=%d: norms of all heads together have kernels for CPUs only, but the "
            "job runs on GPUs; give parallelism.context_parallel_degree, or --training.device=cpu",
            cfg->parallelism.tensor_parallel_degree);
    if (purpose == SH_TO_GENERATE && gpu && cfg->parallelism.tensor_parallel_degree > 1)
        return sh_fail(
            SH_E_USAGE,
            "parallelism.tensor_parallel_degree=%d: logits of a part of the words have kernels for CPUs only, but the "
            "job runs on GPUs; leave it out, or give --training.device=cpu",
            cfg->parallelism.tensor_parallel_degree);
    if ((purpose == SH_TO_GENERATE || purpose == SH_TO_SCORE) && cfg->parallelism.pipeline_parallel_degree > 1)
        return sh_fail(
            SH_E_USAGE,
            "parallelism.pipeline_parallel_degree=%d cuts layers for training and validation only; leave it out "
            "here, where any number of ranks loads the checkpoint",
            cfg->parallelism.pipeline_parallel_degree);
    if (purpose == SH_TO_TRAIN && cfg->parallelism.tensor_parallel_degree > 1 &&
        sh_optim_of(cfg->optimizer.name)->whole)
        return sh_fail(SH_E_USAGE,
                       "parallelism.tensor_parallel_degree=%d cuts matrices, which optimizer.name=%s updates as a "
                       "whole; leave it out, or give adamw",
                       cfg->parallelism.tensor_parallel_degree, sh_optim_of(cfg->optimizer.name)->name);
    if (purpose == SH_TO_TRAIN && cfg->lora.rank && cfg->checkpoint.last_save_in_hf)
        return sh_fail(
            SH_E_USAGE,
            "checkpoint.last_save_in_hf writes a whole model, and lora.rank=%d trains adapters; leave it out "
            "and use `sherd ckpt export FILE --adapter DIR`, or --merge",
            cfg->lora.rank);
    return SH_OK;
}

static struct sh_model_balance balance(const struct sh_config *cfg)
{
    return (struct sh_model_balance){.aux = (float)cfg->moe.aux_loss_coeff,
                                     .z = (float)cfg->moe.z_loss_coeff,
                                     .step = (float)cfg->moe.load_balance_coeff,
                                     .forced = cfg->debug.moe_force_load_balance};
}

/* The recomputation that activation_checkpoint asks for. A memory budget begins with nothing recomputed; fit() raises
 * it. */
static struct sh_recompute recompute(const struct sh_config *cfg)
{
    const struct sh_recompute requests[] = {
        [SH_RECOMPUTE_NONE] = {0},
        [SH_RECOMPUTE_MEMORY_BUDGET] = {0},
        [SH_RECOMPUTE_FULL] = {.full = SH_ALL_BLOCKS},
        [SH_RECOMPUTE_EVERY_K] = {.full = SH_ALL_BLOCKS, .every_k = cfg->activation_checkpoint.every_k},
        [SH_RECOMPUTE_SELECTIVE] = {.selective = SH_ALL_BLOCKS}};

    return requests[cfg->activation_checkpoint.mode];
}

/* The strategy's row, changed by keys. A reproducible sum needs all micro-steps on the rank before it meets others, so
 * it overrides gradient_sync. */
static struct sh_strategy keeps(const struct sh_config *cfg)
{
    struct sh_strategy s = strategy(cfg)->keeps;

    if (cfg->parallelism.gradient_sync != SH_GRAD_SYNC_AUTO)
        s.sync_last_only = cfg->parallelism.gradient_sync == SH_GRAD_SYNC_LAST;
    if (reproducible(cfg))
        s.sync_last_only = true;
    return s;
}

/* Rows of logits per chunk. On the CPU the model chooses, because logits should stay near the processor. On a GPU it
 * does not: each chunk reads and writes the gradient of the whole matrix, 8 bytes an element for 2 operations a row,
 * and at 200 operations a byte it takes 800 rows or more to hide that; with memory.limit_bytes sh_pass_widen() may
 * choose more. The free memory does not decide: the bits change with the number of rows, and what is free is not the
 * same at each start. */
static int64_t chunk_rows(const struct sh_config *cfg, bool gpu)
{
    enum { GPU_ROWS = 2048 };
    int64_t all =
        (int64_t)cfg->training.local_batch_size * cfg->training.seq_len / cfg->parallelism.context_parallel_degree;

    if (cfg->training.loss_chunk_rows || !gpu)
        return cfg->training.loss_chunk_rows;
    return all < GPU_ROWS ? all : GPU_ROWS;
}

static bool has_answers(const struct sh_config *cfg)
{
    return sh_objective_named(cfg->objective.name)->counts == SH_COUNTS_ANSWERS;
}

/* The EVAL section makes the reference's numbers. */
static bool has_reference(const struct sh_config *cfg)
{
    return has_answers(cfg) && sh_cfg_loss_takes(sh_config_loss(cfg)) & SH_TAKES_REFERENCE;
}

/* Whether sequences are rows of documents. The files have settled what "auto" stands for (src/run/feed.h), or there are
 * no files. */
static bool packs(const struct sh_config *cfg)
{
    return cfg->data.packing == SH_PACKING_BFD || cfg->data.packing == SH_PACKING_NONE || has_answers(cfg);
}

/* check.c has seen that the modules are there. */
struct sh_adapters sh_request_adapters(const struct sh_config *cfg)
{
    struct sh_adapters a = {.rank = cfg->lora.rank};
    char bad[SH_FAMILY_WORD];

    if (!a.rank ||
        sh_family_targets(&cfg->model, cfg->lora.target_modules, cfg->lora.target_parameters, &a.targets, bad))
        return (struct sh_adapters){0};
    a.scale = (float)(cfg->lora.alpha / (cfg->lora.use_rslora ? sqrt(a.rank) : (double)a.rank));
    return a;
}

/* A share of n, rounded up; 0.28 of 25 is 7, though the product of the two doubles is more. */
static int share_of(double share, int n)
{
    return (int)ceil(share * n * (1 - 1e-12));
}

/* Check that the device has the tiers that are asked for. check.c refuses the same if training.device names the
 * device. */
static sh_rc offload_fits(const struct sh_config *cfg, bool gpu)
{
    const struct {
        bool asked, gpu; /* of such a device it is impossible */
        const char *text;
    } bars[] = {
        {cfg->offload.mode == SH_OFFLOAD_BUDGET && !cfg->offload.nvme_path[0], false,
         "offload.mode=memory_budget: offload.nvme_path is missing; on CPUs give a folder on a local disk"},
        {cfg->offload.optimizer == SH_OFFLOAD_NVME, true,
         "offload.optimizer=nvme moves between a file and the memory of the CPU, and the job runs on GPUs; give cpu, "
         "their host's memory, or training.device=cpu"},
        {cfg->offload.gradients == SH_OFFLOAD_NVME, true,
         "offload.gradients=nvme moves between a file and the memory of the CPU, and the job runs on GPUs; give cpu, "
         "their host's memory, or training.device=cpu"},
        {cfg->offload.activations == SH_OFFLOAD_NVME, true,
         "offload.activations=nvme moves between a file and the memory of the CPU, and the job runs on GPUs; give cpu, "
         "their host's memory, or training.device=cpu"},
        {cfg->offload.optimizer == SH_OFFLOAD_CPU, false,
         "offload.optimizer=cpu is for GPUs, and the job runs on CPUs, whose memory has the states already; nvme puts "
         "them into a file"},
        {cfg->offload.gradients == SH_OFFLOAD_CPU, false,
         "offload.gradients=cpu is for GPUs, and the job runs on CPUs, whose memory has them already; nvme puts them "
         "into a file"},
        {cfg->offload.parameters == SH_OFFLOAD_CPU, false,
         "offload.parameters=cpu is for GPUs, and the job runs on CPUs, whose memory has them already; leave it out"},
        {cfg->offload.activations == SH_OFFLOAD_CPU, false,
         "offload.activations=cpu is for GPUs, and the job runs on CPUs, whose memory has them already; nvme puts them "
         "into a file"},
        {cfg->offload.parameters == SH_OFFLOAD_CPU && strategy(cfg)->keeps.params_resident, true,
         "offload.parameters=cpu is for strategies that gather parameters for each use; give "
         "parallelism.sharding_strategy=full_shard"},
    };

    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++)
        if (bars[i].asked && bars[i].gpu == gpu)
            return sh_fail(SH_E_USAGE, "%s", bars[i].text);
    return SH_OK;
}

/* What a run that trains moves to lower tiers: states, gradients, parameters and activations. */
static sh_rc offload(const struct sh_config *cfg, bool gpu, struct sh_offload *out)
{
    bool optimizer = cfg->offload.optimizer != SH_OFFLOAD_NONE, act = cfg->offload.activations != SH_OFFLOAD_NONE;

    SH_TRY(offload_fits(cfg, gpu));
    *out = (struct sh_offload){.buffers = cfg->offload.buffer_count,
                               .gradients = cfg->offload.gradients != SH_OFFLOAD_NONE,
                               .parameters = cfg->offload.parameters == SH_OFFLOAD_CPU};
    out->overlap = cfg->offload.overlap_update == SH_OVERLAP_AUTO;
    out->carry = optimizer && out->overlap;
    if (optimizer)
        out->optimizer_16 = share_of(cfg->offload.optimizer_ratio, 16);
    if (act)
        out->act_blocks = share_of(cfg->offload.activation_ratio, cfg->model.n_layers);
    return SH_OK;
}

bool sh_request_snapshot(const struct sh_config *cfg, bool gpu, bool states_away)
{
    return cfg->checkpoint.enable && ((gpu && !states_away) || cfg->checkpoint.async_mode == SH_ASYNC_ASYNC);
}

static struct sh_model_batch batch_of(const struct sh_config *cfg, bool gpu, bool generate)
{
    return (struct sh_model_batch){.batch = generate ? 1 : cfg->training.local_batch_size,
                                   .seq = cfg->training.seq_len,
                                   .docs = (cfg->data.document_mask || packs(cfg)) && !generate,
                                   .anew = packs(cfg) && !generate,
                                   .document_tokens = cfg->data.document_tokens,
                                   .any_order = gpu && !cfg->training.deterministic,
                                   .choose = gpu && !generate && cfg->training.measure_products,
                                   .adapters = sh_request_adapters(cfg),
                                   .balance = balance(cfg),
                                   .spread = {.capacity = cfg->moe.capacity_factor},
                                   .pairs = {.loss = sh_config_loss(cfg),
                                             .beta = cfg->objective.beta,
                                             .smoothing = cfg->objective.label_smoothing,
                                             .gamma = cfg->objective.gamma,
                                             .sft = cfg->objective.sft_weight,
                                             .desirable = cfg->objective.desirable_weight,
                                             .undesirable = cfg->objective.undesirable_weight,
                                             .center = cfg->objective.center_rewards_coefficient,
                                             .own = cfg->objective.plugin[0] ? sh_plug_find(cfg->objective.plugin) : 0},
                                   .teacher = {.top_k = cfg->objective.top_k,
                                               .temperature = cfg->objective.temperature,
                                               .alpha = cfg->objective.alpha},
                                   .chunk_rows = chunk_rows(cfg, gpu)};
}

/* What the passes are asked for. */
static struct sh_pass_options options_of(const struct sh_config *cfg, const struct sh_topology *at,
                                         const struct sh_mesh_shape *mesh, enum sh_purpose purpose,
                                         const struct sh_pass_options *steps)
{
    bool train = purpose == SH_TO_TRAIN, leaves = reproducible(cfg) && (train || purpose == SH_TO_EVALUATE);
    int segment = segment_ranks(cfg, at, mesh);
    struct sh_pass_options o = {
        .strategy = keeps(cfg),
        .mesh = *mesh,
        .segment_ranks = segment,
        .segment_rank = segment ? at->rank % segment : 0,
        .micro_steps = steps->micro_steps,
        .n_fewer = steps->n_fewer,
        .first_less = cfg->parallelism.pipeline_parallel_first_stage_less_layers,
        .last_less = cfg->parallelism.pipeline_parallel_last_stage_less_layers,
        .chunks = chunks_of(cfg) / cfg->parallelism.pipeline_parallel_degree,
        .weights_apart = cfg->parallelism.pipeline_parallel_schedule == SH_SCHEDULE_ZBH1,
        .training = train,
        .optim = sh_optim_of(cfg->optimizer.name),
        .ortho = {.kind = cfg->optimizer.muon_coefficients,
                  .steps = cfg->optimizer.ns_steps,
                  .split = cfg->optimizer.muon_split,
                  .adjust = cfg->optimizer.adjust_lr_fn,
                  .owners = cfg->optimizer.muon_ranks,
                  .narrow = at->gpu && cfg->training.mixed_precision_param == SH_PRECISION_BFLOAT16},
        .mup = {.width = cfg->optimizer.mup ? (double)cfg->model.dim / cfg->optimizer.mup_base_dim : 0,
                .eps = cfg->optimizer.eps,
                .weight_decay = cfg->optimizer.weight_decay},
        .state_dtype = dtype_of(cfg->optimizer.state_dtype),
        .gather_coded = cfg->parallelism.gather_dtype == SH_GATHER_INT8,
        .ema_decay = cfg->optimizer.ema_decay,
        .snapshot = train && sh_request_snapshot(cfg, at->gpu, cfg->offload.optimizer != SH_OFFLOAD_NONE),
        .reproducible = reproducible(cfg),
        .gather = sh_config_gathers(cfg),
        .row_leaves = leaves ? cfg->training.row_leaves : 1,
        .reduce = dtype_of(cfg->training.mixed_precision_reduce),
        .decay_all = cfg->optimizer.decay_all,
        .forward_prefetch = cfg->parallelism.forward_prefetch,
        .backward_prefetch = cfg->parallelism.backward_prefetch,
        .resident_units = cfg->parallelism.resident_units,
        .fetched = train && cfg->offload.parameters == SH_OFFLOAD_CPU,
        .gathers_alive = cfg->parallelism.limit_all_gathers,
    };

    memcpy(o.fewer, steps->fewer, sizeof o.fewer);
    memcpy(o.groups, cfg->optimizer.groups, sizeof o.groups);
    return o;
}

_Static_assert((int)SH_TILE_ROWS == (int)SH_ROW_BLOCK, "tiles of whole blocks change no bit");

/* An update is carried into the one section of first micro-steps. A step of a single micro-step has another. */
static void carry_into_one(struct sh_build *b)
{
    for (int i = 0; i < b->options.n_fewer; i++)
        if (b->options.fewer[i] == 1)
            b->offload.overlap = b->offload.carry = false;
}

/* Everything that the passes need to know, in one struct. Local, and the same on all ranks except for segment_rank,
 * threads and limit_bytes. */
sh_rc sh_request_build(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_mesh_shape *mesh,
                       enum sh_purpose purpose, int threads, int64_t limit_bytes, struct sh_build *out)
{
    bool generate = purpose == SH_TO_GENERATE, gpu = at->gpu;
    /* `parts`: the number of ranks with different data. These, not all ranks, divide the batch. */
    int parts = sh_group_size(mesh, mesh->data);
    struct sh_pass_options steps = {.micro_steps = 1};

    SH_TRY(check_device(cfg, at, purpose == SH_TO_TRAIN));
    SH_TRY(check_purpose(cfg, purpose, gpu));
    if (gpu && !generate)
        SH_TRY(check_heads_on_gpu(cfg));
    SH_TRY(check_top_words(cfg, purpose, gpu));
    SH_TRY(sh_plugin_open(cfg, gpu));
    if (purpose == SH_TO_TRAIN)
        SH_TRY(count_steps(cfg, parts, &steps));
    SH_TRY(check_stages(cfg, purpose == SH_TO_TRAIN ? steps.micro_steps : 0));
    *out = (struct sh_build){
        .model = cfg->model,
        .batch = batch_of(cfg, gpu, generate),
        .act = dtype_of(cfg->training.mixed_precision_param),
        .options = options_of(cfg, at, mesh, purpose, &steps),
        .recompute = recompute(cfg),
        .tile_rows = cfg->training.tile_rows == SH_TILE_ROWS_AUTO ? SH_TILE_ROWS : cfg->training.tile_rows,
        .tensor_tiles = generate ? 1 : cfg->parallelism.tensor_parallel_tiles,
        .row_block = cfg->debug.row_block,
        .packed = cfg->lora.quantize_base == SH_QUANTIZE_NF4,
        .fit = purpose == SH_TO_TRAIN && cfg->activation_checkpoint.mode == SH_RECOMPUTE_MEMORY_BUDGET,
        .fit_tiles = !cfg->training.tile_rows && cfg->offload.mode != SH_OFFLOAD_BUDGET,
        .fit_homes = purpose == SH_TO_TRAIN && cfg->offload.mode == SH_OFFLOAD_BUDGET,
        .widen = purpose == SH_TO_TRAIN && gpu && !cfg->training.loss_chunk_rows && cfg->memory.limit_bytes > 0,
        .evaluate = purpose == SH_TO_EVALUATE || purpose == SH_TO_TEACH ||
                    (purpose == SH_TO_TRAIN && (cfg->validation.enable || has_reference(cfg))),
        .logits = generate,
        .score = purpose == SH_TO_SCORE,
        .kernels = kernels(cfg, gpu),
        .snapshot_on_host = gpu,
        .threads = threads,
        .limit_bytes = limit_bytes,
        .file_limit_bytes = cfg->offload.nvme_limit_bytes,
        .host_limit_bytes = gpu ? cfg->memory.host_limit_bytes : 0,
    };
    if (purpose == SH_TO_TRAIN || cfg->model.num_labels == 1)
        out->batch.objective = sh_objective_named(cfg->objective.name);
    if (purpose == SH_TO_TRAIN) {
        SH_TRY(offload(cfg, gpu, &out->offload));
        carry_into_one(out);
    }
    if (purpose == SH_TO_TEACH)
        out->batch.top_k = cfg->objective.top_k;
    else if (cfg->model.num_labels > 1) /* the likeliest label, to count right ones */
        out->batch.top_k = 1;
    return sh_model_check(&out->model, &out->batch);
}

sh_rc sh_request_cached(const struct sh_request_cache *cache, bool resident, struct sh_build *build)
{
    build->batch.batch = cache->rows;
    build->batch.seq = cache->piece;
    build->batch.cache = cache->positions;
    build->options.strategy = (struct sh_strategy){.params_resident = resident};
    return sh_model_check(&build->model, &build->batch);
}

/* Ranks have equal parts of a row, and of its parts if they share matrices, of which exchanges have tiles; runs of queries
 * are whole panels, for which kernels are fast, unless the model has no room for these. Only texts give places their
 * positions: padding may lie past the last of a table. */
sh_rc sh_request_scored(const struct sh_request_score *score, struct sh_build *build)
{
    enum { PANEL = 32 };
    const struct sh_mesh_shape *mesh = &build->options.mesh;
    int runs = build->options.gather ? 2 : 1, parts = sh_group_size(mesh, mesh->context) * runs;
    int cut = parts * sh_group_size(mesh, mesh->tensor) * build->tensor_tiles;

    build->batch.batch = score->rows;
    build->batch.parts = parts;
    build->batch.docs = score->docs;
    build->batch.anew |= !score->docs;
    build->batch.out = SH_MODEL_SCORE;
    for (int panel = runs > 1 && score->seq >= cut * PANEL ? PANEL : 1;; panel = 1) {
        build->batch.seq = (score->seq + cut * panel - 1) / (cut * panel) * (cut * panel);
        if (panel == 1 || sh_model_check(&build->model, &build->batch) == SH_OK)
            return sh_model_check(&build->model, &build->batch);
        sh_error_clear();
    }
}
