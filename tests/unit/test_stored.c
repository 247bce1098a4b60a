/* The part of the configuration that a checkpoint keeps. Every key is in one of the two tables below, so whoever adds a
 * key must decide: does it belong to the state of the training, or to the machine? */
#include "src/run/save/stored.h"

#include "src/base/file.h"
#include "src/config/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD = 2 };

#define LONGROPE                                                                                                \
    "model.rope_factor=8 model.rope_original_max_len=256 model.rope_type=longrope model.rope_short_factor=1,1 " \
    "model.rope_long_factor=1,1"
#define FLOAT16 "training.mixed_precision_param=float16"
#define DPO "objective.name=dpo"
#define DISTILLATION "objective.name=distillation"
#define YARN "model.rope_factor=8 model.rope_original_max_len=256 model.rope_type=yarn"

#define EXPERTS "model.n_experts=4 model.n_experts_per_token=2 model.expert_ffn_dim=8"
#define STAGED "parallelism.sharding_strategy=shard_optim model.tie_word_embeddings=false"
#define MOE "model.family=qwen2_moe " EXPERTS
#define SIZES_OF_DELTA                                                                                     \
    "model.linear_key_heads=1 model.linear_value_heads=2 model.linear_key_dim=4 model.linear_value_dim=4 " \
    "model.linear_conv_size=3"
#define DELTA "model.family=qwen3_5_text " SIZES_OF_DELTA
#define SCAN "model.family=nemotron_h model.tie_word_embeddings=false " SIZES_OF_DELTA
#define GLOBAL "model.family=gemma4_text model.query_pre_attn_scalar=1"
#define LATENT "model.family=deepseek_v3 model.rotary_dim=2 model.kv_lora_rank=8 model.v_head_dim=3 " EXPERTS

#define BUDGET "offload.mode=memory_budget offload.nvme_path=/elsewhere memory.limit_bytes=1GiB"
#define NVME "offload.nvme_path=/elsewhere offload.optimizer=nvme"

/* A value that differs from the base below, and the other settings that it needs, separated by blanks, which are given
 * on both sides. */
struct row {
    const char *key, *value, *needs;
};

static const struct row machine[] = {
    {"job.dump_folder", "/elsewhere", NULL},
    {"job.stop_before_limit_seconds", "60", NULL},
    {"job.shrink", "pow2", NULL},
    {"job.least_nodes", "3", NULL},
    {"job.grow_seconds", "60", NULL},
    {"model.hf_assets_path", "/elsewhere", NULL},
    {"model.hf_ignore", "a, b", "model.hf_assets_path=/elsewhere"},
    {"lora.adapter_path", "/elsewhere", "lora.rank=4"},
    {"training.local_batch_size", "2", NULL},
    {"training.threads", "3", NULL},
    {"training.device", "cpu", NULL},
    {"training.kernels", "ref", NULL},
    {"training.deterministic", "false", NULL},
    {"training.measure_products", "true", NULL},
    {"training.loss_chunk_rows", "7", NULL},
    {"training.tile_rows", "64", NULL},
    {"parallelism.sharding_strategy", "no_shard", NULL},
    {"parallelism.reshard_after_forward", "2", NULL},
    {"parallelism.gradient_sync", "last_micro_step", NULL},
    {"parallelism.expert_parallel_degree", "2", MOE},
    {"parallelism.context_parallel_degree", "2", NULL},
    {"parallelism.tensor_parallel_degree", "2", NULL},
    {"parallelism.tensor_parallel_tiles", "2", "parallelism.tensor_parallel_degree=2"},
    {"parallelism.pipeline_parallel_degree", "2", STAGED},
    {"parallelism.pipeline_parallel_schedule", "1F1B", "parallelism.pipeline_parallel_degree=2 " STAGED},
    {"parallelism.pipeline_parallel_layers_per_stage", "1",
     "parallelism.pipeline_parallel_schedule=Interleaved1F1B parallelism.pipeline_parallel_degree=2 " STAGED},
    {"parallelism.pipeline_parallel_first_stage_less_layers", "1", "parallelism.pipeline_parallel_degree=2 " STAGED},
    {"parallelism.pipeline_parallel_last_stage_less_layers", "1", "parallelism.pipeline_parallel_degree=2 " STAGED},
    {"parallelism.context_parallel_method", "gather", "parallelism.context_parallel_degree=2"},
    {"moe.capacity_factor", "2", MOE " parallelism.expert_parallel_degree=2"},
    {"parallelism.forward_prefetch", "3", NULL},
    {"parallelism.backward_prefetch", "3", NULL},
    {"parallelism.limit_all_gathers", "3", NULL},
    {"parallelism.resident_units", "1", NULL},
    {"optimizer.muon_ranks", "1", "optimizer.name=muon"},
    {"mesh.shard", "2", NULL},
    {"mesh.replicate", "2", NULL},
    {"mesh.ranks_per_node", "2", NULL},
    {"mesh.ranks", "2", NULL},
    {"activation_checkpoint.mode", "memory_budget", "memory.limit_bytes=1GiB"},
    {"activation_checkpoint.every_k", "1", "activation_checkpoint.mode=every_k"},
    {"checkpoint.enable", "false", NULL},
    {"checkpoint.folder", "other", NULL},
    {"checkpoint.interval", "7", NULL},
    {"checkpoint.create_seed_checkpoint", "true", NULL},
    {"checkpoint.resume", "never", NULL},
    {"checkpoint.io", "mpiio", NULL},
    {"checkpoint.writers_per_node", "1", "checkpoint.io=direct"},
    {"checkpoint.async_mode", "async", NULL},
    {"checkpoint.async_busy", "skip", NULL},
    {"checkpoint.hints", "striping_factor=4", NULL},
    {"checkpoint.near_interval", "5", NULL},
    {"checkpoint.near_limit_bytes", "1GB", "checkpoint.near_interval=5"},
    {"checkpoint.near_copies", "2", "checkpoint.near_interval=5"},
    {"checkpoint.near_distance", "3", "checkpoint.near_copies=2 checkpoint.near_interval=5"},
    {"checkpoint.near_silence_seconds", "9", "checkpoint.near_interval=5"},
    {"checkpoint.timeout_seconds", "60", NULL},
    {"checkpoint.max_failures", "1", NULL},
    {"checkpoint.keep_latest_k", "2", NULL},
    {"checkpoint.keep_every_n", "100", NULL},
    {"checkpoint.initial_load_path", "a.h5", NULL},
    {"checkpoint.initial_load_model_only", "true", "checkpoint.initial_load_path=a.h5"},
    {"checkpoint.initial_load_in_hf", "false", "model.hf_assets_path=/elsewhere"},
    {"checkpoint.last_save_in_hf", "true", NULL},
    {"checkpoint.export_dtype", "bfloat16", "checkpoint.last_save_in_hf=true"},
    {"checkpoint.max_shard_size", "1GiB", "checkpoint.last_save_in_hf=true"},
    {"metrics.log_freq", "3", NULL},
    {"metrics.progress", "false", NULL},
    {"metrics.peak_tflops", "3", NULL},
    {"metrics.gpu", "off", NULL},
    {"metrics.tensorboard", "tb", NULL},
    {"metrics.openmetrics", "run.prom", NULL},
    {"metrics.norms", "blocks", NULL},
    {"metrics.state_digest_every", "2", NULL},
    {"profiling.trace", "trace.json", NULL},
    {"profiling.trace_first_step", "5", NULL},
    {"profiling.trace_steps", "5", NULL},
    {"debug.find_nan", "true", NULL},
    {"debug.fingerprint", "f.jsonl", NULL},
    {"debug.fingerprint_steps", "5", "debug.fingerprint=f.jsonl"},
    {"debug.fingerprint_leaves", "true", "debug.fingerprint=f.jsonl"},
    {"fault.replica_check_every", "7", NULL},
    {"fault.replay_every", "7", NULL},
    {"comm.train_timeout_seconds", "60", NULL},
    {"comm.trace_buf_size", "64", NULL},
    {"comm.backend", "mpi", NULL},
    {"comm.share_gpu", "true", NULL},
    {"comm.nccl_max_ctas", "4", NULL},
    {"comm.shared_memory", "off", NULL},
    {"comm.progress", "inline", NULL},
    {"memory.limit_bytes", "1GiB", NULL},
    {"data.document_tokens", "1000", NULL},
    {"memory.host_limit_bytes", "1GiB", NULL},
    {"offload.optimizer", "nvme", NVME},
    {"offload.gradients", "nvme", NVME},
    {"offload.parameters", "cpu", NULL},
    {"offload.optimizer_ratio", "0.5", NVME},
    {"offload.mode", "memory_budget", BUDGET},
    {"offload.activations", "nvme", NVME},
    {"offload.activation_ratio", "0.5", "offload.nvme_path=/elsewhere offload.activations=nvme"},
    {"offload.nvme_path", "/other", NVME},
    {"offload.nvme_limit_bytes", "1GiB", NVME},
    {"offload.rates", "file=3e9/2e9,mixed=2e9", NVME},
    {"offload.buffer_count", "4", NVME},
    {"offload.overlap_update", "off", NVME},
    {"offload.verify", "false", NVME},
    {"offload.allow_network", "true", NVME},
    {"debug.sync_ops", "true", NULL},
    {"checkpoint.trust", "any", NULL},
    {"plugin.allow_change", "true", NULL},
};

static const struct row state[] = {
    {"job.description", "a run", NULL},
    {"model.name", "debug", NULL},
    {"model.family", "gpt2", NULL},
    {"model.n_layers", "3", NULL},
    {"model.dim", "32", NULL},
    {"model.n_heads", "8", NULL},
    {"model.n_kv_heads", "2", NULL},
    {"model.head_dim", "8", NULL},
    {"model.ffn_dim", "48", NULL},
    {"model.vocab_size", "300", NULL},
    {"model.max_seq_len", "64", NULL},
    {"model.norm_eps", "1e-6", NULL},
    {"lora.rank", "4", NULL},
    {"lora.alpha", "16", "lora.rank=4"},
    {"lora.target_modules", "q_proj, v_proj", "lora.rank=4"},
    {"lora.target_parameters", "experts.down_proj", MOE " lora.rank=4"},
    {"lora.use_rslora", "true", "lora.rank=4"},
    {"lora.quantize_base", "nf4", "lora.rank=4"},
    {"model.rope_theta", "500", NULL},
    {"model.rope_factor", "8", "model.rope_original_max_len=256"},
    {"model.rope_low_freq_factor", "2", NULL},
    {"model.rope_high_freq_factor", "5", NULL},
    {"model.rope_original_max_len", "256", NULL},
    {"model.rope_type", "yarn", "model.rope_factor=8 model.rope_original_max_len=256"},
    {"model.rope_beta_fast", "16", YARN},
    {"model.rope_beta_slow", "2", YARN},
    {"model.rope_attention_factor", "2", YARN},
    {"model.rope_truncate", "false", YARN},
    {"model.rope_short_factor", "1,2", LONGROPE},
    {"model.rope_long_factor", "1,2", LONGROPE},
    {"model.rotary_dim", "2", NULL},
    {"model.tie_word_embeddings", "true", NULL},
    {"model.attention_bias", "true", NULL},
    {"model.mlp_bias", "true", NULL},
    {"model.attention_window", "8", NULL},
    {"model.layer_types", "sliding,full", "model.attention_window=8"},
    {"model.rope_local_base_freq", "100", "model.attention_window=8"},
    {"model.query_pre_attn_scalar", "20", NULL},
    {"model.linear_key_heads", "2", DELTA},
    {"model.linear_value_heads", "4", DELTA},
    {"model.linear_key_dim", "8", DELTA},
    {"model.linear_value_dim", "16", DELTA},
    {"model.linear_conv_size", "4", DELTA},
    {"model.linear_least_step", "0.1", SCAN},
    {"model.attention_softcap", "50", NULL},
    {"model.logits_softcap", "30", NULL},
    {"model.global_head_dim", "8", GLOBAL},
    {"model.global_kv_heads", "1", GLOBAL " model.keys_as_values=true"},
    {"model.keys_as_values", "true", GLOBAL},
    {"model.kv_shared_layers", "1", GLOBAL},
    {"model.double_wide_ffn", "true", GLOBAL " model.kv_shared_layers=1"},
    {"model.per_layer_dim", "4", GLOBAL},
    {"model.q_lora_rank", "12", LATENT},
    {"model.kv_lora_rank", "12", LATENT},
    {"model.v_head_dim", "2", LATENT},
    {"model.rope_mscale_all_dim", "1", LATENT " " YARN},
    {"model.embedding_multiplier", "12", NULL},
    {"model.residual_multiplier", "0.22", NULL},
    {"model.logits_scaling", "8", NULL},
    {"model.n_experts", "8", MOE},
    {"model.n_experts_per_token", "3", MOE},
    {"model.expert_ffn_dim", "16", MOE},
    {"model.shared_ffn_dim", "8", MOE},
    {"model.first_dense_layers", "1", MOE},
    {"model.moe_every", "2", MOE},
    {"model.router", "sigmoid", MOE},
    {"model.route_norm", "true", MOE},
    {"model.route_scale", "2.5", MOE},
    {"model.route_groups", "2", MOE " model.route_top_groups=1 model.route_groups=1"},
    {"model.route_top_groups", "2", MOE " model.route_top_groups=1 model.route_groups=2"},
    {"model.router_bias", "true", MOE},
    {"moe.load_balance_coeff", "0.01", MOE " model.router_bias=true"},
    {"moe.aux_loss_coeff", "0.01", MOE},
    {"moe.z_loss_coeff", "0.01", MOE},
    {"model.init_std", "0.1", NULL},
    {"model.num_labels", "3", NULL},
    {"model.tokenizer", "byte", NULL},
    {"training.dataset_path", "a.bin", NULL},
    {"training.seq_len", "16", NULL},
    {"training.global_batch_size", "8", NULL},
    {"training.batch_schedule", "0:4,9:8", "training.global_batch_size=8"},
    {"training.z_loss", "0.01", NULL},
    {"training.steps", "7", NULL},
    {"training.max_norm", "2", NULL},
    {"training.mixed_precision_param", "float32", NULL},
    {"training.mixed_precision_reduce", "bfloat16", NULL},
    {"training.loss_scale", "1024", FLOAT16},
    {"training.loss_scale_init", "1024", FLOAT16},
    {"training.loss_scale_window", "5", FLOAT16},
    {"training.reproducible", "mesh", NULL},
    {"training.row_leaves", "2", "training.reproducible=mesh"},
    {"data.token_type", "uint32", NULL},
    {"data.target_mask", "off", NULL},
    {"data.token_weight", "off", NULL},
    {"data.shuffle", "false", NULL},
    {"data.length_schedule", "0:4", "training.seq_len=8 data.packing=concat"},
    {"data.document_mask", "true", "data.document_separator=0"},
    {"data.document_separator", "1", NULL},
    {"data.packing", "bfd", NULL},
    {"data.excess_length_strategy", "split", NULL},
    {"data.mix", "a.bin=1,b.bin=2", "training.dataset_path="},
    {"checkpoint.verify", "cache", NULL},
    {"optimizer.name", "lion", NULL},
    {"optimizer.lr", "1e-3", NULL},
    {"optimizer.beta1", "0.8", NULL},
    {"optimizer.beta2", "0.8", NULL},
    {"optimizer.eps", "1e-6", NULL},
    {"optimizer.weight_decay", "0.2", NULL},
    {"optimizer.decay_all", "true", NULL},
    {"optimizer.groups", "pattern=norm lr=0.5", NULL},
    {"mup.enable", "true", "model.tie_word_embeddings=false"},
    {"mup.base_dim", "64", "model.tie_word_embeddings=false mup.enable=true"},
    {"optimizer.momentum", "0.9", "optimizer.name=muon"},
    {"optimizer.nesterov", "false", "optimizer.name=muon"},
    {"optimizer.muon_coefficients", "quintic", "optimizer.name=muon"},
    {"optimizer.ns_steps", "6", "optimizer.name=muon"},
    {"optimizer.adjust_lr_fn", "original", "optimizer.name=muon"},
    {"optimizer.muon_split", "heads", "optimizer.name=muon"},
    {"optimizer.cautious_decay", "true", "optimizer.name=muon"},
    {"optimizer.muon_beta2", "0.9", "optimizer.name=normuon"},
    {"optimizer.state_dtype", "bfloat16", NULL},
    {"parallelism.gather_dtype", "int8", NULL},
    {"optimizer.ema_decay", "0.9", NULL},
    {"lr_scheduler.warmup_steps", "5", NULL},
    {"lr_scheduler.decay_type", "linear", NULL},
    {"lr_scheduler.decay_ratio", "0.1", "lr_scheduler.decay_type=wsd"},
    {"lr_scheduler.decay_shape", "sqrt", "lr_scheduler.decay_type=wsd"},
    {"lr_scheduler.power", "1", "lr_scheduler.decay_type=power"},
    {"lr_scheduler.min_lr_factor", "0.2", NULL},
    {"lr_scheduler.total_steps", "500", NULL},
    {"validation.enable", "true", NULL},
    {"validation.dataset_path", "v.bin", NULL},
    {"validation.ema", "true", "optimizer.ema_decay=0.9"},
    {"validation.freq", "7", NULL},
    {"validation.sequences", "7", NULL},
    {"objective.name", "dpo", NULL},
    {"objective.loss_type", "ipo", DPO},
    {"objective.reference_path", "a.ref", DPO},
    {"validation.reference_path", "v.ref",
     DPO " objective.reference_path=a.ref validation.enable=true validation.reference_path=a.ref"},
    {"objective.beta", "0.2", DPO},
    {"objective.label_smoothing", "0.1", DPO},
    {"objective.gamma", "0.4", DPO " objective.loss_type=simpo"},
    {"objective.sft_weight", "1", DPO},
    {"objective.desirable_weight", "2", DPO " objective.loss_type=apo_zero_unpaired"},
    {"objective.undesirable_weight", "2", DPO " objective.loss_type=apo_zero_unpaired"},
    {"objective.center_rewards_coefficient", "0.1", "objective.name=reward model.num_labels=1"},
    {"objective.teacher_path", "top.bin", DISTILLATION},
    {"objective.top_k", "16", DISTILLATION},
    {"objective.temperature", "2", DISTILLATION},
    {"objective.alpha", "0.5", DISTILLATION},
    {"objective.kd_form", "tail", DISTILLATION},
    {"plugin.files", "a.so", NULL},
    {"plugin.numbers", "a.b=1", NULL},
    {"model.ffn_op", "a", NULL},
    {"model.ffn", "y = linear(x, a, C)", NULL},
    {"objective.plugin", "a", "objective.name=plugin objective.plugin=b"},
    {"guard.action", "stop", NULL},
    {"guard.z_score", "5", NULL},
    {"guard.window", "64", NULL},
    {"guard.max_skips", "2", NULL},
    {"guard.max_rollbacks", "2", "guard.action=rollback"},
    {"debug.seed", "5", NULL},
    {"debug.row_block", "5", NULL},
    {"debug.moe_force_load_balance", "true", MOE},
};

enum { MACHINE = sizeof machine / sizeof machine[0], STATE = sizeof state / sizeof state[0] };

/* Add a setting; it replaces the base's value if the base has one. */
static void give(const char *words[], int *n, const char *change)
{
    for (int i = 0; change && i < *n; i++)
        if (strncmp(words[i], change, strcspn(change, "=") + 1) == 0) {
            words[i] = change;
            change = NULL;
        }
    if (change)
        words[(*n)++] = change;
}

static void load(const char *needs, const char *change, struct sh_config *cfg)
{
    /* clang-format off */
    const char *words[22] = {"model.family=llama", "model.n_layers=2", "model.dim=16", "model.n_heads=4",
                             "model.n_kv_heads=4", "model.head_dim=4", "model.vocab_size=256",
                             "model.max_seq_len=32", "training.seq_len=32", "training.local_batch_size=1",
                             "training.global_batch_size=4"};
    /* clang-format on */
    char copy[256], *rest = copy;
    int n = 11;

    snprintf(copy, sizeof copy, "%s", needs ? needs : "");
    while (rest && *rest)
        give(words, &n, strsep(&rest, " "));
    give(words, &n, change);
    if (sh_config_load(NULL, n, words, cfg) != SH_OK)
        fail_msg("%s", sh_error_text());
}

static char *stored(const struct sh_config *cfg, int world)
{
    char *text;

    assert_int_equal(sh_stored_config(cfg, world, &text), SH_OK);
    return text;
}

/* Load a configuration back from its own text. */
static void reload(const char *text, const char *what, struct sh_config *cfg)
{
    if (sh_config_parse(text, strlen(text), "printed", 0, NULL, cfg) != SH_OK)
        fail_msg("%s: %s", what, sh_error_text());
}

static bool changes_what_is_stored(const struct row *row)
{
    struct sh_config base, changed;
    char change[128];

    snprintf(change, sizeof change, "%s=%s", row->key, row->value);
    load(row->needs, NULL, &base);
    load(row->needs, change, &changed);
    char *a = stored(&base, WORLD), *b = stored(&changed, WORLD);
    bool differs = strcmp(a, b) != 0;
    free(a);
    free(b);
    return differs;
}

static void the_machine_is_left_out(void **unused)
{
    (void)unused;
    for (int i = 0; i < MACHINE; i++)
        if (changes_what_is_stored(&machine[i]))
            fail_msg("%s is stored", machine[i].key);
}

static void the_state_is_stored(void **unused)
{
    (void)unused;
    for (int i = 0; i < STATE; i++)
        if (!changes_what_is_stored(&state[i]))
            fail_msg("%s is not stored", state[i].key);
}

static int rows_of(const char *key)
{
    int n = 0;

    for (int i = 0; i < MACHINE; i++)
        n += !strcmp(machine[i].key, key);
    for (int i = 0; i < STATE; i++)
        n += !strcmp(state[i].key, key);
    return n;
}

static void each_key_is_one_or_the_other(void **unused)
{
    (void)unused;
    for (int i = 0; i < sh_config_n_keys; i++)
        if (!sh_config_keys[i].alias_of && rows_of(sh_config_keys[i].name) != 1)
            fail_msg("%s is in %d rows of this test", sh_config_keys[i].name, rows_of(sh_config_keys[i].name));
}

/* The same number of sequences per step with other ranks and micro-batches; and the stored text is a configuration. */
static void batches(void **unused)
{
    (void)unused;
    static const struct {
        int local, global, world, stored_local, stored_global;
        const char *schedule;
    } rows[] = {{4, -1, 4, 8, 16, ""},         {8, -1, 2, 8, 16, ""},
                {2, 16, 1, 8, 16, ""},         {3, 12, 4, 6, 12, ""},
                {1, 7, 7, 7, 7, ""},           {1, 11, 11, 1, 11, ""},
                {2, 12, 1, 4, 12, "0:4,9:12"}, {1, 16, 1, 2, 16, "0:16,5:6,9:8"},
                {65536, -1, 1024, 8, -1, ""}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sh_config cfg, back;
        load(NULL, NULL, &cfg);
        cfg.training.local_batch_size = rows[i].local;
        cfg.training.global_batch_size = rows[i].global;
        strcpy(cfg.training.batch_schedule, rows[i].schedule);
        char *text = stored(&cfg, rows[i].world);
        reload(text, "a batch", &back);
        assert_int_equal(back.training.local_batch_size, rows[i].stored_local);
        assert_int_equal(back.training.global_batch_size, rows[i].stored_global);
        free(text);
    }
}

/* Return the other settings that a word of a key needs. */
static const char *need_of(const char *change)
{
    static const struct {
        const char *change, *needs;
    } rows[] = {
        {"model.family=qwen3_5_text", SIZES_OF_DELTA},
        {"model.family=nemotron_h", "model.tie_word_embeddings=false " SIZES_OF_DELTA},
        {"model.family=granitemoehybrid", "model.layer_types=full"},
        {"activation_checkpoint.mode=memory_budget", "memory.limit_bytes=1GiB"},
        {"offload.optimizer=nvme", "offload.nvme_path=/elsewhere"},
        {"offload.gradients=nvme", "offload.nvme_path=/elsewhere"},
        {"offload.activations=nvme", "offload.nvme_path=/elsewhere"},
        {"offload.overlap_update=auto", NVME},
        {"offload.overlap_update=off", NVME},
        {"offload.mode=memory_budget", BUDGET},
        {"offload.verify=true", NVME},
        {"offload.verify=false", NVME},
        {"offload.allow_network=true", NVME},
        {"offload.allow_network=false", NVME},
        {"model.rope_type=llama3", "model.rope_factor=8 model.rope_original_max_len=256"},
        {"model.rope_type=linear", "model.rope_factor=8"},
        {"model.rope_type=yarn", "model.rope_factor=8 model.rope_original_max_len=256"},
        {"model.rope_type=longrope", LONGROPE},
        {"model.rope_truncate=false", YARN},
        {"model.rope_truncate=true", YARN},
        {"data.document_mask=true", "data.document_separator=0"},
        {"training.loss_scale=dynamic", FLOAT16},
        {"lora.use_rslora=true", "lora.rank=4"},
        {"lora.use_rslora=false", "lora.rank=4"},
        {"lora.quantize_base=none", "lora.rank=4"},
        {"lora.quantize_base=nf4", "lora.rank=4"},
        {"checkpoint.initial_load_in_hf=true", "model.hf_assets_path=/elsewhere"},
        {"model.family=mixtral", EXPERTS},
        {"model.family=qwen2_moe", EXPERTS},
        {"model.family=qwen3_moe", EXPERTS},
        {"model.family=olmoe", EXPERTS},
        {"model.family=granitemoe", EXPERTS},
        {"model.family=gpt_oss", EXPERTS},
        {"model.family=deepseek_v3", LATENT},
        {"model.family=gemma4_text", "model.query_pre_attn_scalar=1"},
        {"model.router=sigmoid", MOE},
        {"model.route_norm=true", MOE},
        {"model.router_bias=true", MOE},
        {"debug.moe_force_load_balance=true", MOE},
        {"parallelism.context_parallel_method=auto", "parallelism.context_parallel_degree=2"},
        {"parallelism.context_parallel_method=ulysses", "parallelism.context_parallel_degree=2"},
        {"parallelism.context_parallel_method=gather", "parallelism.context_parallel_degree=2"},
        {"parallelism.pipeline_parallel_schedule=1f1b", "parallelism.pipeline_parallel_degree=2 " STAGED},
        {"parallelism.pipeline_parallel_schedule=zbh1", "parallelism.pipeline_parallel_degree=2 " STAGED},
        {"parallelism.pipeline_parallel_schedule=interleaved1f1b", "parallelism.pipeline_parallel_degree=2 " STAGED},
        {"parallelism.pipeline_parallel_first_stage_less_layers=auto",
         "parallelism.pipeline_parallel_degree=2 " STAGED},
        {"parallelism.pipeline_parallel_last_stage_less_layers=auto", "parallelism.pipeline_parallel_degree=2 " STAGED},
        {"objective.name=plugin", "objective.plugin=a"},
        {"objective.name=reward", "model.num_labels=1"},
        {"objective.name=regression", "model.num_labels=1"},
        {"objective.name=multi_label", "model.num_labels=3"},
        {"objective.loss_type=plugin", DPO " objective.plugin=a"},
        {"objective.loss_type=exo_pair", DPO " objective.label_smoothing=0.1"},
        {"checkpoint.initial_load_in_hf=false", "model.hf_assets_path=/elsewhere"},
        {"checkpoint.export_dtype=float32", "checkpoint.last_save_in_hf=true"},
        {"checkpoint.export_dtype=bfloat16", "checkpoint.last_save_in_hf=true"},
        {"checkpoint.export_dtype=float16", "checkpoint.last_save_in_hf=true"},
        {"checkpoint.initial_load_model_only=true", "checkpoint.initial_load_path=a.h5"},
        {"debug.fingerprint_leaves=true", "debug.fingerprint=f.jsonl"}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!strcmp(rows[i].change, change))
            return rows[i].needs;
    if (!strncmp(change, "objective.loss_type=", 20))
        return DPO;
    for (size_t i = 0; i < STATE; i++) /* a key that has no effect without another needs it with any word */
        if (!strncmp(change, state[i].key, strcspn(change, "=")) && !state[i].key[strcspn(change, "=")])
            return state[i].needs;
    return NULL;
}

/* Opening a checkpoint parses its configuration, so a word without a setting that it needs would make the checkpoint
 * useless; and a run that continues from it under the same configuration has no difference to report. */
static void check_word(const struct sh_config_key *key, const char *word)
{
    struct sh_config cfg, back, again;
    char change[128], *printed, *kept, *kept_again;

    snprintf(change, sizeof change, "%s=%s", key->name, word);
    load(need_of(change), change, &cfg);
    assert_int_equal(sh_config_print(&cfg, &printed), SH_OK);
    reload(printed, change, &back);
    if (memcmp(&cfg, &back, sizeof cfg) != 0)
        fail_msg("%s: printed, it is another configuration", change);
    kept = stored(&cfg, WORLD);
    reload(kept, change, &again);
    kept_again = stored(&again, WORLD);
    assert_string_equal(kept, kept_again);
    if (memcmp((char *)&cfg + key->offset, (char *)&again + key->offset, key->size) != 0 && key->of != SH_OF_MACHINE)
        fail_msg("%s: stored, it is another value", change);
    free(printed);
    free(kept);
    free(kept_again);
}

static void every_word_loads_back(void **unused)
{
    (void)unused;
    for (int i = 0; i < sh_config_n_keys; i++)
        for (int w = 0; sh_config_keys[i].words && sh_config_keys[i].words[w].name; w++)
            if (!sh_config_keys[i].alias_of && strcmp(sh_config_keys[i].words[w].name, "kto")) /* always refused */
                check_word(&sh_config_keys[i], sh_config_keys[i].words[w].name);
}

/* Bytes for the names of a section's keys, and for a row of the manual's table with them. */
enum { LIST = 4096, ROW = 3 * LIST };

/* List the names of the keys in [from, to) that belong to the machine, or that do not. */
static int list_keys(int from, int to, bool machines, char out[LIST])
{
    int n = 0, at = 0;

    out[0] = '\0';
    for (int i = from; i < to; i++) {
        const struct sh_config_key *key = &sh_config_keys[i];

        if (key->alias_of || (key->of == SH_OF_MACHINE) != machines)
            continue;
        at += snprintf(out + at, (size_t)(LIST - at), "%s`%s`", n ? ", " : "", strchr(key->name, '.') + 1);
        assert_true(at < LIST);
        n++;
    }
    return n;
}

/* Make the row of the manual's table for the section that begins at row `from`; returns where the next
 * section begins. */
static int section_row(int from, char row[ROW])
{
    int to = from + 1;
    char own[LIST], others[LIST];

    while (to < sh_config_n_keys && !sh_config_section_starts(to))
        to++;
    int machines = list_keys(from, to, true, own), rest = list_keys(from, to, false, others);

    row[0] = '\0';
    if (machines)
        snprintf(row, ROW, "| `%.*s` | %s%s |\n", sh_config_section_len(sh_config_keys[from].name),
                 sh_config_keys[from].name,
                 !rest             ? "all"
                 : machines > rest ? "all but "
                                   : own,
                 rest && machines > rest ? others : "");
    return to;
}

static void the_manual_says_whose_a_key_is(void **unused)
{
    char table[8192] = "| section | keys of the machine |\n|---|---|\n", row[ROW], *text;
    const char *top = getenv("SHERD_SRCDIR");
    size_t bytes;

    (void)unused;
    if (!top) {
        print_message("SHERD_SRCDIR is not set\n");
        skip();
    }
    snprintf(row, sizeof row, "%s/doc/checkpoint-format.md", top);
    assert_int_equal(sh_read_file(row, 1 << 20, &text, &bytes), SH_OK);
    for (int i = 0; i < sh_config_n_keys;) {
        i = section_row(i, row);
        strcat(table, row);
    }
    strcat(table, "\n");
    if (!strstr(text, table))
        fail_msg("doc/checkpoint-format.md should have\n%s", table);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_key_is_one_or_the_other), cmocka_unit_test(the_machine_is_left_out),
        cmocka_unit_test(the_state_is_stored),          cmocka_unit_test(batches),
        cmocka_unit_test(every_word_loads_back),        cmocka_unit_test(the_manual_says_whose_a_key_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
