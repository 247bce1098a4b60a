/* Checks that need more than one key. Each function returns the first problem of its subject, and sh_config_check()
 * collects them, so that a user sees the problems of all subjects at once. Checks that need the number of ranks or the
 * machine come later, once those are known. */
#include "src/config/check/check.h"

#include "src/base/number/size.h"
#include "src/base/string/str.h"
#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/config/rates.h"
#include "src/config/read/groups.h"
#include "src/config/read/place.h"

#include <inttypes.h>
#include <string.h>

/* Grouped-query attention shares each key-value head among the same number of query heads. */
static sh_rc check_heads(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->model.n_heads % c->model.n_kv_heads != 0)
        return sh_config_refuse(state, "model.n_kv_heads", "%d does not divide model.n_heads %d", c->model.n_kv_heads,
                                c->model.n_heads);
    if (!sh_family_of(c->model.family)->learned_positions && c->model.head_dim % 2 != 0)
        return sh_config_refuse(state, "model.head_dim", "%d is odd; %s", c->model.head_dim,
                                sh_family_of(c->model.family)->single ? "give an even size"
                                                                      : "rotary positions turn pairs of elements");
    return SH_OK;
}

/* Rotary positions turn part of a head or all of it. */
static sh_rc check_rotary(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    if (m->rotary_dim && (sh_family_of(m->family)->learned_positions || sh_family_of(m->family)->single))
        return sh_config_refuse(state, "model.rotary_dim", "%s has no rotary positions; leave it out",
                                sh_family_of(m->family)->name);
    if (m->rotary_dim % 2 != 0)
        return sh_config_refuse(state, "model.rotary_dim", "%d is odd; rotary positions turn pairs of elements",
                                m->rotary_dim);
    if (m->rotary_dim > sh_family_global_dim(m))
        return sh_config_refuse(state, "model.rotary_dim", "%d is more than model.%s %d", m->rotary_dim,
                                m->global_head_dim ? "global_head_dim" : "head_dim", sh_family_global_dim(m));
    return SH_OK;
}

/* Latent attention has widths of its own, and no other attention has them. */
static sh_rc check_latent(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    const struct sh_family *f = sh_family_of(m->family);
    const struct {
        const char *key;
        double value;
        bool needed;
    } rows[] = {{"model.kv_lora_rank", m->kv_lora_rank, true},
                {"model.v_head_dim", m->v_head_dim, true},
                {"model.q_lora_rank", m->q_lora_rank, false},
                {"model.rope_mscale_all_dim", m->rope_mscale_all_dim, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!f->kv_a && rows[i].value != 0)
            return sh_config_refuse(state, rows[i].key,
                                    "%s has no latent attention; leave it out, or give model.family=deepseek_v3",
                                    f->name);
        if (f->kv_a && rows[i].needed && rows[i].value == 0)
            return sh_config_refuse(state, rows[i].key, "needed with model.family=%s; give it", f->name);
    }
    if (!f->kv_a)
        return SH_OK;
    if (m->rotary_dim == 0)
        return sh_config_refuse(state, "model.rotary_dim", "needed with model.family=%s; give it", f->name);
    if (m->v_head_dim > m->head_dim)
        return sh_config_refuse(state, "model.v_head_dim", "%d is more than model.head_dim %d", m->v_head_dim,
                                m->head_dim);
    if (m->n_kv_heads != m->n_heads)
        return sh_config_refuse(state, "model.n_kv_heads", "%s needs as many as model.n_heads, %d, not %d", f->name,
                                m->n_heads, m->n_kv_heads);
    if (m->rope_mscale_all_dim != 0 && (m->rope_factor == 0 || m->rope_type != SH_ROPE_YARN))
        return sh_config_refuse(state, "model.rope_mscale_all_dim",
                                "has no effect without model.rope_type=yarn and model.rope_factor; leave it out");
    return SH_OK;
}

/* Keys for features that the family does not have. */
static sh_rc check_family(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct sh_family *f = sh_family_of(c->model.family);
    /* Queries, keys and values share one matrix, so all three have the same width. */
    if (f->one_width && c->model.n_kv_heads != c->model.n_heads)
        return sh_config_refuse(state, "model.n_kv_heads", "%s needs as many as model.n_heads, %d, not %d", f->name,
                                c->model.n_heads, c->model.n_kv_heads);
    if (f->one_width && (int64_t)c->model.head_dim * c->model.n_heads != c->model.dim)
        return sh_config_refuse(state, "model.head_dim", "%d * model.n_heads %d is not model.dim %d, as %s needs",
                                c->model.head_dim, c->model.n_heads, c->model.dim, f->name);
    if ((f->learned_positions || f->single) && c->model.rope_factor != 0)
        return sh_config_refuse(state, "model.rope_factor", "%s has no rotary positions; leave it out", f->name);
    bool attention = c->model.attention_bias && !f->attention_bias_key;
    if (attention || (c->model.mlp_bias && !f->mlp_bias_key))
        return sh_config_refuse(state, attention ? "model.attention_bias" : "model.mlp_bias",
                                "model.family=%s settles which products have biases; leave it out", f->name);
    if (f->learned_positions && sh_layers_any(&c->model, SH_LAYER_NOPE))
        return sh_config_refuse(state, "model.layer_types", "%s has no rotary positions that a block could lack",
                                f->name);
    return SH_OK;
}

/* Whether a user gave model.layer_types; the keys that it replaces may leave no block with a window. */
static bool typed_layers(struct sh_config_state *state)
{
    return sh_config_place_of(state, "model.layer_types")->source != SH_SOURCE_DEFAULT;
}

/* Blocks with a window need its size, and the other way round. */
static sh_rc check_window(struct sh_config_state *state)
{
    const struct sh_model *m = &state->cfg.model;
    if (m->attention_window == 0 && sh_layers_any(m, SH_LAYER_SLIDING))
        return sh_config_refuse(state, "model.layer_types", "blocks with a window need model.attention_window");
    if (m->attention_window && (typed_layers(state) || sh_family_of(m->family)->delta) &&
        !sh_layers_any(m, SH_LAYER_SLIDING))
        return sh_config_refuse(state, "model.attention_window", "model.layer_types has no block with a window");
    if (m->rope_local_base_freq != 0 && m->attention_window == 0)
        return sh_config_refuse(state, "model.rope_local_base_freq", "needs model.attention_window");
    if (m->rope_local_base_freq != 0 && sh_family_of(m->family)->learned_positions)
        return sh_config_refuse(state, "model.rope_local_base_freq", "%s has no rotary positions; leave it out",
                                sh_family_of(m->family)->name);
    if (m->rope_local_base_freq > 0 && m->rope_local_base_freq < 1)
        return sh_config_refuse(state, "model.rope_local_base_freq", "%g is below 1; give 0 or at least 1",
                                m->rope_local_base_freq);
    return SH_OK;
}

/* A list of longrope has one positive number for each pair of elements that turns. */
static sh_rc check_list(struct sh_config_state *state, const char *key, const char *text)
{
    const struct sh_model *m = &state->cfg.model;
    int wanted = (m->rotary_dim ? m->rotary_dim : m->head_dim) / 2, n = sh_str_numbers(text, NULL, 0);
    if (n < 0)
        return sh_config_refuse(state, key, "must be numbers above 0, separated by commas");
    if (n != wanted)
        return sh_config_refuse(state, key, "has %d numbers, but %d pairs of elements turn", n, wanted);
    return SH_OK;
}

static sh_rc check_longrope(struct sh_config_state *state)
{
    enum { MOST = 128 }; /* SH_ROPE_DIVISORS of kernels/op.h */
    const struct sh_model *m = &state->cfg.model;
    SH_TRY(check_list(state, "model.rope_short_factor", m->rope_short_factor));
    SH_TRY(check_list(state, "model.rope_long_factor", m->rope_long_factor));
    if ((m->rotary_dim ? m->rotary_dim : m->head_dim) / 2 > MOST)
        return sh_config_refuse(state, "model.rope_type", "longrope turns at most %d pairs of elements", MOST);
    if (m->rope_original_max_len < 2)
        return sh_config_refuse(state, "model.rope_original_max_len", "%d: longrope needs at least 2",
                                m->rope_original_max_len);
    return SH_OK;
}

/* Ranges: a formula divides by these values or takes their logarithms. */
static sh_rc check_rope(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    /* 0 is off, and learned positions have no rotation to scale. */
    if (c->model.rope_factor == 0 || sh_family_of(c->model.family)->learned_positions)
        return SH_OK;
    if (c->model.rope_factor < 1)
        return sh_config_refuse(state, "model.rope_factor", "%g would shorten the context; give 0 or at least 1",
                                c->model.rope_factor);
    if (c->model.rope_original_max_len == 0 && c->model.rope_type != SH_ROPE_LINEAR)
        return sh_config_refuse(state, "model.rope_original_max_len", "needed with model.rope_factor");
    if (c->model.rope_type == SH_ROPE_LLAMA3 && c->model.rope_high_freq_factor <= c->model.rope_low_freq_factor)
        return sh_config_refuse(state, "model.rope_high_freq_factor", "%g must be above model.rope_low_freq_factor %g",
                                c->model.rope_high_freq_factor, c->model.rope_low_freq_factor);
    if (c->model.rope_type == SH_ROPE_YARN && c->model.rope_beta_fast <= c->model.rope_beta_slow)
        return sh_config_refuse(state, "model.rope_beta_fast", "%g must be above model.rope_beta_slow %g",
                                c->model.rope_beta_fast, c->model.rope_beta_slow);
    if (c->model.rope_type == SH_ROPE_YARN && c->model.rope_theta <= 1)
        return sh_config_refuse(state, "model.rope_theta", "%g: all frequencies are one, which yarn cannot tell apart",
                                c->model.rope_theta);
    return c->model.rope_type == SH_ROPE_LONG ? check_longrope(state) : SH_OK;
}

/* The largest part of `whole` that is not above `most`. */
static int largest_part(int whole, int most)
{
    while (whole % most != 0)
        most--;
    return most;
}

/* Division by the number of ranks is not checked here: the number is not known yet. */
static sh_rc check_batch(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int local = c->training.local_batch_size, global = c->training.global_batch_size;
    if (c->training.seq_len > c->model.max_seq_len)
        return sh_config_refuse(state, "training.seq_len", "%d is longer than model.max_seq_len %d",
                                c->training.seq_len, c->model.max_seq_len);
    /* -1 stands for the default; 0 would make steps without data. */
    if (global == 0)
        return sh_config_refuse(state, "training.global_batch_size",
                                "0; give -1 for local_batch_size * ranks, or a number");
    if (global > 0 && global % local != 0) {
        char place[SH_CONFIG_PATH_MAX];
        sh_config_place_text(sh_config_place_of(state, "training.local_batch_size"), place);
        return sh_config_refuse(state, "training.global_batch_size",
                                "%d is not a multiple of training.local_batch_size %d, given %s; give "
                                "training.local_batch_size=%d, or training.global_batch_size=%d",
                                global, local, place, largest_part(global, local), (global / local + 1) * local);
    }
    return SH_OK;
}

/* A separator outside the vocabulary would never be found, and the mask would have no effect. */
static sh_rc check_documents(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->data.document_separator >= c->model.vocab_size)
        return sh_config_refuse(state, "data.document_separator", "%d is outside the vocabulary of %d tokens",
                                c->data.document_separator, c->model.vocab_size);
    if (c->data.mix[0] && c->training.dataset_path[0])
        return sh_config_refuse(state, "data.mix", "training.dataset_path is given as well; leave one of them out");
    /* Without it documents cannot be told apart. */
    if (c->data.document_mask && c->data.document_separator < 0)
        return sh_config_refuse(state, "data.document_mask",
                                "needs data.document_separator, the token that ends a document");
    return SH_OK;
}

/* Warm-up and the final decay of WSD may touch but not overlap: the overlap would have two rates. */
static sh_rc check_schedule(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int64_t total = c->lr_scheduler.total_steps > 0 ? c->lr_scheduler.total_steps : c->training.steps;
    int64_t warmup = c->lr_scheduler.warmup_steps;
    int type = c->lr_scheduler.decay_type, shape = sh_cfg_decay_has_tail(type) ? c->lr_scheduler.decay_shape : type;
    /* The rate would never reach its peak. */
    if (warmup > total)
        return sh_config_refuse(state, "lr_scheduler.warmup_steps",
                                "%" PRId64 " is more than all %" PRId64 " steps; give fewer, such as "
                                "--lr_scheduler.warmup_steps=0, or more training.steps",
                                warmup, total);
    if (shape == SH_DECAY_EXP && c->lr_scheduler.min_lr_factor <= 0)
        return sh_config_refuse(state, "lr_scheduler.min_lr_factor",
                                "0: an exponential never gets there; give more, such as 0.01, or sqrt or linear");
    if (!sh_cfg_decay_has_tail(type))
        return SH_OK;
    if ((double)warmup + c->lr_scheduler.decay_ratio * (double)total > (double)total)
        return sh_config_refuse(state, "lr_scheduler.decay_ratio",
                                "%g of %" PRId64 " steps and %" PRId64 " warmup_steps overlap; make one of them less",
                                c->lr_scheduler.decay_ratio, total, warmup);
    return SH_OK;
}

/* Only strategies that drop parameters after the forward can keep a part of them instead. */
static sh_rc check_parallelism(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int strategy = c->parallelism.sharding_strategy;
    bool reshards = strategy == SH_FULL_SHARD || strategy == SH_HYBRID_SHARD;
    if (c->parallelism.reshard_after_forward > 1 && !reshards)
        return sh_config_refuse(state, "parallelism.reshard_after_forward",
                                "%d needs sharding_strategy full_shard or hybrid_shard;"
                                " the others do not reshard",
                                c->parallelism.reshard_after_forward);
    return SH_OK;
}

/* training.reproducible=mesh promises the same bits on every mesh. These keys let the mesh or a clock change a
 * rounding, so each is refused with the reason. */
static sh_rc check_reproducible(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && c->parallelism.gradient_sync == SH_GRAD_SYNC_EVERY)
        return sh_config_refuse(state, "parallelism.gradient_sync",
                                "every_micro_step sums over the ranks before the micro-steps, but"
                                " training.reproducible=mesh sums over the micro-steps first; leave it out");
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && c->training.mixed_precision_reduce != SH_PRECISION_FLOAT32)
        return sh_config_refuse(state, "training.mixed_precision_reduce",
                                "bfloat16 rounds what is sent, and what is sent depends on the mesh; leave it out with"
                                " training.reproducible=mesh");
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && !c->training.deterministic)
        return sh_config_refuse(
            state, "training.deterministic",
            "false gives different bits in each run, but training.reproducible=mesh gives the same bits on every"
            " mesh; leave one of them out");
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && c->training.measure_products)
        return sh_config_refuse(
            state, "training.measure_products",
            "measured times may choose other kernels on another mesh, but training.reproducible=mesh gives the same"
            " bits on every mesh; leave one of them out");
    return SH_OK;
}

/* Only powers of two scale gradients, and scale them back, without rounding. */
static sh_rc check_scale(struct sh_config_state *state, const char *key, int64_t scale)
{
    if (sh_size_is_power_of_two(scale))
        return SH_OK;
    return sh_config_refuse(
        state, key, "%" PRId64 " is not a power of two; only these scale without rounding, such as 65536", scale);
}

/* Conflicts of float16 with a machine are checked by src/plan/request.c. */
static sh_rc check_float16(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->training.loss_scale != SH_LOSS_SCALE_DYNAMIC)
        SH_TRY(check_scale(state, "training.loss_scale", c->training.loss_scale));
    SH_TRY(check_scale(state, "training.loss_scale_init", c->training.loss_scale_init));
    if (c->training.mixed_precision_param == SH_PRECISION_FLOAT16 &&
        c->training.mixed_precision_reduce != SH_PRECISION_FLOAT32)
        return sh_config_refuse(state, "training.mixed_precision_reduce",
                                "bfloat16 keeps 8 of float16's 11 bits; leave it out with"
                                " training.mixed_precision_param=float16");
    return SH_OK;
}

static sh_rc check_tiles(struct sh_config_state *state)
{
    int64_t rows = state->cfg.training.tile_rows, tile = rows == SH_TILE_ROWS_AUTO ? SH_TILE_ROWS : rows;
    int64_t leaves = state->cfg.training.row_leaves, leaf = state->cfg.training.seq_len / leaves;

    if (rows > 0 && rows % 64)
        return sh_config_refuse(state, "training.tile_rows",
                                "%" PRId64 " is not a multiple of 64; nearest that is: %" PRId64, rows,
                                (rows + 63) / 64 * 64);
    if (leaves > 1 && rows && leaf % tile && tile % leaf)
        return sh_config_refuse(state, "training.tile_rows",
                                "%" PRId64 " is neither a divisor nor a multiple of the %" PRId64
                                " tokens of a leaf (training.seq_len / training.row_leaves)",
                                tile, leaf);
    return SH_OK;
}

/* device=auto is not checked here: its outcome is known only on the node. */
static sh_rc check_device(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->training.device == SH_DEVICE_CUDA && c->training.kernels == SH_KERNELS_REF)
        return sh_config_refuse(state, "training.kernels",
                                "ref kernels run on the CPU; leave out training.device=cuda");
    if (c->training.device == SH_DEVICE_CPU && c->comm.backend == SH_COMM_NCCL)
        return sh_config_refuse(state, "comm.backend", "nccl is for GPUs; leave it out with training.device=cpu");
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && c->comm.backend == SH_COMM_NCCL)
        return sh_config_refuse(state, "comm.backend",
                                "nccl sums in its own order, not in the tree of training.reproducible=mesh; give"
                                " mpi, or leave it out");
    return SH_OK;
}

/* Otherwise the mode would be accepted and have no effect. */
static sh_rc check_recompute(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    bool every_k = c->activation_checkpoint.mode == SH_RECOMPUTE_EVERY_K;
    if (every_k && c->activation_checkpoint.every_k > c->model.n_layers)
        return sh_config_refuse(state, "activation_checkpoint.every_k",
                                "%d is more than model.n_layers %d; no block would be"
                                " recomputed",
                                c->activation_checkpoint.every_k, c->model.n_layers);
    if (c->activation_checkpoint.mode == SH_RECOMPUTE_MEMORY_BUDGET && c->memory.limit_bytes == 0)
        return sh_config_refuse(state, "activation_checkpoint.mode",
                                "memory_budget fits memory.limit_bytes; give that too, such as 60GiB");
    return SH_OK;
}

static sh_rc check_rates(struct sh_config_state *state)
{
    struct sh_config_rates rates;
    const char *bad;
    if (sh_config_rates(state->cfg.offload.rates, &rates, &bad))
        return SH_OK;
    return sh_config_refuse(
        state, "offload.rates",
        "'%.40s' is not a rate; give file=READ/WRITE and perhaps mixed=BOTH, or host=READ/WRITE, in bytes per "
        "second, as `sherd bench tier` prints them",
        bad);
}

/* offload.mode=memory_budget: its choices must not be given by other keys as well. It needs a limit and, on CPUs, a
 * folder for the files. */
static sh_rc check_offload_budget(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct {
        const char *key;
        int where;
    } chosen[] = {{"offload.optimizer", c->offload.optimizer},
                  {"offload.gradients", c->offload.gradients},
                  {"offload.parameters", c->offload.parameters},
                  {"offload.activations", c->offload.activations}};
    for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++)
        if (chosen[i].where != SH_OFFLOAD_NONE)
            return sh_config_refuse(state, chosen[i].key,
                                    "offload.mode=memory_budget chooses it; leave out one of them");
    if (c->memory.limit_bytes == 0)
        return sh_config_refuse(state, "offload.mode",
                                "memory_budget fits memory.limit_bytes; give that too, such as 60GiB");
    /* With device=auto there may be a GPU, which moves tensors to its host instead; request.c checks again. */
    if (!c->offload.nvme_path[0] && c->training.device == SH_DEVICE_CPU)
        return sh_config_refuse(state, "offload.mode",
                                "memory_budget: offload.nvme_path is missing; give a folder on a local disk");
    return SH_OK;
}

/* Tiers that the device does not have, if the configuration names the device. */
static sh_rc check_tiers(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct {
        const char *key;
        bool asked;
        int device;
        const char *text;
    } rows[] = {
        {"offload.optimizer", c->offload.optimizer == SH_OFFLOAD_NVME, SH_DEVICE_CUDA,
         "nvme moves between a file and the memory of the CPU, not of a GPU; give cpu, the memory of its host"},
        {"offload.gradients", c->offload.gradients == SH_OFFLOAD_NVME, SH_DEVICE_CUDA,
         "nvme moves between a file and the memory of the CPU, not of a GPU; give cpu, the memory of its host"},
        {"offload.activations", c->offload.activations == SH_OFFLOAD_NVME, SH_DEVICE_CUDA,
         "nvme moves between a file and the memory of the CPU, not of a GPU; give cpu, the memory of its host"},
        {"offload.optimizer", c->offload.optimizer == SH_OFFLOAD_CPU, SH_DEVICE_CPU,
         "cpu is for GPUs: with training.device=cpu the states are in the CPU's memory already; nvme puts them into a "
         "file"},
        {"offload.gradients", c->offload.gradients == SH_OFFLOAD_CPU, SH_DEVICE_CPU,
         "cpu is for GPUs: with training.device=cpu the gradients are in the CPU's memory already; nvme puts them into "
         "a file"},
        {"offload.parameters", c->offload.parameters == SH_OFFLOAD_CPU, SH_DEVICE_CPU,
         "cpu is for GPUs: with training.device=cpu the parameters are in the CPU's memory already; leave it out"},
        {"offload.activations", c->offload.activations == SH_OFFLOAD_CPU, SH_DEVICE_CPU,
         "cpu is for GPUs: with training.device=cpu activations are in the CPU's memory already; nvme puts them into a "
         "file"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].asked && c->training.device == rows[i].device)
            return sh_config_refuse(state, rows[i].key, "%s", rows[i].text);
    return SH_OK;
}

/* Checks that need the machine are made when a run opens its file. */
static sh_rc check_offload(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct {
        const char *key, *ratio;
        int where;
        double share;
    } rows[] = {
        {"offload.optimizer", "offload.optimizer_ratio", c->offload.optimizer, c->offload.optimizer_ratio},
        {"offload.gradients", NULL, c->offload.gradients, 1},
        {"offload.activations", "offload.activation_ratio", c->offload.activations, c->offload.activation_ratio},
    };

    SH_TRY(check_rates(state));
    SH_TRY(check_tiers(state));
    if (c->offload.mode == SH_OFFLOAD_BUDGET)
        return check_offload_budget(state);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].where == SH_OFFLOAD_NONE)
            continue;
        if (rows[i].share <= 0)
            return sh_config_refuse(state, rows[i].ratio, "0 moves nothing; leave out %s", rows[i].key);
        if (rows[i].where == SH_OFFLOAD_NVME && !c->offload.nvme_path[0])
            return sh_config_refuse(state, rows[i].key,
                                    "nvme: offload.nvme_path is missing; give a folder on a local disk");
    }
    return SH_OK;
}

/* Which keys move optimizer states to a lower tier, which move anything, and which move anything to a file. */
#define TAIL "lr_scheduler.decay_type=wsd or power_tail"
#define STATES_AWAY "offload.optimizer=cpu or nvme, or offload.mode=memory_budget"
#define DYNAMIC "training.mixed_precision_param=float16 and training.loss_scale=dynamic"
#define ANYWHERE_ELSE "offload.mode=memory_budget, or another key of offload that moves tensors off the device"
#define IN_A_FILE "offload.optimizer, offload.gradients or offload.activations=nvme, or offload.mode=memory_budget"

/* Whether the positions of any block turn at frequencies of model.rope_theta. */
static bool has_theta(const struct sh_model *m)
{
    const unsigned without = SH_LAYER_NOPE | SH_LAYER_LINEAR | SH_LAYER_MLP |
                             (m->rope_local_base_freq != 0 ? SH_LAYER_SLIDING : 0);
    for (int i = 0; i < m->n_layers && !sh_family_of(m->family)->learned_positions; i++)
        if (!(sh_layers_kind(m, i) & without))
            return true;
    return false;
}

/* Refuse what was typed on the command line and has no effect because of another key. In a file such keys are allowed:
 * every printed configuration has them, and they may serve a mode that the command line chooses. */
static sh_rc check_idle(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const bool half = c->training.mixed_precision_param == SH_PRECISION_FLOAT16;
    const bool dynamic = half && c->training.loss_scale == SH_LOSS_SCALE_DYNAMIC;
    bool budget = c->offload.mode == SH_OFFLOAD_BUDGET, states = budget || c->offload.optimizer != SH_OFFLOAD_NONE;
    bool file = (budget && c->training.device != SH_DEVICE_CUDA) || c->offload.optimizer == SH_OFFLOAD_NVME ||
                c->offload.gradients == SH_OFFLOAD_NVME || c->offload.activations == SH_OFFLOAD_NVME;
    bool moves = file || states || c->offload.gradients != SH_OFFLOAD_NONE ||
                 c->offload.parameters != SH_OFFLOAD_NONE || c->offload.activations != SH_OFFLOAD_NONE;
    const struct {
        const char *name, *needs;
        bool used;
    } keys[] = {
        {"training.loss_scale", "training.mixed_precision_param=float16", half},
        {"training.loss_scale_init", DYNAMIC, dynamic},
        {"training.loss_scale_window", DYNAMIC, dynamic},
        {"training.row_leaves", "training.reproducible=mesh", c->training.reproducible == SH_REPRODUCIBLE_MESH},
        {"parallelism.context_parallel_method", "parallelism.context_parallel_degree above 1",
         c->parallelism.context_parallel_degree > 1},
        {"model.rope_theta", "blocks with rotary positions of this base", has_theta(&c->model)},
        {"model.rope_type", "model.rope_factor", c->model.rope_factor != 0},
        {"model.rope_low_freq_factor", "model.rope_type=llama3", c->model.rope_type == SH_ROPE_LLAMA3},
        {"model.rope_high_freq_factor", "model.rope_type=llama3", c->model.rope_type == SH_ROPE_LLAMA3},
        {"model.rope_original_max_len", "model.rope_type=llama3, yarn or longrope",
         c->model.rope_type != SH_ROPE_LINEAR},
        {"model.rope_short_factor", "model.rope_type=longrope", c->model.rope_type == SH_ROPE_LONG},
        {"model.rope_long_factor", "model.rope_type=longrope", c->model.rope_type == SH_ROPE_LONG},
        {"model.rope_beta_fast", "model.rope_type=yarn", c->model.rope_type == SH_ROPE_YARN},
        {"model.rope_beta_slow", "model.rope_type=yarn", c->model.rope_type == SH_ROPE_YARN},
        {"model.rope_attention_factor", "model.rope_type=yarn or longrope",
         c->model.rope_type == SH_ROPE_YARN || c->model.rope_type == SH_ROPE_LONG},
        {"model.rope_truncate", "model.rope_type=yarn", c->model.rope_type == SH_ROPE_YARN},
        {"activation_checkpoint.every_k", "activation_checkpoint.mode=every_k",
         c->activation_checkpoint.mode == SH_RECOMPUTE_EVERY_K},
        {"comm.share_gpu", "GPUs, but training.device is cpu", c->training.device != SH_DEVICE_CPU},
        {"comm.nccl_max_ctas", "GPUs and comm.backend=nccl",
         c->training.device != SH_DEVICE_CPU && c->comm.backend != SH_COMM_MPI},
        {"guard.max_skips", "guard.action=skip", c->guard.action == SH_GUARD_SKIP},
        {"guard.max_rollbacks", "guard.action=rollback", c->guard.action == SH_GUARD_ROLLBACK},
        {"lr_scheduler.decay_ratio", TAIL, sh_cfg_decay_has_tail(c->lr_scheduler.decay_type)},
        {"lr_scheduler.decay_shape", TAIL, sh_cfg_decay_has_tail(c->lr_scheduler.decay_type)},
        {"lr_scheduler.power", "lr_scheduler.decay_type=power or power_tail",
         c->lr_scheduler.decay_type == SH_DECAY_POWER || c->lr_scheduler.decay_type == SH_DECAY_POWER_TAIL},
        {"lr_scheduler.min_lr_factor", "a decay_type that ends",
         c->lr_scheduler.decay_type != SH_DECAY_CONSTANT && c->lr_scheduler.decay_type != SH_DECAY_POWER},
        {"checkpoint.export_dtype", "checkpoint.last_save_in_hf=true", c->checkpoint.last_save_in_hf},
        {"checkpoint.initial_load_in_hf", "model.hf_assets_path", c->hf.assets_path[0] != '\0'},
        {"checkpoint.last_save_in_hf", "checkpoint.enable=true", c->checkpoint.enable},
        {"checkpoint.near_limit_bytes", "checkpoint.near_interval=1 or more", c->checkpoint.near_interval > 0},
        {"checkpoint.near_copies", "checkpoint.near_interval=1 or more", c->checkpoint.near_interval > 0},
        {"checkpoint.near_distance", "checkpoint.near_copies=2", c->checkpoint.near_copies > 1},
        {"checkpoint.near_silence_seconds", "checkpoint.near_interval=1 or more", c->checkpoint.near_interval > 0},
        {"checkpoint.max_shard_size", "checkpoint.last_save_in_hf=true", c->checkpoint.last_save_in_hf},
        {"model.hf_ignore", "model.hf_assets_path", c->hf.assets_path[0] != '\0'},
        {"data.excess_length_strategy", "data.packing=bfd or none", c->data.packing != SH_PACKING_CONCAT},
        {"offload.optimizer_ratio", "offload.optimizer=cpu or nvme", c->offload.optimizer != SH_OFFLOAD_NONE},
        {"offload.overlap_update", STATES_AWAY, states},
        {"offload.activation_ratio", "offload.activations=cpu or nvme", c->offload.activations != SH_OFFLOAD_NONE},
        {"offload.buffer_count", STATES_AWAY, states},
        {"offload.verify", IN_A_FILE, file},
        {"offload.allow_network", IN_A_FILE, file},
        {"offload.nvme_limit_bytes", IN_A_FILE, file},
        {"offload.nvme_path", IN_A_FILE, file},
        {"offload.rates", ANYWHERE_ELSE, moves},
        {"memory.host_limit_bytes", "GPUs, but training.device is cpu", c->training.device != SH_DEVICE_CPU},
        {"debug.fingerprint_steps", "debug.fingerprint", c->debug.fingerprint[0] != '\0'},
        {"mup.base_dim", "mup.enable=true", c->optimizer.mup},
        {"lora.alpha", "lora.rank", c->lora.rank > 0},
        {"lora.target_modules", "lora.rank", c->lora.rank > 0},
        {"lora.target_parameters", "lora.rank", c->lora.rank > 0},
        {"lora.use_rslora", "lora.rank", c->lora.rank > 0},
        {"lora.quantize_base", "lora.rank", c->lora.rank > 0},
        {"lora.adapter_path", "lora.rank", c->lora.rank > 0},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!keys[i].used && sh_config_place_typed(sh_config_place_of(state, keys[i].name)))
            return sh_config_refuse(state, keys[i].name, "has no effect without %s", keys[i].needs);
    return SH_OK;
}

/* The words of optimizer.name, and which of the keys that some optimizers do not read each of them reads. */
static const struct {
    const char *word, *reads;
} optimizers[] = {
#define OPTIM(id, word, means, reads, ...) [SH_OPTIM_##id] = {word, reads},
#include "src/config/optim.inc"
#undef OPTIM
};

/* Whether a list of words, separated by blanks, has this one. */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (; *list != '\0'; list += strcspn(list, " "), list += *list == ' ')
        if (strcspn(list, " ") == length && strncmp(list, word, length) == 0)
            return true;
    return false;
}

/* Like check_idle(), for a key that only the optimizers in the message read. */
static sh_rc check_optimizer(struct sh_config_state *state)
{
    static const char section[] = "optimizer.";
    for (int i = 0; i < sh_config_n_keys; i++) {
        const char *name = sh_config_keys[i].name;
        char readers[64] = "";
        if (!sh_config_place_typed(&state->given[i]) || strncmp(name, section, sizeof section - 1) != 0)
            continue;
        const char *key = name + sizeof section - 1;
        for (int k = 0; k < SH_OPTIMS; k++)
            if (has_word(optimizers[k].reads, key))
                sh_str_add(readers, sizeof readers, " or ", optimizers[k].word);
        if (readers[0] != '\0' && !has_word(optimizers[state->cfg.optimizer.name].reads, key))
            return sh_config_refuse(state, name, "has no effect without optimizer.name=%s", readers);
    }
    return SH_OK;
}

/* Codes of eight bits have operations of their own. */
static sh_rc check_codes(struct sh_config_state *state)
{
    int name = state->cfg.optimizer.name;

    if (state->cfg.optimizer.state_dtype != SH_PRECISION_INT8 || has_word(optimizers[name].reads, "int8"))
        return SH_OK;
    return sh_config_refuse(state, "optimizer.state_dtype",
                            "int8 is for optimizer.name=adamw and lion; give bfloat16 for %s", optimizers[name].word);
}

/* A packed base is gathered in four bits, and the adapters beside it are small. */
static sh_rc check_gathers(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;

    if (c->parallelism.gather_dtype != SH_GATHER_INT8)
        return SH_OK;
    if (c->lora.quantize_base == SH_QUANTIZE_NF4)
        return sh_config_refuse(state, "parallelism.gather_dtype",
                                "lora.quantize_base=nf4 keeps and gathers the base in fewer bits already; leave one of "
                                "them out");
    if (c->training.reproducible == SH_REPRODUCIBLE_MESH && c->parallelism.expert_parallel_degree > 1)
        return sh_config_refuse(state, "parallelism.gather_dtype",
                                "int8 rounds experts differently on several ranks than on one; leave it out, or "
                                "training.reproducible=mesh");
    return SH_OK;
}

/* What a group says of the optimizer is of muon's matrices. */
static sh_rc check_groups(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    struct sh_config_group groups[SH_CONFIG_GROUPS_MAX];
    int n;
    SH_TRY(sh_config_groups(c->optimizer.groups, groups, &n));
    for (int i = 0; i < n; i++)
        if (groups[i].adamw && !sh_cfg_is_muon(c->optimizer.name))
            return sh_config_refuse(state, "optimizer.groups",
                                    "pattern '%s': optimizer=adamw is for optimizer.name=muon and normuon; "
                                    "one run has one optimizer otherwise",
                                    groups[i].pattern);
    return SH_OK;
}

/* What has no factors of widths, and widths that are no whole number of heads. */
static sh_rc check_mup(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;

    if (!c->optimizer.mup)
        return SH_OK;
    if (c->model.tie_word_embeddings)
        return sh_config_refuse(state, "mup.enable",
                                "the output matrix needs other factors than the embedding, but both are one; give "
                                "model.tie_word_embeddings=false");
    if (c->lora.rank)
        return sh_config_refuse(state, "mup.enable",
                                "is for matrices that are trained, and those beside adapters are not; leave it out, or "
                                "lora.rank");
    if (c->model.n_experts)
        return sh_config_refuse(
            state, "mup.enable",
            "is for models without experts: no factor of their routers has been tried; leave it out");
    if (c->optimizer.name == SH_OPTIM_SGD)
        return sh_config_refuse(state, "mup.enable",
                                "its factors are for steps that do not grow with the gradient; give "
                                "optimizer.name=adamw, lion or muon");
    if (sh_cfg_is_muon(c->optimizer.name) && c->optimizer.adjust_lr_fn == SH_ADJUST_MATCH_RMS_ADAMW)
        return sh_config_refuse(state, "mup.enable",
                                "optimizer.adjust_lr_fn=match_rms_adamw makes steps that grow with the width; give "
                                "spectral_unclamped");
    if (c->optimizer.mup_base_dim % c->model.head_dim)
        return sh_config_refuse(state, "mup.base_dim",
                                "%d is not a multiple of model.head_dim %d, which all widths must have in common",
                                c->optimizer.mup_base_dim, c->model.head_dim);
    return SH_OK;
}

static sh_rc check_mean(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;

    if (!c->validation.ema || c->optimizer.ema_decay > 0)
        return SH_OK;
    return sh_config_refuse(state, "validation.ema",
                            "the run keeps no average of its parameters; give optimizer.ema_decay, such as 0.999");
}

/* A normal distribution has 2 % of its values above two deviations; with a lower bound the guard would skip ordinary
 * steps. */
static sh_rc check_guard(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->guard.z_score > 0 && c->guard.z_score < 2)
        return sh_config_refuse(state, "guard.z_score", "%g would skip many good steps; give 0 (off) or at least 2",
                                c->guard.z_score);
    if (c->guard.action == SH_GUARD_ROLLBACK && !c->checkpoint.enable)
        return sh_config_refuse(state, "guard.action", "rollback needs checkpoints, but checkpoint.enable=false");
    return SH_OK;
}

/* The state must be in memory, and what is lost with the memory must be in a file. */
static sh_rc check_near(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;

    if (!c->checkpoint.near_interval)
        return SH_OK;
    if (!c->checkpoint.enable)
        return sh_config_refuse(state, "checkpoint.near_interval",
                                "near checkpoints go on from the files of checkpoint.enable=true, but it is false");
    if (c->offload.optimizer == SH_OFFLOAD_NVME)
        return sh_config_refuse(state, "checkpoint.near_interval",
                                "each copy would read all states back from their file (offload.optimizer=nvme)");
    if (c->optimizer.state_dtype == SH_PRECISION_INT8)
        return sh_config_refuse(state, "checkpoint.near_interval",
                                "copies are of states in float32 or bfloat16, not of optimizer.state_dtype=int8");
    return SH_OK;
}

/* I/O methods and their options: an option that the method would silently ignore is refused. */
static sh_rc check_checkpoint(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    if (c->checkpoint.keep_every_n > 0 && c->checkpoint.keep_latest_k == 0)
        return sh_config_refuse(state, "checkpoint.keep_every_n",
                                "has no effect when checkpoint.keep_latest_k=0 keeps all; give that as well");
    if (c->checkpoint.initial_load_model_only && !c->checkpoint.initial_load_path[0])
        return sh_config_refuse(state, "checkpoint.initial_load_model_only",
                                "from which file? give checkpoint.initial_load_path");
    if (c->checkpoint.async_mode == SH_ASYNC_ASYNC && (c->checkpoint.io == SH_IO_MPIIO || c->checkpoint.hints[0]))
        return sh_config_refuse(state, "checkpoint.async_mode", "writes without MPI-IO; leave out checkpoint.%s",
                                c->checkpoint.hints[0] ? "hints" : "io=mpiio");
    /* An asynchronous save always uses plain writes, whatever the method. */
    if (c->checkpoint.writers_per_node != SH_WRITERS_AUTO && c->checkpoint.io != SH_IO_DIRECT &&
        c->checkpoint.async_mode != SH_ASYNC_ASYNC)
        return sh_config_refuse(state, "checkpoint.writers_per_node",
                                "is for plain writes; give checkpoint.io=direct as well");
    if (c->checkpoint.hints[0] && c->checkpoint.io == SH_IO_DIRECT)
        return sh_config_refuse(state, "checkpoint.hints", "are for MPI-IO, which checkpoint.io=direct does not use");
    return SH_OK;
}

/* A word that names no product of this model. PEFT has a list of its own for stacks of experts, and so do we. */
static sh_rc refuse_target(struct sh_config_state *state, const char *key, const char *bad)
{
    const struct sh_family *f = sh_family_of(state->cfg.model.family);
    if (strcmp(key, "lora.target_modules") == 0)
        return sh_config_refuse(state, key,
                                "'%s' is not a linear product of %s; give all-linear, or names "
                                "such as %s%s",
                                bad, f->name, f->o,
                                f->router ? "; stacks of experts are named by lora.target_parameters" : "");
    if (!f->router)
        return sh_config_refuse(state, key, "%s has no experts; leave it out", f->name);
    return sh_config_refuse(state, key,
                            "'%s' is not a stack of experts of %s; give %s.gate_up_proj,%s.down_proj, or one of them",
                            bad, f->name, f->experts, f->experts);
}

/* Adapters that the products of the model cannot have. Loaded adapters are checked when they are loaded. */
static sh_rc check_lora(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct sh_family *f = sh_family_of(c->model.family);
    char bad[SH_FAMILY_WORD];
    const char *key;
    unsigned targets;
    if (!c->lora.rank)
        return SH_OK;
    if (f->experts_in_out && c->lora.target_parameters[0])
        return sh_config_refuse(state, "lora.target_parameters",
                                "stacks of experts of %s are stored [in,out], and have no adapters here; leave it out, "
                                "and give lora.target_modules",
                                f->name);
    key = sh_family_targets(&c->model, c->lora.target_modules, c->lora.target_parameters, &targets, bad);
    if (key)
        return refuse_target(state, key, bad);
    if (f->scan && targets & 1u << SH_PARAM_DELTA_O)
        return sh_config_refuse(state, "lora.target_modules",
                                "PEFT refuses adapters of %s in %s, and so all-linear; name the others, such as "
                                "in_proj,q_proj,v_proj,up_proj",
                                sh_family_linear_name(f, SH_PARAM_DELTA_O), f->name);
    for (int i = 0; i < SH_PARAM_PRODUCTS; i++) {
        int64_t in, out;
        sh_family_linear_dims(&c->model, i, &in, &out);
        if (targets & 1u << i && c->lora.rank > (in < out ? in : out))
            return sh_config_refuse(state, "lora.rank",
                                    "%d is above the rank of %s, which has %" PRId64 " inputs and %" PRId64 " outputs",
                                    c->lora.rank, sh_family_linear_name(f, i), in, out);
    }
    if (c->lora.adapter_path[0] && c->checkpoint.initial_load_path[0] && c->hf.assets_path[0] &&
        c->checkpoint.initial_load_in_hf)
        return sh_config_refuse(state, "lora.adapter_path",
                                "and checkpoint.initial_load_path are both adapters for the model of "
                                "model.hf_assets_path; leave one of them out");
    return SH_OK;
}

static sh_rc check_fingerprint(struct sh_config_state *state)
{
    const char *steps = state->cfg.debug.fingerprint_steps;

    if (sh_str_lists(steps, 1) < 0)
        return sh_config_refuse(state, "debug.fingerprint_steps",
                                "\"%s\" is no list of steps; write numbers and ranges from 1 on: 1,2,100-102", steps);
    return SH_OK;
}

/* A micro-step is then one rank's work, from its tokens to its gradients. */
static sh_rc check_replay(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct {
        const char *name;
        int degree;
    } rows[] = {
        {"parallelism.tensor_parallel_degree", c->parallelism.tensor_parallel_degree},
        {"parallelism.context_parallel_degree", c->parallelism.context_parallel_degree},
        {"parallelism.expert_parallel_degree", c->parallelism.expert_parallel_degree},
        {"parallelism.pipeline_parallel_degree", c->parallelism.pipeline_parallel_degree},
    };

    for (size_t i = 0; c->fault.replay_every && i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].degree > 1)
            return sh_config_refuse(
                state, "fault.replay_every",
                "ranks compare what each makes of its own sequences, but with %s=%d several make it "
                "together; leave one of them out",
                rows[i].name, rows[i].degree);
    return SH_OK;
}

/* check_idle comes last: that a key is wrong in itself is a better message than that it has no effect. */
sh_rc sh_config_check(struct sh_config_state *state)
{
    static sh_rc (*const checks[])(struct sh_config_state *) = {
        check_heads,
        check_rotary,
        check_family,
        check_latent,
        sh_config_check_experts,
        sh_config_check_ffn,
        check_window,
        check_rope,
        check_batch,
        check_documents,
        check_schedule,
        check_parallelism,
        check_reproducible,
        check_recompute,
        check_guard,
        check_checkpoint,
        check_near,
        check_device,
        check_lora,
        check_offload,
        check_float16,
        check_idle,
        check_optimizer,
        check_codes,
        check_gathers,
        sh_config_check_batches,
        sh_config_check_delta,
        sh_config_check_global,
        sh_config_check_context,
        sh_config_check_leaves,
        sh_config_check_leaves_of_ranks,
        check_tiles,
        check_fingerprint,
        check_replay,
        sh_config_check_tensor,
        sh_config_check_pipeline,
        check_groups,
        check_mup,
        check_mean,
        sh_config_check_objective,
    };
    /* One message per check: a second problem of the same subject is often a consequence of the first. */
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        SH_TRY(sh_problems_note(&state->problems, checks[i](state)));
    return sh_problems_fail(&state->problems);
}
