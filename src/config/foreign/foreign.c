/* Keys of other programs, with the key or command that does the same in Sherd. The table is searched only for names
 * that Sherd does not know, so a row can never hide a key. The advice starts a clause after a semicolon and names the
 * cure, not the difference. */
#include "src/config/foreign/foreign.h"

#include "src/config/foreign/trainer.h"
#include "src/config/keys.h"
#include "src/config/read/text.h"

#include <stdio.h>
#include <string.h>

/* Advice that several rows share. */
#define TENSORBOARD "metrics.tensorboard=FOLDER writes TensorBoard's files"
#define NO_WANDB "leave it out: doc/metrics.md shows how to send metrics.jsonl there"
#define TILED_EXCHANGES "parallelism.tensor_parallel_tiles: 2; 1 stands for false"
#define PP_STEPS "training.local_batch_size: a step has training.global_batch_size / (that x data ranks) micro-steps"
#define NO_COMPILER "leave it out: kernels are compiled with Sherd, and `sherd plan --show` prints what is fused"
#define NO_FLOAT8 "leave it out: training.mixed_precision_param is bfloat16, float16 or float32"
#define FUSED "leave it out: the kernels are Sherd's own, and fused"
#define NO_REWARDS \
    "leave it out: of training on preferences or rewards, objective.name: dpo with its losses and reward are there"
#define REFERENCE                                                                                                               \
    "leave it out: the reference is the model that the run begins with, by numbers made before the first step; another one is " \
    "objective.reference_path"
#define OTHER_REFERENCE                                                                                               \
    "objective.reference_path, a file that `sherd eval --checkpoint MODEL --data FILE --reference -o FILE` makes of " \
    "that model; without it the reference is the model that the run begins with"
#define MOVING \
    "leave it out: the reference stays the model that the run begins with; a run from the parameters of another has a new one"
#define EXPERTS \
    "leave it out: the products of experts are Sherd's own, and parallelism.expert_parallel_degree spreads them"
#define TRACE "profiling.trace=FILE writes what each stream did, with profiling.trace_first_step and trace_steps"
#define VALIDATION_SET "validation.dataset_path and validation.sequences choose the set"
#define WHOLE_STATE \
    "leave it out: each checkpoint has parameters, optimizer and position; --init-from takes the parameters"
#define TOKEN_FILES "training.dataset_path is a token file, made by `sherd tokenize`"
#define STATES                                                                                                         \
    "offload.optimizer, and offload.gradients with it: cpu on GPUs, or nvme on CPUs with nvme_path; buffer_count and " \
    "optimizer_ratio are also keys of offload"
#define NO_KNOB \
    "leave it out: slices are always read ahead and written behind, and host memory for a GPU is always pinned"
#define PARAMS                                                                    \
    "offload.parameters: cpu on GPUs; a CPU has all in host memory already, and " \
    "offload.optimizer: nvme puts states in a file"
#define ALL_STATE                                                                                                        \
    "training.enable_cpu_offload: true on GPUs; a CPU has all in host memory already, and offload.optimizer: nvme puts " \
    "states in a file"
#define ACTIVATIONS \
    "offload.activations: cpu on GPUs, or nvme on CPUs with nvme_path; activation_ratio is also a key of offload"
#define HALF "training.mixed_precision_param: float16, with loss_scale, loss_scale_init and loss_scale_window with it"
#define ACCUMULATION "give training.global_batch_size; what exceeds local_batch_size * ranks is accumulated"

#define MPIRUN "leave it out: mpirun -n N, or srun, starts the ranks"
#define EPOCHS \
    "training.steps: an epoch of N tokens is N / (training.seq_len * training.global_batch_size) steps; `sherd tokenize` prints N"
#define DATASETS \
    "`sherd tokenize FILE -o train.bin` makes the file of training.dataset_path; --format messages for chats"

/* A name that ends in * stands for all names with that prefix; several are separated by |. doc/from-others.md lists
 * the same keys. */
static const struct {
    const char *name, *advice;
} rows[] = {
    /* torchtitan */
    {"job.config_file", "the file is the argument: sherd train CONFIG.yaml"},
    {"job.custom_config_module", "leave it out: keys are those of `sherd help --config`"},
    {"job.print_*", "--print-config prints the resolved configuration"},
    {"job.save_config_file", "leave it out: a run always writes config.yaml into job.dump_folder"},
    {"job.use_for_integration_test", "leave it out"},
    {"profiling.enable_profiling", TRACE},
    {"profiling.save_traces_folder", TRACE},
    {"profiling.profile_freq", TRACE},
    {"profiling.profiler_*", TRACE},
    {"profiling.enable_memory_snapshot", "leave it out: `sherd plan` prints the memory of a run before it starts"},
    {"profiling.save_memory_snapshot_folder", "leave it out: `sherd plan` prints the memory of a run before it starts"},
    {"metrics.enable_tensorboard", TENSORBOARD},
    {"metrics.save_tb_folder", TENSORBOARD},
    {"metrics.enable_wandb", NO_WANDB},
    {"metrics.save_for_all_ranks", "leave it out: metrics.jsonl has the sums and extremes over all ranks"},
    {"metrics.disable_color_printing", "leave it out: nothing is printed in colour"},
    {"metrics.enable_color_printing", "leave it out: nothing is printed in colour"},
    {"lora.lora_dropout", "leave it out: adapters have no dropout, as if it were 0"},
    {"model.flavor", "model.name names preset and size in one, such as llama3.1-8b"},
    {"model.tokenizer_path", TOKEN_FILES},
    {"model.converters", NO_FLOAT8},
    {"model.print_after_conversion", "leave it out: `sherd plan` prints the model"},
    {"model.norm_type", "leave it out: model.family chooses the norm"},
    {"model.args", "write its keys below model: n_layers, dim, n_heads, n_kv_heads, ffn_dim, ..."},
    {"model.ffn_dim_multiplier", "give model.ffn_dim, the width itself"},
    {"model.multiple_of", "give model.ffn_dim, the width itself"},
    {"optimizer.implementation", "leave it out: the update is always fused"},
    {"optimizer.fused", "leave it out: the update is always fused"},
    {"optimizer.early_step_in_backward", "leave it out: the update follows the clipping of the whole gradient"},
    {"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor is the same factor"},
    {"training.dataset", TOKEN_FILES},
    {"training.batch_size", "training.local_batch_size"},
    {"training.lr", "optimizer.lr"},
    {"training.warmup_steps", "lr_scheduler.warmup_steps"},
    {"training.dtype",
     "leave it out: master parameters are float32; training.mixed_precision_param is the compute type"},
    {"training.compile", NO_COMPILER},
    {"training.gc_*", "leave it out: there is no garbage collector"},
    {"training.seed", "debug.seed"},
    {"training.data_parallel_degree", "mesh.shard, or parallelism.data_parallel_shard_degree"},
    {"training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree"},
    {"training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree"},
    {"training.tensor_parallel_degree|mesh.tensor", "parallelism.tensor_parallel_degree"},
    {"mesh.context", "parallelism.context_parallel_degree"},
    {"mesh.pipeline", "parallelism.pipeline_parallel_degree"},
    {"debug.deterministic",
     "training.deterministic, true by default; training.reproducible=mesh gives the same bits on any mesh"},
    {"debug.deterministic_warn_only", "leave it out: the same mesh always gives the same bits"},
    {"parallelism.enable_sequence_parallel", "leave it out: with tensor_parallel_degree rows are always cut too"},
    {"parallelism.enable_async_tensor_parallel", TILED_EXCHANGES},
    {"compile.enable_async_tensor_parallel", TILED_EXCHANGES},
    {"parallelism.disable_loss_parallel", "leave it out: each rank has the logits of its own words"},
    {"parallelism.pipeline_parallel_schedule_csv", "parallelism.pipeline_parallel_schedule: 1F1B"},
    {"parallelism.num_pp_microbatches", PP_STEPS},
    {"parallelism.pipeline_parallel_microbatch_size", PP_STEPS},
    {"parallelism.module_fqns_per_model_part",
     "parallelism.pipeline_parallel_first_stage_less_layers and _last_stage_less_layers shift blocks between stages"},
    {"parallelism.context_parallel_*",
     "leave it out: ranks have equal work, since each has all rows of its heads or, with "
     "parallelism.context_parallel_method: gather, pieces from either half"},
    {"parallelism.expert_*", EXPERTS},
    {"moe.experts_per_unit",
     "parallelism.expert_parallel_degree: P; a rank then gathers one P-th of a block's experts, not all of them"},
    {"parallelism.enable_compiled_autograd", NO_COMPILER},
    {"checkpoint.enable_checkpoint", "checkpoint.enable"},
    {"checkpoint.initial_load_model_weights_only", "checkpoint.initial_load_model_only"},
    {"checkpoint.initial_load_in_hf_quantized", "leave it out: weights are float32, float16 or bfloat16"},
    {"checkpoint.last_save_model_*", WHOLE_STATE},
    {"checkpoint.model_weights_only", WHOLE_STATE},
    {"checkpoint.exclude_from_loading", "checkpoint.initial_load_model_only=true takes the parameters alone"},
    {"checkpoint.load_step", "checkpoint.initial_load_path=FILE names the checkpoint, in a new job.dump_folder"},
    {"checkpoint.load_only", "`sherd eval --checkpoint FILE` loads without saving"},
    {"checkpoint.enable_first_step_checkpoint", "checkpoint.create_seed_checkpoint=true saves step 0"},
    {"activation_checkpoint.memory_budget",
     "activation_checkpoint.mode=memory_budget fits memory.limit_bytes, in bytes"},
    {"activation_checkpoint.early_stop", "leave it out: nothing is recomputed that the backward does not need"},
    {"activation_checkpoint.per_op_*", "leave it out: `sherd plan --show` prints what is recomputed"},
    {"compile*", NO_COMPILER},
    {"float8.enable_fsdp_float8_all_gather|zero_optimization.zero_quantized_weights", "parallelism.gather_dtype=int8"},
    {"float8*", NO_FLOAT8},
    {"mx*", NO_FLOAT8},
    {"quantize*", NO_FLOAT8},
    {"comm.init_timeout_seconds", "comm.train_timeout_seconds; the first step has no separate limit"},
    {"comm.save_traces_folder", "leave it out: the stall report is printed"},
    {"memory_estimation*", "leave it out: `sherd plan` prints the memory to the byte"},
    {"fault_tolerance*",
     "leave it out: a job that lost a rank is restarted from its newest checkpoint; see fault and guard"},
    {"experimental*", "leave it out"},
    {"validation.enabled", "validation.enable"},
    {"validation.dataset", VALIDATION_SET},
    {"validation.steps", VALIDATION_SET},
    {"validation.local_batch_size", "leave it out: it is training.local_batch_size"},
    {"validation.seq_len", "leave it out: it is training.seq_len"},
    /* DeepSpeed */
    {"train_batch_size", "training.global_batch_size"},
    {"rampup_batch_size|training.rampup_batch_size",
     "training.batch_schedule: \"0:256, 2000:512\", from which step on how many sequences; Megatron-LM counts samples"},
    {"train_micro_batch_size_per_gpu", "training.local_batch_size"},
    {"gradient_clipping", "training.max_norm"},
    {"zero_optimization.offload_optimizer*", STATES},
    {"activation_checkpointing.cpu_checkpointing", ACTIVATIONS},
    {"zero_optimization.offload_param*", PARAMS},
    {"zero_optimization", "parallelism.zero_stage: 0, 1, 2 or 3, or parallelism.sharding_strategy; offload_optimizer: "
                          "offload.optimizer"},
    {"bf16*", "training.mixed_precision_param: bfloat16"},
    {"fp16*", HALF},
    {"scheduler", "lr_scheduler.warmup_steps, decay_type and min_lr_factor"},
    {"optimizer.type", "optimizer.name"},
    {"optimizer.params", "write its keys below optimizer: lr, beta1, beta2, eps, weight_decay"},
    {"optimizer.betas", "optimizer.beta1 and optimizer.beta2"},
    {"optimizer.param_groups",
     "optimizer.groups: a list of mappings with pattern, lr, weight_decay, beta1, beta2, eps"},
    {"optimizer.muon_lr|muon_lr",
     "optimizer.lr; with optimizer.adjust_lr_fn=match_rms_adamw both kinds of parameters share it, "
     "and optimizer.groups gives some a factor"},
    {"optimizer.ns_coefficients", "optimizer.muon_coefficients: simple, quintic or polar_express"},
    {"muon_momentum", "optimizer.momentum"},
    {"ema_decay|model_ema_decay|ema_max_decay", "optimizer.ema_decay"},
    {"use_ema|model_ema", "optimizer.ema_decay: 0 keeps no average, 0.999 one over about a thousand steps"},
    {"cautious_wd|optimizer.cautious_wd", "optimizer.cautious_decay"},
    {"use_mup", "mup.enable"},
    {"mup_base_hidden_size|mup_width_mult", "mup.base_dim, with mup.enable=true"},
    {"offload_optimizer", STATES},
    {"offload_optimizer.device", "offload.optimizer, and offload.gradients with it: none, cpu or nvme"},
    {"offload_optimizer.nvme_path", "offload.nvme_path"},
    {"offload_optimizer.buffer_count", "offload.buffer_count, in slices; Sherd chooses their size"},
    {"offload_optimizer.ratio", "offload.optimizer_ratio"},
    {"offload_optimizer.pin_memory", NO_KNOB},
    {"offload_optimizer.fast_init", NO_KNOB},
    {"offload_optimizer.pipeline*", NO_KNOB},
    {"offload_param*", PARAMS},
    {"sub_group_size", NO_KNOB},
    {"aio*", NO_KNOB},
    {"steps_per_print", "metrics.log_freq"},
    {"wall_clock_breakdown", "leave it out: metrics.jsonl shows where the time of each step went"},
    /* FSDP and accelerate */
    {"cpu_offload", ALL_STATE},
    {"offload_params", ALL_STATE},
    {"fsdp_offload_params", ALL_STATE},
    {"offload_policy", ALL_STATE},
    {"parallelism.cpu_offload", ALL_STATE},
    {"parallelism.offload_policy", ALL_STATE},
    /* Megatron-LM */
    {"optimizer_cpu_offload", STATES},
    {"optimizer_offload_fraction", "offload.optimizer_ratio, with offload.optimizer: cpu on GPUs, nvme on CPUs"},
    {"fine_grained_activation_offloading", ACTIVATIONS},
    {"activation_offload_fraction", "offload.activation_ratio, with offload.activations: cpu on GPUs, nvme on CPUs"},
    {"loss_scale", "training.loss_scale: dynamic, or a power of two"},
    {"initial_loss_scale", "training.loss_scale_init"},
    {"loss_scale_window", "training.loss_scale_window"},
    {"min_loss_scale", "leave it out: it is 1"},
    {"hysteresis", "leave it out: it is 2"},
    {"exp_avg_dtype", "optimizer.state_dtype: float32 or bfloat16, of both means"},
    {"exp_avg_sq_dtype", "optimizer.state_dtype: float32 or bfloat16, of both means"},
    /* accelerate */
    {"compute_environment", MPIRUN},
    {"distributed_type", "parallelism.sharding_strategy: full_shard for FSDP, no_shard for MULTI_GPU"},
    {"mixed_precision", "training.mixed_precision_param"},
    {"downcast_bf16", "leave it out: parameters are float32, and training.mixed_precision_param is the compute type"},
    {"num_processes", MPIRUN},
    {"num_machines", MPIRUN},
    {"machine_rank", MPIRUN},
    {"main_process_ip", MPIRUN},
    {"main_process_port", MPIRUN},
    {"main_training_function", "leave it out: `sherd train` is the program"},
    {"rdzv_backend", MPIRUN},
    {"same_network", MPIRUN},
    {"gpu_ids", "leave it out: the ranks of a node take its GPUs in turn; CUDA_VISIBLE_DEVICES chooses among them"},
    {"enable_cpu_affinity", "leave it out: mpirun and srun bind ranks to cores"},
    {"dynamo_config", NO_COMPILER},
    {"tpu_*", "leave it out: there are no TPUs"},
    {"deepspeed_config", "parallelism.zero_stage, or parallelism.sharding_strategy"},
    /* axolotl */
    {"base_model", "model.hf_assets_path"},
    {"model_config_type", "leave it out: model.hf_assets_path has the class of the model"},
    {"tokenizer_type", "leave it out: model.hf_assets_path has the tokenizer"},
    {"tokenizer_config", "model.tokenizer"},
    {"adapter", "lora.rank: above 0 trains adapters; lora.quantize_base: nf4 for qlora"},
    {"lora_model_dir", "lora.adapter_path"},
    {"lora_target_linear", "lora.target_modules: all-linear, which is the default"},
    {"lora_fan_in_fan_out", "leave it out: the model's family says it"},
    {"peft_use_rslora", "lora.use_rslora"},
    {"sequence_len", "training.seq_len"},
    {"micro_batch_size", "training.local_batch_size"},
    {"batch_size", "training.global_batch_size, the sequences of a step; local_batch_size is those of a rank at once"},
    {"early_stopping_patience", "leave it out: a run trains for training.steps, and keeps the checkpoints that "
                                "checkpoint.keep_latest_k and keep_every_n say"},
    {"rl", "objective.name: dpo with objective.loss_type: sigmoid, ipo, simpo or orpo, and a file of `sherd tokenize "
           "--format preference`; for kto loss_type: kto, and --format unpaired; other methods are not there"},
    {"rl_beta|pref_beta|dpo_beta|orpo_alpha", "objective.beta"},
    {"simpo_gamma|rl_gamma", "objective.gamma"},
    {"cpo_alpha", "objective.sft_weight; TRL has 1.0 if it is not given, also with loss_type simpo, Sherd 0"},
    {"rpo_alpha|pref_ftx", "objective.sft_weight"},
    {"kto_desirable_weight|kto_chosen_weight|desirable_weight", "objective.desirable_weight"},
    {"kto_undesirable_weight|kto_rejected_weight|undesirable_weight", "objective.undesirable_weight"},
    {"dpo_loss_type|pref_loss", "objective.loss_type, one word of TRL"},
    {"dpo_label_smoothing", "objective.label_smoothing"},
    {"kd_alpha|objective.kd_alpha", "objective.alpha, the teacher's share of the loss; the next token has the rest"},
    {"kd_ce_alpha|objective.kd_ce_alpha", "objective.alpha: the loss of the next token counts 1 - alpha"},
    {"kd_temperature|objective.kd_temperature", "objective.temperature"},
    {"kd_trainer", "objective.name: distillation, with a file of `sherd eval --top-k` as objective.teacher_path"},
    {"kd_form|kd_normalize_topk|objective.kd_normalize_topk",
     "objective.kd_form: normalized divides the teacher's numbers by their sum, stored takes them as they are"},
    {"loss_add_tail|objective.loss_add_tail",
     "objective.kd_form: tail takes what the teacher's tokens leave as one more"},
    {"mass|top_p|kd_mass|kd_top_p|objective.mass|objective.top_p|objective.kd_mass|objective.kd_top_p",
     "objective.top_k: a teacher's file has as many tokens at each place, and teacher/mass of the metrics says what they hold"},
    {"teacher_model|teacher_model_*|seq_kd|objective.teacher_model*",
     "objective.teacher_path: a file that `sherd eval --top-k` makes of a teacher's checkpoint"},
    {"kd_loss_type|objective.kd_loss_type|kd_beta|objective.kd_beta|gkd_*|lmbda|objective.lmbda|reverse_kl|"
     "objective.reverse_kl|objective.divergence",
     "leave it out: the divergence is the forward one; the reverse one needs the teacher's opinion of the student's "
     "likeliest tokens, which a file lacks"},
    {"precompute_ref_log_probs|precompute_ref_batch_size|reference_free", REFERENCE},
    {"ref_model|ref_model_adapters|ref_adapter_name|model_adapter_name|rl_adapter_ref_model|"
     "objective.ref|objective.ref_model|objective.reference",
     OTHER_REFERENCE},
    {"z_loss|z_loss_multiplier|lm_head_z_loss", "training.z_loss; moe.z_loss_coeff is that of routers"},
    {"f_divergence_type|f_alpha_divergence_coef|discopop_tau|objective.f_divergence_type|objective.f_alpha_divergence_coef|"
     "objective.discopop_tau",
     "leave it out, or give objective.loss_type: plugin, a loss of one's own of both log-ratios (doc/plugins.md)"},
    {"ld_alpha|objective.ld_alpha|use_weighting|objective.use_weighting",
     "leave it out: pairs count alike, and so do the tokens of an answer; sigmoid_norm and simpo divide by their number"},
    {"num_generations|objective.num_generations|grpo|grpo_*|use_grpo|ppo_*|rollout_*|kl_coef|epsilon_high|scale_rewards|"
     "generate_during_eval",
     "leave it out: nothing generates answers while it trains; objective.name: dpo learns from those of a file"},
    {"stage", "objective.name: lm for pt and sft, dpo for dpo and kto, reward for rm; ppo is not there"},
    {"finetuning_type", "lora.rank: above 0 trains adapters, 0 the whole model"},
    {"token_weight|token_weights",
     "data.token_weight, with one float16 per token in FILE.weight; objective.sft_weight and desirable_weight weigh answers"},
    {"length_schedule|training.length_schedule|training.seq_len_schedule|curriculum_learning",
     "data.length_schedule: \"0:1024, 5000:4096\", from which step on attention stays within how many tokens"},
    {"optimizer.muon_dtype|optimizer.ns_dtype|muon_dtype|ns_dtype",
     "leave it out: matrices become orthogonal in float32 on CPUs, and on GPUs by products of bfloat16 if "
     "training.mixed_precision_param is bfloat16"},
    {"sync_ref_model|ref_model_mixup_alpha|ref_model_sync_steps|objective.sync_ref_model|objective.ref_model_mixup_alpha|"
     "objective.ref_model_sync_steps",
     MOVING},
    {"loss_weights|objective.loss_weights",
     "leave it out: objective.loss_type is one loss; objective.sft_weight adds that of "
     "the chosen answer"},
    {"attn_logit_softcapping|model.attn_logit_softcapping|attn_soft_cap|model.attn_soft_cap",
     "model.attention_softcap"},
    {"final_logit_softcapping|model.final_logit_softcapping", "model.logits_softcap"},
    {"qk_rope_head_dim|model.qk_rope_head_dim", "model.rotary_dim"},
    {"qk_nope_head_dim|model.qk_nope_head_dim",
     "model.head_dim, which is qk_nope_head_dim and qk_rope_head_dim together"},
    {"n_shared_experts|model.n_shared_experts", "model.shared_ffn_dim, the widths of all shared experts together"},
    {"n_routed_experts|model.n_routed_experts", "model.n_experts"},
    {"first_k_dense_replace|model.first_k_dense_replace", "model.first_dense_layers"},
    {"routed_scaling_factor|model.routed_scaling_factor", "model.route_scale"},
    {"mscale_all_dim|model.mscale_all_dim", "model.rope_mscale_all_dim"},
    {"optimizer.gram*|optimizer.muon_gram*|optimizer.use_gram*",
     "leave it out: iterating on the product of a matrix with itself loses digits, in bfloat16 all of them"},
    {"optimizer.plugin|optimizer.plugins|plugin.optimizer|plugin.optimizers|optimizer_cls_name",
     "leave it out: an optimizer is made of the trainer's own passes; plug-ins bring operations and losses"},
    {"model.block|model.blocks|model.attention|model.attn|model.layers|model.block_type|model.architecture|plugin.block|"
     "plugin.blocks|plugin.attention",
     "model.family names the blocks, rows of a table of the program; model.ffn has the "
     "feed-forward part in words"},
    {"max_length|objective.max_length",
     "training.seq_len; of pairs of answers, which share a sequence, give twice as much less 2, with "
     "data.excess_length_strategy: truncate"},
    {"truncation_mode|objective.truncation_mode|data.truncation_mode",
     "data.excess_length_strategy: truncate keeps the start of prompt and answer; nothing keeps the end"},
    {"max_prompt_length|max_completion_length",
     "training.seq_len, and data.excess_length_strategy: truncate or drop, for prompt and answer together"},
    {"num_epochs", EPOCHS},
    {"epochs", EPOCHS},
    {"datasets", DATASETS},
    {"test_datasets", DATASETS},
    {"dataset_prepared_path", "leave it out: `sherd tokenize` writes the file that training.dataset_path names"},
    {"val_set_size", "validation.dataset_path; `sherd tokenize TEXT --val FILE` splits a text"},
    {"chat_template", "`sherd tokenize FILE --format messages --chat-template NAME`"},
    {"train_on_inputs", "leave it out: the format of `sherd tokenize` says what is learned; messages: the answers"},
    {"sample_packing", "data.packing: bfd (true) or none (false)"},
    {"eval_sample_packing", "leave it out: data.packing holds for validation too"},
    {"pad_to_sequence_len", "leave it out: data.packing: bfd fills sequences"},
    {"special_tokens",
     "leave it out: the tokenizer has its own; `sherd tokenize --eos WORD` chooses what ends a document"},
    {"flash_attention", "leave it out: attention is always computed in tiles"},
    {"xformers_attention", "leave it out: attention is always computed in tiles"},
    {"sdp_attention", "leave it out: attention is always computed in tiles"},
    {"lr_scheduler", "lr_scheduler.decay_type: linear, cosine, sqrt, exp, power, constant or wsd"},
    {"optimizer", "optimizer.name: adamw, sgd, lion, muon or normuon"},
    {"evals_per_epoch", "validation.freq counts steps"},
    {"saves_per_epoch", "checkpoint.interval counts steps"},
    {"wandb_*|use_wandb|trackio_*|use_trackio|swanlab_*|use_swanlab|mlflow_*|use_mlflow|comet_*|use_comet", NO_WANDB},
    {"use_tensorboard", TENSORBOARD},
    {"plugins", "leave it out, unless it lists FILE.so: the kernels are Sherd's own, and fused"},
    {"liger_*|use_liger_loss|use_kernels|lora_mlp_kernel|lora_qkv_kernel|lora_o_kernel|lora_embedding_kernel|flash_attn_*|flash_optimum",
     FUSED},
    {"fused_attn_kernel|flex_attention|flex_attn_*|sage_attention|s2_attention|eager_attention|torchdistx_path", FUSED},
    {"cut_cross_entropy|chunked_cross_entropy*|chunked_cross_entropy_*",
     "leave it out: the logits are always computed in chunks, of training.loss_chunk_rows"},
    {"tiled_mlp*|tiled_mlp_*", "training.tile_rows: auto, with activation_checkpoint.mode: full"},
    {"loss_watchdog_threshold",
     "guard.action: stop; guard.z_score is a bound on the gradient norm that moves with the run"},
    {"loss_watchdog_patience", "guard.max_skips, the bad steps in a row that guard.action: skip accepts"},
    {"relora*|relora_*",
     "leave it out: adapters are trained to the end; `sherd ckpt export --merge` adds them to the model"},
    {"unfrozen_parameters|lisa_*|freeze_mm_modules|peft_trainable_token_indices",
     "leave it out: all parameters are trained, or with lora.rank the adapters alone"},
    {"peft_layers_*|lora_rank_pattern|lora_alpha_pattern|lora_layers_to_transform",
     "lora.target_modules names matrices; all blocks have the same adapters"},
    {"loraplus_*|embedding_lr|embedding_lr_scale|lr_groups",
     "optimizer.groups: pattern=embed lr=0.5 gives tensors a factor of optimizer.lr"},
    {"loftq_*|peft*|peft_*", "leave it out: adapters are LoRA's, with the keys of lora"},
    {"gptq*|gptq_*|bnb_config_kwargs|model_quantization_*",
     "leave it out: lora.quantize_base: nf4 packs a base in four bits"},
    {"qat*|fp8*|fp8_*|nvfp4_*|quantization*", NO_FLOAT8},
    {"quantize_moe_experts", "leave it out: lora.quantize_base: nf4 packs experts too"},
    {"use_scattermoe|use_sonicmoe|experts_implementation|llama4_linearized_experts", EXPERTS},
    {"expert_parallel_*", "parallelism.expert_parallel_degree"},
    {"activation_offloading", ACTIVATIONS},
    {"dp_shard_size", "mesh.shard"},
    {"dp_replicate_size", "mesh.replicate"},
    {"context_parallel_size|sequence_parallel_degree", "parallelism.context_parallel_degree"},
    {"tensor_parallel_size", "parallelism.tensor_parallel_degree"},
    {"ddp", "parallelism.sharding_strategy: no_shard"},
    {"world_size|use_ray|ray_*", MPIRUN},
    {"trl*|vllm*|dpo_*|kto_*|orpo_*|simpo_*|cpo_*|rpo_*|process_reward_model|ebft*", NO_REWARDS},
    {"reward_model|reward_model_type",
     "objective.name: reward with model.num_labels: 1, and a file of `sherd tokenize --format reward`"},
    {"problem_type",
     "objective.name: regression with model.num_labels: 1, or multi_label; lm with num_labels gives a text one label"},
    {"center_rewards_coefficient", "objective.center_rewards_coefficient"},
    {"num_labels", "model.num_labels, with texts of `sherd tokenize --format classification` or multi_label"},
    {"diffusion*|use_eaft|eaft_*", "leave it out: the loss is the cross-entropy of the next token"},
    {"noisy_embedding_alpha", "leave it out: embeddings get no noise"},
    {"pretraining_dataset", DATASETS},
    {"skip_prepare_dataset|push_dataset_to_hub|dataset_exact_deduplication|dataset_processes|dataset_keep_in_memory|dataset_shard_*|shuffle_before_merging_datasets|streaming_*|pretrain_*",
     "leave it out: `sherd tokenize` prepares the data before the run"},
    {"shuffle_merged_datasets|curriculum_sampling", "data.shuffle: false reads the file in its order"},
    {"max_packed_sequence_len", "training.seq_len, which data.packing: bfd fills"},
    {"sample_packing_*|multipack_real_batches|batch_flattening|pad_to_multiple_of",
     "leave it out: data.packing: bfd fills sequences"},
    {"chat_template_jinja|default_system_message", "`sherd tokenize FILE --format messages --chat-template NAME`"},
    {"eot_tokens", "leave it out: the chat template says where an answer ends"},
    {"tokens|bos_token|eos_token|pad_token|unk_token|additional_special_tokens|added_tokens_overrides",
     "leave it out: the tokenizer has its own; `sherd tokenize --eos WORD` chooses what ends a document"},
    {"tokenizer_use_fast|tokenizer_legacy|tokenizer_use_mistral_common|tokenizer_save_jinja_files",
     "leave it out: model.hf_assets_path has the tokenizer"},
    {"processor_type|processor_kwargs", "leave it out: models read text alone"},
    {"type_of_model|is_falcon_*|is_llama_*|is_mistral_*|is_qwen_*",
     "leave it out: model.hf_assets_path has the class of the model"},
    {"base_model_config", "model.hf_assets_path"},
    {"model_config|overrides_of_model_config|overrides_of_model_kwargs",
     "write the sizes below model, with the keys of model"},
    {"rope_scaling", "model.rope_type and rope_factor, with the other keys of model that begin with rope"},
    {"resize_token_embeddings_to_32x|shrink_embeddings|mean_resizing_embeddings",
     "leave it out: model.vocab_size is the size"},
    {"reinit_weights", "checkpoint.initial_load_in_hf: false"},
    {"revision_of_model", "`hf download NAME --revision REVISION --local-dir DIR` gets one; a folder has no other"},
    {"disable_dropout|padding_value|hf_use_auth_token|device_map|device|gc_steps|gc_collect_steps|experimental_skip_move_to_device",
     "leave it out: it changes nothing here"},
    {"max_memory|gpu_memory_limit", "memory.limit_bytes"},
    {"float16", HALF},
    {"bfloat16", "training.mixed_precision_param: bfloat16"},
    {"float32|fp32", "training.mixed_precision_param: float32"},
    {"adam_eps", "optimizer.eps"},
    {"optimizer.state_bits|optimizer.block_size", "optimizer.state_dtype: int8, of which 64 neighbours share a scale"},
    {"adam_beta3|adam_epsilon2|dion_*|qgalore_*|galore_*|use_galore|apollo_*|use_apollo|badam_*|use_badam|use_adam_mini|"
     "schedule_free|precondition_frequency|preconditioner_frequency|max_preconditioner_dim|optimizer.dion_*|"
     "optimizer.rank_fraction|optimizer.schedule_free|optimizer.precondition*|optimizer.max_precondition*|optimizer.shampoo*",
     "leave it out: optimizer.name is adamw, sgd, lion, muon or normuon"},
    {"eta_min", "lr_scheduler.min_lr_factor, a share of optimizer.lr"},
    {"cosine_min_lr_ratio", "lr_scheduler.min_lr_factor"},
    {"cosine_constant_lr_ratio", "lr_scheduler.total_steps: fewer than training.steps, after which the rate stays"},
    {"lr_quadratic_warmup|jagged_restart_*|lr_div_factor", "leave it out: the warm-up is linear, and nothing restarts"},
    {"eval_batch_size", "leave it out: it is training.local_batch_size"},
    {"eval_sequence_len", "leave it out: it is training.seq_len"},
    {"eval_table_size|eval_max_new_tokens|eval_causal_lm_metrics|do_causal_lm_eval|do_bench_eval|bench_*|gradio_*|"
     "generate_samples|num_generation_samples|generation_*",
     "leave it out: `sherd eval` and `sherd generate` read the checkpoints of a run, also while it trains"},
    {"auto_resume_from_checkpoints", "leave it out: a run always resumes in its job.dump_folder"},
    {"save_first_step", "checkpoint.create_seed_checkpoint"},
    {"profiler_steps|profiler_steps_start", TRACE},
    {"strict", "leave it out: an unknown key is always refused"},
};

/* A star matches anything after the name; for a section, only its keys: "mx*" is mx and mx.recipe_name, not mxnet. After
 * an underscore it is the rest of a word. */
static bool matches_one(const char *row, size_t length, const char *name)
{
    if (row[length - 1] != '*')
        return strncmp(row, name, length) == 0 && name[length] == '\0';
    if (strncmp(row, name, --length) != 0)
        return false;
    return memchr(row, '.', length) != NULL || row[length - 1] == '_' || name[length] == '\0' || name[length] == '.';
}

static bool matches(const char *row, const char *name)
{
    for (; *row != '\0'; row += strcspn(row, "|"), row += *row == '|')
        if (matches_one(row, strcspn(row, "|"), name))
            return true;
    return false;
}

/* The only key with this name after its section. NULL: none, or several. */
static const char *key_named(const char *word)
{
    const char *found = NULL;

    for (int i = 0; i < sh_config_n_keys; i++) {
        const char *name = sh_config_keys[i].name;

        if (strcmp(name + sh_config_section_len(name) + 1, word) != 0)
            continue;
        if (found != NULL)
            return NULL;
        found = name;
    }
    return found;
}

/* What the tables say about a name: a key, or a sentence; a key of Sherd without its section is one. NULL: no known
 * program has this key. All rows are searched:
 * this runs once, before an error. */
static const char *advice_of(const char *name, const char *value)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (matches(rows[i].name, name))
            return rows[i].advice;
    const struct sh_trainer_row *row = sh_trainer_find(name, value[0] ? value : NULL);

    if (row == NULL)
        return key_named(name);
    if (row->answer == SH_TRAINER_NOTHING || !row->text[0])
        return "leave it out: it changes nothing here";
    return row->text;
}

/* A key gets the value that was given. */
const char *sh_config_foreign(const char *name, const char *value, char out[SH_CONFIG_ADVICE])
{
    char shown[SH_CONFIG_SHOWN];
    const char *advice = advice_of(name, value);

    if (advice == NULL || value[0] == '\0' || sh_config_key_find(advice) == NULL)
        return advice;
    snprintf(out, SH_CONFIG_ADVICE, "%s: %s", advice, sh_config_text_shown(value, shown));
    return out;
}

/* A key of Sherd takes precedence over a word of another trainer, which may stand for a key too. */
const char *sh_config_bare_word(const char *word, bool *is_key)
{
    char out[SH_CONFIG_ADVICE];
    const char *key = key_named(word);

    if (key == NULL)
        key = sh_config_foreign(word, "", out);
    *is_key = key != NULL && sh_config_key_find(key) != NULL;
    return key;
}
