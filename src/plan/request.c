/* Everything that the passes are asked for, from a configuration, a topology and a mesh. */
#include "src/plan/parts.h"

#include "kernels/plug.h"
#include "kernels/rows.h"
#include "src/config/family.h"
#include "src/cost/price.h"
#include "src/cost/rates.h"
#include "src/model/objective.h"
#include "src/plugin/plugin.h"

#include <math.h>
#include <string.h>

static enum sh_dtype dtype_of(int precision)
{
    static const enum sh_dtype dtypes[] = {[SH_PRECISION_FLOAT32] = SH_F32,
                                           [SH_PRECISION_BFLOAT16] = SH_BF16,
                                           [SH_PRECISION_FLOAT16] = SH_F16,
                                           [SH_PRECISION_INT8] = SH_U8};

    return dtypes[precision];
}

/* Words of a teacher: no more than there are, and to make them a rank needs all logits of a row. */
static sh_rc check_top_words(const struct sh_config *cfg, enum sh_purpose purpose)
{
    bool makes = purpose == SH_TO_TEACH,
         learns = purpose == SH_TO_TRAIN && cfg->objective.name == SH_OBJECTIVE_DISTILLATION;

    if ((makes || learns) && cfg->objective.top_k > cfg->model.vocab_size)
        return sh_fail(SH_E_USAGE, "%s%d: the model has only %d words",
                       makes ? "--top-k " : "objective.top_k=", cfg->objective.top_k, cfg->model.vocab_size);
    if (makes && (cfg->parallelism.tensor_parallel_degree > 1 || cfg->parallelism.pipeline_parallel_degree > 1))
        return sh_fail(SH_E_USAGE, "--top-k needs all blocks and whole matrices on each rank; leave out "
                                   "parallelism.tensor_parallel_degree and pipeline_parallel_degree");
    return SH_OK;
}

/* The operations that make a loss from words of several ranks, or from answers, have no weights of targets. */
static sh_rc check_weights(const struct sh_config *cfg)
{
    const struct {
        bool there;
        const char *text;
    } rows[] = {
        {cfg->objective.name != SH_OBJECTIVE_LM && cfg->objective.name != SH_OBJECTIVE_DISTILLATION,
         "objective.name makes weights of its own, unless it is lm or distillation"},
        {cfg->parallelism.tensor_parallel_degree > 1,
         "with parallelism.tensor_parallel_degree no rank has all words of a target"},
        {cfg->training.row_leaves > 1, "training.row_leaves cuts the rows that have them"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].there)
            return sh_fail(SH_E_USAGE,
                           "data.token_weight: the targets have weights, but %s; leave that out, or give "
                           "data.token_weight=off",
                           rows[i].text);
    return SH_OK;
}

/* Refuse what only some commands can do. */
static sh_rc check_purpose(const struct sh_config *cfg, enum sh_purpose purpose, bool gpu)
{
    if (cfg->model.num_labels && purpose != SH_TO_TRAIN && purpose != SH_TO_EVALUATE && purpose != SH_TO_LABEL)
        return sh_fail(SH_E_USAGE,
                       "the model has model.num_labels %d and does not predict tokens; `sherd eval --data` "
                       "evaluates it",
                       cfg->model.num_labels);
    if (purpose == SH_TO_LABEL && gpu && cfg->model.num_labels > SH_KD_WORDS)
        return sh_fail(SH_E_USAGE,
                       "sherd eval: -o: model.num_labels %d, and kernels for GPUs list at most %d logits of a text; "
                       "give --training.device=cpu",
                       cfg->model.num_labels, SH_KD_WORDS);
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
    return cfg->objective.name == SH_OBJECTIVE_MULTI_LABEL || cfg->data.packing == SH_PACKING_BFD ||
           cfg->data.packing == SH_PACKING_NONE || has_answers(cfg);
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

static struct sh_model_batch batch_of(const struct sh_config *cfg, bool gpu, bool generate)
{
    return (struct sh_model_batch){.batch = generate ? 1 : cfg->training.local_batch_size,
                                   .seq = cfg->training.seq_len,
                                   .docs = (cfg->data.document_mask || packs(cfg) || cfg->data.length_schedule[0]) &&
                                           !generate,
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
                                               .alpha = cfg->objective.alpha,
                                               .form = cfg->objective.kd_form},
                                   .z_loss = generate ? 0 : cfg->training.z_loss,
                                   .chunk_rows = chunk_rows(cfg, gpu)};
}

/* Operations of products for each byte that a rank sends to a replica in the same time, on a generic device and network: a
 * measurement would choose otherwise from start to start. */
static double worth_of_byte(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_mesh_shape *mesh,
                            bool narrow)
{
    int each = at->ranks_per_node > 1 ? at->ranks_per_node : 1;
    struct sh_mesh_shape first = *mesh;
    struct sh_coll_place place;
    struct sh_machine m;
    struct sh_price price;

    first.rank = 0; /* groups need not lie evenly on nodes, and all ranks choose alike */
    place = sh_coll_place(&first, first.replicate, each);
    sh_cost_assume_machine(cfg, at->gpu, &m);
    sh_cost_assume_network(at->gpu, each, &m);
    price = sh_price_coll(&m, &sh_cost_as_is, SH_OP_ALL_TO_ALL, &place, 0x1p30);
    return price.bytes > 0
               ? m.product.share * (narrow ? m.peak.bfloat16 : m.peak.float32) * price.transfer / price.bytes
               : 0;
}

/* Where nobody knows how many ranks a node has, one has all. */
static bool group_on_a_node(const struct sh_topology *at, const struct sh_mesh_shape *mesh)
{
    struct sh_mesh_shape first = *mesh;

    first.rank = 0;
    return !at->ranks_per_node || sh_coll_place(&first, first.shard, at->ranks_per_node).nodes == 1;
}

/* What the passes are asked for. */
static struct sh_pass_options options_of(const struct sh_config *cfg, const struct sh_topology *at,
                                         const struct sh_mesh_shape *mesh, enum sh_purpose purpose,
                                         const struct sh_pass_options *steps)
{
    bool train = purpose == SH_TO_TRAIN, leaves = sh_request_reproducible(cfg) && (train || purpose == SH_TO_EVALUATE);
    bool narrow = at->gpu && cfg->training.mixed_precision_param == SH_PRECISION_BFLOAT16;
    int segment = sh_request_segment(cfg, at, mesh);
    struct sh_pass_options o = {
        .strategy = sh_request_keeps(cfg),
        .mesh = *mesh,
        .segment_ranks = segment,
        .segment_rank = segment ? at->rank % segment : 0,
        .micro_steps = steps->micro_steps,
        .n_fewer = steps->n_fewer,
        .first_less = cfg->parallelism.pipeline_parallel_first_stage_less_layers,
        .last_less = cfg->parallelism.pipeline_parallel_last_stage_less_layers,
        .chunks = sh_request_chunks(cfg) / cfg->parallelism.pipeline_parallel_degree,
        .weights_apart = cfg->parallelism.pipeline_parallel_schedule == SH_SCHEDULE_ZBH1,
        .training = train,
        .optim = sh_optim_of(cfg->optimizer.name),
        .ortho = {.kind = cfg->optimizer.muon_coefficients,
                  .steps = cfg->optimizer.ns_steps,
                  .split = cfg->optimizer.muon_split,
                  .adjust = cfg->optimizer.adjust_lr_fn,
                  .owners = cfg->optimizer.muon_ranks,
                  .worth = worth_of_byte(cfg, at, mesh, narrow),
                  .near = group_on_a_node(at, mesh),
                  .narrow = narrow},
        .mup = {.width = cfg->optimizer.mup ? (double)cfg->model.dim / cfg->optimizer.mup_base_dim : 0,
                .eps = cfg->optimizer.eps,
                .weight_decay = cfg->optimizer.weight_decay},
        .state_dtype = dtype_of(cfg->optimizer.state_dtype),
        .gather_coded = cfg->parallelism.gather_dtype == SH_GATHER_INT8,
        .ema_decay = cfg->optimizer.ema_decay,
        .snapshot = train && sh_request_snapshot(cfg, at->gpu, cfg->offload.optimizer != SH_OFFLOAD_NONE),
        .reproducible = sh_request_reproducible(cfg),
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

void sh_request_carry(struct sh_build *b)
{
    const struct sh_pass_options *o = &b->options;
    bool exchanges = o->optim->finish && sh_group_size(&o->mesh, o->mesh.shard) > 1;

    b->offload.carry = b->offload.overlap && (b->offload.optimizer_16 > 0 || exchanges);
}

/* An update is carried into the one section of first micro-steps. A step of a single micro-step has another. */
static void carry_into_one(struct sh_build *b)
{
    for (int i = 0; i < b->options.n_fewer; i++)
        if (b->options.fewer[i] == 1)
            b->offload.overlap = false;
    sh_request_carry(b);
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

    SH_TRY(sh_request_check_device(cfg, at));
    SH_TRY(check_purpose(cfg, purpose, gpu));
    if (gpu && !generate)
        SH_TRY(sh_request_check_heads(cfg));
    SH_TRY(check_top_words(cfg, purpose));
    SH_TRY(sh_plugin_open(cfg, gpu));
    if (purpose == SH_TO_TRAIN)
        SH_TRY(sh_request_steps(cfg, parts, &steps));
    SH_TRY(sh_request_check_stages(cfg, purpose == SH_TO_TRAIN ? steps.micro_steps : 0));
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
        .evaluate = purpose == SH_TO_EVALUATE || purpose == SH_TO_TEACH || purpose == SH_TO_LABEL ||
                    purpose == SH_TO_REFER ||
                    (purpose == SH_TO_TRAIN && (cfg->validation.enable || has_reference(cfg))),
        .logits = generate,
        .score = purpose == SH_TO_SCORE,
        .kernels = sh_request_kernels(cfg, gpu),
        .snapshot_on_host = gpu,
        .threads = threads,
        .limit_bytes = limit_bytes,
        .file_limit_bytes = cfg->offload.nvme_limit_bytes,
        .host_limit_bytes = gpu ? cfg->memory.host_limit_bytes : 0,
    };
    if (purpose == SH_TO_TRAIN || purpose == SH_TO_REFER || cfg->model.num_labels)
        out->batch.objective = sh_objective_named(cfg->objective.name);
    if (purpose == SH_TO_TRAIN) {
        out->batch.weighted = cfg->data.token_weight ==
                              SH_MASK_MUST; /* auto is settled with the data: src/run/feed.h */
        if (out->batch.weighted)
            SH_TRY(check_weights(cfg));
        SH_TRY(sh_request_offload(cfg, gpu, &out->offload));
        carry_into_one(out);
    }
    if (purpose == SH_TO_TEACH)
        out->batch.top_k = cfg->objective.top_k;
    else if (purpose == SH_TO_LABEL)
        out->batch.top_k = cfg->model.num_labels;
    else if (cfg->model.num_labels > 1 && cfg->objective.name == SH_OBJECTIVE_LM)
        out->batch.top_k = 1; /* the likeliest label, to count right ones */
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
