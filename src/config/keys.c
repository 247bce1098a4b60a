/* The table of keys. A row says everything about a key: its name, the field that holds it (whose C type gives the key's
 * type), its bounds, words, unit, default, whose it is, and its help. Parsing, printing, checks of ranges, help, man
 * page and doc/ read these rows; a new key is a field in config.h and a row here. */
#include "src/config/keys.h"

/* Where a row's value lives, and as what: the type comes from the field, so that the two cannot differ. */
#define FIELD(field) \
    .type = _Generic(((struct sh_config_state *)0)->field,                                                  \
                     bool: SH_KEY_BOOL, int: SH_KEY_INT, int64_t: SH_KEY_INT64, uint64_t: SH_KEY_UINT64,    \
                     double: SH_KEY_DOUBLE, char *: SH_KEY_STRING),                                         \
    .offset = offsetof(struct sh_config_state, field), .size = sizeof(((struct sh_config_state *)0)->field)

/* The name and the field are written once: KEY(mesh, shard) is "mesh.shard" and cfg.mesh.shard. */
#define KEY_OF(kind, section, key) .name = #section "." #key, FIELD(cfg.section.key), .of = (enum sh_config_of)(kind)
#define KEY(section, key) KEY_OF(OF_##section, section, key)
/* Only these words; a key with numbers besides gives .words without only_words. */
#define WORDS(array) .words = array, .only_words = true
#define BOOL WORDS(bool_words)
/* A key without a value of its own: it is resolved into another one (alias.c), and never printed. */
#define ALIAS(main_key, field) .alias_of = main_key, FIELD(alias.field)

/* Instead of a default, which depends on model.name. */
#define FROM_PRESET "the preset's"

/* Larger than any run, small enough that products of two such numbers stay far from overflow. */
#define MANY_STEPS 1e12
#define MANY_ELEMS 16777216
#define MANY_RANKS 1048576

/* Whose the keys of a section are; rows of KEY_OF are another's. Kernels and sizes of chunks and micro-batches change
 * roundings, as another machine does; what is rounded to (mixed_precision_...) and how sums are ordered (reproducible)
 * is asked of every machine. */
enum {
    OF_job = SH_OF_MACHINE,
    OF_model = SH_OF_MODEL,
    OF_lora = SH_OF_MODEL,
    OF_training = SH_OF_RUN,
    OF_data = SH_OF_RUN,
    OF_parallelism = SH_OF_MACHINE,
    OF_mesh = SH_OF_MACHINE,
    OF_optimizer = SH_OF_RUN,
    OF_lr_scheduler = SH_OF_RUN,
    OF_activation_checkpoint = SH_OF_MACHINE,
    OF_checkpoint = SH_OF_MACHINE,
    OF_validation = SH_OF_RUN,
    OF_metrics = SH_OF_MACHINE,
    OF_profiling = SH_OF_MACHINE,
    OF_guard = SH_OF_RUN,
    OF_fault = SH_OF_MACHINE,
    OF_comm = SH_OF_MACHINE,
    OF_memory = SH_OF_MACHINE,
    OF_offload = SH_OF_MACHINE,
    OF_debug = SH_OF_RUN,
};

/* Each list ends with a NULL name. The first word that has a value is the one printed. */
typedef const struct sh_config_word words[];

static words bool_words = {{"false", false}, {"true", true}, {NULL, 0}};
static words family_words = {
#define FAMILY(id, word, ...) {word, SH_FAMILY_##id},
#include "src/config/family.inc"
#undef FAMILY
    {NULL, 0}};
static words rope_words = {{"llama3", SH_ROPE_LLAMA3},
                           {"linear", SH_ROPE_LINEAR},
                           {"yarn", SH_ROPE_YARN},
                           {"longrope", SH_ROPE_LONG},
                           {NULL, 0}};
static words quantize_words = {{"none", SH_QUANTIZE_NONE}, {"nf4", SH_QUANTIZE_NF4}, {NULL, 0}};
static words precision_words = {{"float32", SH_PRECISION_FLOAT32}, {"bfloat16", SH_PRECISION_BFLOAT16}, {NULL, 0}};
static words device_words = {{"auto", SH_DEVICE_AUTO}, {"cpu", SH_DEVICE_CPU}, {"cuda", SH_DEVICE_CUDA}, {NULL, 0}};
static words comm_words = {{"auto", SH_COMM_AUTO}, {"mpi", SH_COMM_MPI}, {"nccl", SH_COMM_NCCL}, {NULL, 0}};
static words kernels_words = {{"cpu", SH_KERNELS_CPU}, {"ref", SH_KERNELS_REF}, {NULL, 0}};
static words reproducible_words = {{"none", SH_REPRODUCIBLE_NONE}, {"mesh", SH_REPRODUCIBLE_MESH}, {NULL, 0}};
static words token_words = {
    {"auto", SH_TOKEN_AUTO}, {"uint16", SH_TOKEN_UINT16}, {"uint32", SH_TOKEN_UINT32}, {NULL, 0}};
static words mask_words = {{"auto", SH_MASK_AUTO}, {"off", SH_MASK_OFF}, {"must", SH_MASK_MUST}, {NULL, 0}};
static words packing_words = {{"auto", SH_PACKING_AUTO},
                              {"bfd", SH_PACKING_BFD},
                              {"none", SH_PACKING_NONE},
                              {"concat", SH_PACKING_CONCAT},
                              {NULL, 0}};
/* Words of axolotl. */
static words excess_words = {{"raise", SH_EXCESS_RAISE},
                             {"truncate", SH_EXCESS_TRUNCATE},
                             {"drop", SH_EXCESS_DROP},
                             {"split", SH_EXCESS_SPLIT},
                             {NULL, 0}};
/* Names of PyTorch; what each strategy keeps is in src/plan/request.c. */
static words strategy_words = {
    {"no_shard", SH_NO_SHARD},
    {"shard_optim", SH_SHARD_OPTIM},
    {"shard_grad_op", SH_SHARD_GRAD_OP},
    {"full_shard", SH_FULL_SHARD},
    {"hybrid_shard", SH_HYBRID_SHARD},
    {"hybrid_shard_zero2", SH_HYBRID_SHARD_ZERO2},
    {NULL, 0},
};
static words grad_sync_words = {
    {"auto", SH_GRAD_SYNC_AUTO},
    {"every_micro_step", SH_GRAD_SYNC_EVERY},
    {"last_micro_step", SH_GRAD_SYNC_LAST},
    {NULL, 0},
};
/* Words beside numbers: negative values that no number of ranks has. */
static words shard_words = {{"all", SH_MESH_ALL}, {"node", SH_MESH_NODE}, {"auto", SH_CONFIG_UNSET}, {NULL, 0}};
static words replicate_words = {{"auto", SH_MESH_AUTO}, {NULL, 0}};
static words optimizer_words = {
#define OPTIM(id, word, ...) {word, SH_OPTIM_##id},
#include "src/config/optim.inc"
#undef OPTIM
    {NULL, 0}};
static const char optimizer_help[] =
#define OPTIM(id, word, means, ...) word ": " means ". "
#include "src/config/optim.inc"
#undef OPTIM
    "A checkpoint holds the states of its optimizer, so another one cannot resume it.";
static words decay_words = {{"constant", SH_DECAY_CONSTANT},
                            {"linear", SH_DECAY_LINEAR},
                            {"cosine", SH_DECAY_COSINE},
                            {"wsd", SH_DECAY_WSD},
                            {NULL, 0}};
/* Words of torchtitan where it has them. */
static words recompute_words = {
    {"none", SH_RECOMPUTE_NONE},
    {"full", SH_RECOMPUTE_FULL},
    {"every_k", SH_RECOMPUTE_EVERY_K},
    {"selective", SH_RECOMPUTE_SELECTIVE},
    {"memory_budget", SH_RECOMPUTE_MEMORY_BUDGET},
    {NULL, 0},
};
static words resume_words = {{"auto", SH_RESUME_AUTO}, {"never", SH_RESUME_NEVER}, {"must", SH_RESUME_MUST}, {NULL, 0}};
static words io_words = {{"auto", SH_IO_AUTO}, {"mpiio", SH_IO_MPIIO}, {"direct", SH_IO_DIRECT}, {NULL, 0}};
static words writers_words = {{"auto", SH_WRITERS_AUTO}, {NULL, 0}};
static words async_words = {{"disabled", SH_ASYNC_DISABLED}, {"async", SH_ASYNC_ASYNC}, {NULL, 0}};
static words offload_words = {{"none", SH_OFFLOAD_NONE}, {"nvme", SH_OFFLOAD_NVME}, {NULL, 0}};
static words shared_words = {{"auto", SH_SHARED_MEMORY_AUTO}, {"off", SH_SHARED_MEMORY_OFF}, {NULL, 0}};
static words verify_words = {{"disk", SH_VERIFY_DISK}, {"cache", SH_VERIFY_CACHE}, {"off", SH_VERIFY_OFF}, {NULL, 0}};
static words export_words = {
    {"float32", SH_EXPORT_FLOAT32}, {"float16", SH_EXPORT_FLOAT16}, {"bfloat16", SH_EXPORT_BFLOAT16}, {NULL, 0}};
static words trust_words = {{"owner", SH_TRUST_OWNER}, {"any", SH_TRUST_ANY}, {NULL, 0}};
static words busy_words = {{"wait", SH_BUSY_WAIT}, {"skip", SH_BUSY_SKIP}, {NULL, 0}};
static words guard_words = {
    {"skip", SH_GUARD_SKIP}, {"rollback", SH_GUARD_ROLLBACK}, {"stop", SH_GUARD_STOP}, {NULL, 0}};
/* torchtitan writes -1 for the rest of the ranks. */
static words rest_words = {{"-1", SH_MESH_ALL}, {NULL, 0}};
static words op_words = {{"op", SH_ALIAS_SELECTIVE_OP}, {NULL, 0}};
static words reshard_words = {{"default", SH_ALIAS_RESHARD_DEFAULT},
                              {"always", SH_ALIAS_RESHARD_ALWAYS},
                              {"never", SH_ALIAS_RESHARD_NEVER},
                              {NULL, 0}};

/* Keys of a section must stand together, since help and printing begin a section where the name changes. Their order is
 * that of the documentation. */
/* clang-format off */
const struct sh_config_key sh_config_keys[] = {
    {KEY(job, dump_folder), .def = "./outputs", .help = "Folder for everything a run writes."},
    {KEY_OF(SH_OF_NOTE, job, description), .def = "",
     .help = "One-line description of the run, stored in its checkpoints."},
    {KEY(job, stop_before_limit_seconds), .min = -1, .max = 1e6, .unit = "seconds", .def = "30",
     .help = "If the job's end time is known (SHERD_END_TIME or SLURM_JOB_END_TIME, in seconds since 1970), save and "
             "exit with status 75 this many seconds early, plus the measured time of one step and one save. -1: never "
             "stop early; let the scheduler end the job."},

    {KEY(model, name), .def = "",
     .help =
         "Preset that sets all of this section: debug, gpt2-124m, gpt2-1558m, llama3.2-1b, llama3.1-8b, llama3.1-70b. "
         "Keys given explicitly win. Empty or custom: no preset; give every dimension."},
    {KEY(model, family), WORDS(family_words), .def = "llama",
     .help =
         "Architecture, as Hugging Face names it. llama: RMSNorm, rotary positions, SwiGLU; mistral: the same; qwen2: with "
         "biases of queries, keys and values; phi3: with stacked matrices; smollm3: without positions in each fourth block; "
         "gpt2: LayerNorm, learned positions, GELU, biases; starcoder2: the same with rotary positions; qwen3: with norms of "
         "each head's queries and keys; olmo2: with norms of all queries and all keys, and behind the branches; gemma: "
         "norms times (1 + weight), a scaled embedding, GELU for the gate; gemma3_text: the same with qwen3's norms and others behind "
         "the branches; gpt_neox: as starcoder2, with both branches of a block "
         "at once and GELU by erf. A window of attention "
         "is model.attention_window, of any family."},
    {KEY(model, n_layers), .min = 1, .max = 10000, .unit = "blocks", .derived = FROM_PRESET,
     .help = "Transformer blocks."},
    {KEY(model, dim), .min = 1, .max = MANY_ELEMS, .derived = FROM_PRESET, .help = "Width of the residual stream."},
    {KEY(model, n_heads), .min = 1, .max = 65536, .derived = FROM_PRESET, .help = "Query heads of attention."},
    {KEY(model, n_kv_heads), .min = 1, .max = 65536,
     .derived = "the preset's, else model.n_heads; that too where the preset has as many of both",
     .help = "Key and value heads; fewer than n_heads is grouped-query attention."},
    {KEY(model, head_dim), .min = 1, .max = 65536, .derived = "the preset's, else model.dim / model.n_heads",
     .help = "Width of one head."},
    {KEY(model, ffn_dim), .min = 1, .max = MANY_ELEMS,
     .derived = "the preset's, else 4 * model.dim with GELU, 8/3 of it rounded up to a multiple of 64 with SwiGLU",
     .help = "Inner width of the feed-forward layers."},
    {KEY(model, vocab_size), .min = 1, .max = MANY_ELEMS, .unit = "tokens", .derived = FROM_PRESET,
     .help = "Number of tokens in the vocabulary."},
    {KEY(model, max_seq_len), .min = 1, .max = MANY_ELEMS, .unit = "tokens", .derived = FROM_PRESET,
     .help = "Longest sequence the model supports; gpt2 has a learned vector for each position."},
    {KEY(model, norm_eps), .min = 1e-12, .max = 1, .def = "1e-5",
     .help = "Added to the variance (mean square) in norms."},
    {KEY(model, rope_theta), .min = 1, .max = 1e12, .def = "10000", .help = "Base of the rotary frequencies (llama)."},
    {KEY(model, rope_factor), .min = 0, .max = 65536, .def = "0",
     .help = "Factor by which low rotary frequencies are divided for long contexts, as in Llama 3.1; 0: none."},
    {KEY(model, rope_type), WORDS(rope_words), .def = "llama3",
     .help = "Which frequencies rope_factor divides. llama3: the low ones, by how often they turn over "
             "rope_original_max_len, as in Llama 3.1; linear: all; yarn: the low ones, by a ramp over their number, "
             "with cos and sin multiplied by rope_attention_factor; longrope: each by a number of its own, of "
             "rope_short_factor where a sequence has at most rope_original_max_len tokens, else of rope_long_factor, with "
             "the same multiplication."},
    {KEY(model, rope_low_freq_factor), .min = 1e-6, .max = 1e6, .def = "1",
     .help = "Frequencies that complete fewer turns than this over rope_original_max_len are divided by "
             "rope_factor."},
    {KEY(model, rope_high_freq_factor), .min = 1e-6, .max = 1e6, .def = "4",
     .help = "Frequencies that complete more turns than this are unchanged; those in between are interpolated."},
    {KEY(model, rope_original_max_len), .min = 0, .max = MANY_ELEMS, .unit = "tokens", .def = "0",
     .help = "Context length before scaling; required with rope_factor."},
    {KEY(model, rope_beta_fast), .min = 1e-6, .max = 1e6, .unit = "turns", .def = "32",
     .help = "For yarn: frequencies that turn more often than this over rope_original_max_len are left alone."},
    {KEY(model, rope_beta_slow), .min = 1e-6, .max = 1e6, .unit = "turns", .def = "1",
     .help = "For yarn: frequencies that turn fewer times than this are divided by rope_factor; those between are "
             "blended."},
    {KEY(model, rope_attention_factor), .min = 0, .max = 1e6, .def = "0",
     .help = "For yarn and longrope: factor of cos and sin. 0: 0.1 ln(rope_factor) + 1 for yarn, "
             "sqrt(1 + ln(rope_factor) / ln(rope_original_max_len)) for longrope."},
    {KEY(model, rope_short_factor), .def = "",
     .help = "For longrope: what the rotary frequencies are divided by, a number for each pair of elements that turns, with commas "
             "between, the fastest first."},
    {KEY(model, rope_long_factor), .def = "", .help = "For longrope: the same for longer sequences."},
    {KEY(model, rope_truncate), BOOL, .def = "true",
     .help = "For yarn: round the ends of the ramp to whole numbers of frequencies."},
    {KEY(model, rope_local_base_freq), .min = 0, .max = 1e12, .def = "0",
     .help = "Base of the rotary frequencies of blocks that have model.attention_window; rope_factor leaves them alone (10000 "
             "for Gemma 3). 0: those of the other blocks."},
    {KEY(model, rotary_dim), .min = 0, .max = 65536, .def = "0",
     .help = "Elements at the start of each head that rotary positions turn; an even number. 0: all."},
    {KEY(model, tie_word_embeddings), BOOL, .def = "false",
     .help = "Use the embedding as the output projection as well."},
    {KEY(model, attention_bias), BOOL, .def = "false",
     .help = "For llama, smollm3, qwen3, olmo2, gemma and gemma3_text: the four products of attention have biases."},
    {KEY(model, mlp_bias), BOOL, .def = "false",
     .help = "For llama and smollm3: the three products of the feed-forward layers have biases."},
    {KEY(model, no_rope_layer_interval), .min = 0, .max = 10000, .unit = "blocks",
     .derived = "4 for smollm3, else 0",
     .help = "For smollm3: each block of this number, counted from 1, has no rotary positions. 0: all blocks have them."},
    {KEY(model, attention_window), .min = 0, .max = MANY_ELEMS, .unit = "tokens", .def = "0",
     .help = "Attention sees a token itself and so many less one before it (sliding window). 0: all before it. "
             "config.json says it for mistral, qwen2, qwen3, phi3, starcoder2, smollm3 and gemma3_text, which alone are "
             "exported with it."},
    {KEY(model, window_first_layer), .min = 0, .max = 10000, .def = "0",
     .help = "Blocks before this one, counted from 0, have no window (max_window_layers of Qwen2)."},
    {KEY(model, full_attention_interval), .min = 0, .max = 10000, .unit = "blocks", .def = "0",
     .help = "Each block of this number, counted from 1, has no window (6 for Gemma 3). 0: all have it."},
    {KEY(model, query_pre_attn_scalar), .min = 0, .max = 65536, .def = "0",
     .help = "Scores of attention are divided by the root of this number. 0: of model.head_dim."},
    {KEY(model, init_std), .min = 0, .max = 10, .def = "0.02",
     .help = "Standard deviation of the initial weights; projections back into the residual stream use this "
             "divided by sqrt(2 n_layers). Each value is a sum of eight uniform numbers: nearly normal, with an "
             "excess kurtosis of -0.15 and nothing beyond 4.9 deviations."},
    {.name = "model.hf_assets_path", FIELD(cfg.hf.assets_path), .of = SH_OF_MACHINE, .def = "",
     .help = "Folder that transformers saved: its config.json sets this section, and its safetensors files are the "
             "parameters that a new run begins with (checkpoint.initial_load_in_hf). A plan needs config.json alone. "
             "Empty: none."},
    {.name = "model.hf_ignore", FIELD(cfg.hf.ignore), .of = SH_OF_MACHINE, .def = "",
     .help = "Keys of that config.json, with commas between, that are left out. Any other key with a value that is not known "
             "here is refused, since it may change the mathematics."},
    {.name = "model.tokenizer", FIELD(cfg.hf.tokenizer), .of = SH_OF_NOTE, .derived = "model.hf_assets_path, where that has a tokenizer.json",
     .help = "Tokenizer of the model: byte, a folder that has tokenizer.json, or such a file. Checkpoints keep its name and its "
             "hash: generate and eval use it, and a resume with another one is refused. Empty: not known."},
    {.name = "model.hf", ALIAS("model.hf_assets_path", hf), .derived = "not set", .help = "The same folder."},

    {KEY(training, dataset_path), .def = "",
     .help = "Token file, or a glob pattern that matches several. Required by train."},
    {KEY(training, seq_len), .min = 1, .max = MANY_ELEMS, .unit = "tokens",
     .derived = "2048, or model.max_seq_len where that is less", .help = "Length of training sequences."},
    {KEY_OF(SH_OF_MACHINE, training, local_batch_size), .min = 1, .max = 65536, .unit = "sequences", .def = "8",
     .help = "Sequences that one rank processes at a time. A property of the machine: a checkpoint does not keep "
             "it, and eval uses this default, or less where the global batch requires it."},
    {KEY(training, global_batch_size), .min = -1, .max = MANY_ELEMS, .unit = "sequences", .def = "-1",
     .help = "Sequences in one optimizer step over all ranks. More than local_batch_size * ranks accumulates "
             "gradients. -1: local_batch_size * ranks."},
    {KEY(training, steps), .min = 1, .max = MANY_STEPS, .unit = "steps", .def = "1000",
     .help = "Optimizer steps of the run."},
    {KEY(training, max_norm), .min = 0, .max = 1e30, .def = "1",
     .help = "Clip gradients to this global norm; 0: no clipping."},
    {KEY(training, mixed_precision_param), WORDS(precision_words), .def = "bfloat16",
     .help = "Type of gathered parameters and activations. Master weights, gradient sums and optimizer state are "
             "float32."},
    {KEY(training, mixed_precision_reduce), WORDS(precision_words), .def = "float32",
     .help = "Type in which gradients are communicated. bfloat16 halves the traffic. Each rank rounds its gradient "
             "once; sums are accumulated in float32 and rounded once (NCCL accumulates in bfloat16). Micro-steps "
             "are added in float32."},
    {KEY_OF(SH_OF_MACHINE, training, threads), .min = 0, .max = 4096, .def = "0",
     .help = "Threads per rank; 0: cores of the node divided by its ranks."},
    {KEY_OF(SH_OF_MACHINE, training, device), WORDS(device_words), .def = "auto",
     .help = "cuda: one GPU per rank; cpu: the node's cores. auto: cuda if the program was built with it and every "
             "rank sees a GPU, else cpu."},
    {KEY_OF(SH_OF_MACHINE, training, kernels), WORDS(kernels_words), .def = "cpu",
     .help = "CPU kernels. cpu: optimised; ref: reference loops, slow."},
    {KEY(training, reproducible), WORDS(reproducible_words), .def = "none",
     .help = "none: the same bits on the same mesh. mesh: the same bits of losses, validation losses and "
             "parameters on every mesh whose number of ranks is a power of two. Sums follow one binary tree over "
             "the global batch, whose leaves are local_batch_size sequences; global_batch_size / local_batch_size "
             "must be a power of two. Needs memory for log2(micro-steps of a rank) full gradients on each rank."},
    {KEY_OF(SH_OF_MACHINE, training, deterministic), BOOL, .def = "true",
     .help = "true: the same mesh gives the same bits. false, on GPUs only: the backward of attention takes cuDNN's "
             "usual kernel, which adds in the order in which blocks come, and moves less memory. Attention that cuDNN "
             "does not do, and all else, is deterministic in any case."},
    {KEY_OF(SH_OF_MACHINE, training, measure_products), BOOL, .def = "false",
     .help = "true, on GPUs only: rank 0 times the kernels that cuBLASLt names for each product of matrices, at the "
             "first start, and all ranks take the fastest. What was found is kept in products.txt in job.dump_folder, "
             "so that a job that goes on there has the same bits; elsewhere it may choose otherwise. false: cuBLASLt's "
             "first answer."},
    {KEY_OF(SH_OF_MACHINE, training, loss_chunk_rows), .min = 0, .max = MANY_ELEMS, .unit = "tokens", .def = "0",
     .help = "Tokens whose logits exist at one time; 0: on the CPU equal parts of at most 50 MiB of the compute type "
             "(of bfloat16 without AMX twice that) or 256 tokens, on a GPU 2048, or 4096 or 8192 where "
             "memory.limit_bytes allows it."},

    {KEY(lora, rank), .min = 0, .max = 65536, .def = "0",
     .help = "Above 0: the model stays as it is, and adapters of this rank beside its linear products are trained "
             "(doc/fine-tuning.md). It begins with model.hf_assets_path, or a checkpoint of all of it as "
             "checkpoint.initial_load_path. 0: the model itself is trained."},
    {KEY(lora, alpha), .min = 1e-6, .max = 1e6, .def = "8", .help = "What adapters add is multiplied by alpha / rank."},
    {KEY(lora, target_modules), .def = "all-linear",
     .help = "The products that are adapted: all-linear, which leaves out the output matrix, or modules by their names or "
             "the ends of those, with commas between, such as q_proj,v_proj."},
    {KEY(lora, use_rslora), BOOL, .def = "false", .help = "true: alpha / sqrt(rank) instead of alpha / rank."},
    {KEY_OF(SH_OF_MACHINE, lora, adapter_path), .def = "",
     .help = "Folder of adapters as PEFT saves them, with which a new run begins. Its rank, alpha and modules must be those of "
             "this section. Empty: A starts evenly distributed within +-1 / sqrt(its columns), B at 0."},
    {.name = "lora.r", ALIAS("lora.rank", lora_rank), .min = 0, .max = 65536, .derived = "not set", .help = "The same."},
    {.name = "lora.lora_alpha", ALIAS("lora.alpha", lora_alpha), .min = 1e-6, .max = 1e6, .derived = "not set",
     .help = "The same."},
    {KEY(lora, quantize_base), WORDS(quantize_words), .def = "none",
     .help = "nf4: the weights of linear products, which are not trained, are kept and gathered in 4.5 bits an element and "
             "unpacked before each use (doc/fine-tuning.md). They are packed while they are loaded; a folder that "
             "bitsandbytes has packed is read as it is. none: in training.mixed_precision_param."},

    {KEY(data, token_type), WORDS(token_words), .def = "auto",
     .help = "Type of tokens in files without a header. auto: uint16 when the vocabulary allows it."},
    {KEY(data, target_mask), WORDS(mask_words), .def = "auto",
     .help = "Mask of the targets that count in the loss (not padding or prompts): FILE.mask beside a token file "
             "FILE, one byte per token, 1 where the token counts as a target. auto: use it where it exists; off: "
             "ignore it; must: refuse a file without one."},
    {KEY(data, shuffle), BOOL, .def = "true",
     .help = "Shuffle sequences, seeded by debug.seed; false: file order."},
    {KEY(data, document_mask), BOOL, .def = "false",
     .help = "Attention does not cross document boundaries; requires document_separator."},
    {KEY(data, document_separator), .min = -1, .max = MANY_ELEMS, .unit = "token id", .def = "-1",
     .help = "Token that ends a document; -1: none."},
    {KEY(data, packing), WORDS(packing_words), .def = "auto",
     .help = "How sequences are made of document files (`sherd tokenize --documents`). bfd: several documents a sequence, "
             "by best fit; attention and positions begin anew in each. none: one document a sequence. concat: the tokens of "
             "all documents as one stream, as of token files. auto: bfd if the (first) file of training.dataset_path is a "
             "document file, else concat."},
    {KEY(data, mix), .pairs = true, .files = true, .def = "",
     .help = "Several sets instead of training.dataset_path, with weights of any sum: FILE=WEIGHT,FILE=WEIGHT, or a mapping. "
             "Of each 4096 sequences as many are from a set as its weight says, in an order from debug.seed. Each set has "
             "epochs of its own. FILE may be a pattern."},
    {KEY(data, excess_length_strategy), WORDS(excess_words), .def = "raise",
     .help = "What becomes of a document of more than training.seq_len + 1 tokens with bfd and none. raise: refuse the set; "
             "truncate: its beginning; drop: nothing; split: sequences of its own, and the end as a document."},

    {KEY(parallelism, sharding_strategy), WORDS(strategy_words), .def = "full_shard",
     .help = "What is sharded. no_shard: nothing (DDP); shard_optim: optimizer state (ZeRO-1); shard_grad_op: also "
             "gradients (ZeRO-2); full_shard: also parameters (ZeRO-3, FSDP). hybrid_shard and hybrid_shard_zero2 "
             "shard within groups of ranks that are replicas of each other (HSDP), and so does shard_optim where "
             "mesh.shard or mesh.replicate is given. With comm.shared_memory=auto the ranks of a node "
             "hold one copy of what no_shard keeps, unless mesh.shard or mesh.replicate is given."},
    {KEY(parallelism, reshard_after_forward), .min = 1, .max = MANY_RANKS, .unit = "ranks", .def = "1",
     .help = "1: as the strategy says. N: after the forward, parameters stay sharded over only N neighbouring "
             "ranks (full_shard, hybrid_shard)."},
    {KEY(parallelism, gradient_sync), WORDS(grad_sync_words), .def = "auto",
     .help = "With gradient accumulation: reduce gradients in every micro-step, or once after the last. auto: in "
             "every one if the strategy shards gradients, else after the last."},
    {KEY(parallelism, forward_prefetch), .min = 0, .max = 64, .unit = "units", .def = "1",
     .help = "Units gathered ahead of their use in the forward; 0: none."},
    {KEY(parallelism, backward_prefetch), .min = 0, .max = 64, .unit = "units", .def = "1",
     .help = "Units gathered ahead of their use in the backward; 0: none."},
    {KEY(parallelism, limit_all_gathers), .min = 0, .max = 1024, .unit = "units", .def = "0",
     .help = "Maximum number of gathered units in memory, the one in use included; 0: limited by the prefetch "
             "alone. Units that shard_grad_op and hybrid_shard_zero2 keep for the backward do not count."},
    {KEY(parallelism, resident_units), .min = 0, .max = 1024, .unit = "units", .def = "0",
     .help = "The first units, from the embedding on, that stay gathered from update to update: 1 saves the gather in "
             "front of each micro-step, for the memory of the whole embedding. With no_shard and shard_optim all do."},
    {.name = "parallelism.zero_stage",
     ALIAS("parallelism.sharding_strategy", zero_stage),
     .min = 0,
     .max = 3,
     .derived = "not set",
     .help = "0 no_shard, 1 shard_optim, 2 shard_grad_op, 3 full_shard."},
    {.name = "parallelism.fsdp_reshard_after_forward",
     ALIAS("parallelism.sharding_strategy", reshard),
     WORDS(reshard_words),
     .derived = "not set",
     .help = "never: shard_grad_op for full_shard, hybrid_shard_zero2 for hybrid_shard; always: the reverse; "
             "default: as the strategy says."},
    {.name = "parallelism.data_parallel_replicate_degree",
     ALIAS("mesh.replicate", replicate_degree),
     .min = 1,
     .max = MANY_RANKS,
     .unit = "replicas",
     .derived = "not set",
     .help = "Above 1, it also selects hybrid_shard if no strategy is given, and all remaining ranks as the shard "
             "axis if that is not given."},
    {.name = "parallelism.data_parallel_shard_degree",
     ALIAS("mesh.shard", shard_degree),
     .words = rest_words,
     .min = 1,
     .max = MANY_RANKS,
     .unit = "ranks",
     .derived = "not set",
     .help = "-1: all ranks that replication leaves."},

    {KEY(mesh, shard), .words = shard_words, .min = 1, .max = MANY_RANKS, .unit = "ranks", .def = "auto",
     .help = "Ranks in a shard group. all: all that mesh.replicate leaves; node: the ranks of a node; auto: chosen "
             "by the strategy."},
    {KEY(mesh, replicate), .words = replicate_words, .min = 1, .max = MANY_RANKS, .unit = "replicas", .def = "auto",
     .help = "Number of shard groups that are replicas of each other. auto: what mesh.shard leaves."},
    {KEY(mesh, ranks_per_node), .min = 0, .max = MANY_RANKS, .unit = "ranks", .def = "0",
     .help = "Ranks per node. 0: asked of MPI; N: taken as given, for tests and plans."},
    {KEY(mesh, ranks), .min = 0, .max = MANY_RANKS, .unit = "ranks", .def = "0",
     .help = "Number of ranks for plan; a job of another size is refused. 0: any."},

    {KEY(optimizer, name), WORDS(optimizer_words), .def = "adamw",
     .help = optimizer_help},
    {KEY(optimizer, lr), .min = 0, .max = 1000, .def = "3e-4",
     .help = "Peak learning rate."},
    {KEY(optimizer, beta1), .min = 0, .max = 0.999999999, .def = "0.9",
     .help = "Decay of the mean of gradients; for sgd its momentum."},
    {KEY(optimizer, beta2), .min = 0, .max = 0.999999999, .def = "0.95",
     .help = "For adamw: decay of the mean of squared gradients. For lion: decay of the mean of gradients that is "
             "kept; beta1 is that of the mean that decides the sign."},
    {KEY(optimizer, eps), .min = 1e-30, .max = 1, .def = "1e-8",
     .help = "For adamw: added to the root of the mean square."},
    {KEY(optimizer, weight_decay), .min = 0, .max = 100, .def = "0.1",
     .help = "Weight decay, times the learning rate, apart from the gradient (sgd: added to it, as in PyTorch); of "
             "matrices and embeddings only, unless decay_all."},
    {KEY(optimizer, decay_all), BOOL, .def = "false",
     .help = "true: decay biases and norms too, as torchtitan does; false: only parameters of two dimensions, matrices "
             "and embeddings, as nanoGPT does."},
    {KEY(optimizer, state_dtype), WORDS(precision_words), .def = "float32",
     .help = "What the optimizer keeps beside each parameter (adamw: two means, sgd and lion: one). bfloat16: in half the "
             "memory, rounded stochastically, by random bits that debug.seed decides and no mesh changes. Checkpoints have "
             "float32 either way, and a run may go on with the other one."},

    {KEY(lr_scheduler, warmup_steps), .min = 0, .max = MANY_STEPS, .unit = "steps", .def = "0",
     .help = "Steps over which the learning rate rises linearly to optimizer.lr: step s, counted from 0, uses (s + "
             "1) / warmup_steps of it (torchtitan: (s + 1) / (warmup_steps + 1))."},
    {KEY(lr_scheduler, decay_type), WORDS(decay_words), .def = "cosine",
     .help = "How the learning rate decays. linear, cosine: from the end of the warm-up to total_steps; wsd: "
             "constant, then linear over the last decay_ratio of total_steps; constant: never."},
    {KEY(lr_scheduler, decay_ratio), .min = 0, .max = 1, .unit = "share of the steps", .def = "0.2",
     .help = "wsd only: the last fraction of total_steps, over which the rate decays. (In torchtitan it applies to "
             "every decay_type.)"},
    {KEY(lr_scheduler, min_lr_factor), .min = 0, .max = 1, .def = "0.1",
     .help = "The learning rate decays to optimizer.lr times this at total_steps."},
    {KEY(lr_scheduler, total_steps), .min = 0, .max = MANY_STEPS, .unit = "steps", .def = "0",
     .help = "Step at which the decay ends; 0: training.steps."},

    {KEY(activation_checkpoint, mode), WORDS(recompute_words), .def = "none",
     .help = "Which activations the backward recomputes instead of keeping: none, full (all but the inputs of "
             "blocks), every_k (full in every k-th block), selective (all but matrix products and attention), "
             "memory_budget (selective in as many blocks as memory.limit_bytes requires, then full in as many; "
             "`sherd plan` shows which)."},
    {KEY(activation_checkpoint, every_k), .min = 1, .max = 10000, .unit = "blocks", .def = "2",
     .help = "every_k only: 1 recomputes each block, 2 every other one."},
    {.name = "activation_checkpoint.selective_ac_option",
     ALIAS("activation_checkpoint.mode", selective_option),
     .words = op_words,
     .min = 1,
     .max = 10000,
     .unit = "blocks",
     .derived = "not set",
     .help = "With mode: selective. op: selective; k: every_k with that k."},

    {KEY(checkpoint, enable), BOOL, .def = "true", .help = "Save checkpoints; the last step is always saved."},
    {KEY(checkpoint, folder), .def = "checkpoint",
     .help = "Folder of the checkpoints, relative to job.dump_folder unless absolute."},
    {KEY(checkpoint, interval), .min = 1, .max = MANY_STEPS, .unit = "steps", .def = "500",
     .help = "Steps between checkpoints."},
    {KEY(checkpoint, create_seed_checkpoint), BOOL, .def = "false", .help = "Also save the initial values, as step "
                                                                            "0."},
    {KEY(checkpoint, resume), WORDS(resume_words), .def = "auto",
     .help = "auto: resume from the newest checkpoint if there is one; never: start from scratch; must: refuse to "
             "start from scratch."},
    {KEY(checkpoint, io), WORDS(io_words), .def = "auto",
     .help = "I/O method; the file has the same bytes either way. mpiio: parallel HDF5's MPI-IO driver; direct: "
             "each rank writes its own ranges; auto: direct on one node, on Lustre, GPFS and CephFS, else mpiio."},
    {KEY(checkpoint, writers_per_node), .words = writers_words, .min = 1, .max = MANY_RANKS, .unit = "ranks",
     .def = "auto",
     .help = "direct only: writers per node; the other ranks pass their parts to them through shared memory. auto: "
             "all ranks if a rank's ranges in the file average 4 MiB or more, else 2 if that makes the ranges at "
             "least twice as long. The number of ranks of a node, or more: all."},
    {KEY(checkpoint, async_mode), WORDS(async_words), .def = "disabled",
     .help = "async: copy the state, and write the copy while training continues; `sherd plan` includes the copy."},
    {KEY_OF(SH_OF_NOTE, checkpoint, verify), WORDS(verify_words), .def = "disk",
     .help = "What a save reads back and compares with the sums made in memory before it renames the file. disk: "
             "the data on the disk, which takes about as long as writing it; cache: what the page cache holds "
             "after fsync, much faster; off: the index only. The file records which. Every load compares in any "
             "case."},
    {KEY(checkpoint, async_busy), WORDS(busy_words), .def = "wait",
     .help = "async only: if a checkpoint is due while the last one is still being written, wait for it or skip "
             "the new one. The last step is never skipped."},
    {KEY(checkpoint, hints), .pairs = true, .def = "",
     .help = "Hints for MPI-IO, such as striping_factor=16,striping_unit=16777216; with io: auto they choose mpiio. "
             "doc/checkpoint-format.md has a table of them."},
    {KEY(checkpoint, timeout_seconds), .min = 1, .max = 1e6, .unit = "seconds", .def = "1800",
     .help = "If a stage of a save or a load takes longer (dead disk, lost rank), the job names it and stops."},
    {KEY(checkpoint, max_failures), .min = 0, .max = 1000000, .unit = "saves", .def = "3",
     .help = "Consecutive failed saves to tolerate (disk full, I/O errors); each is a warning, one more ends the job. "
             "The final save is retried once."},
    {KEY(checkpoint, keep_latest_k), .min = 0, .max = 1000000, .def = "10",
     .help = "Number of newest checkpoints to keep; older ones are deleted once a new one is safe. 0: keep all."},
    {KEY(checkpoint, keep_every_n), .min = 0, .max = MANY_STEPS, .unit = "steps", .def = "0",
     .help = "Checkpoints whose step is a multiple of this are never deleted. 0: none is permanent."},
    {KEY(checkpoint, initial_load_path), .def = "",
     .help = "File, or folder whose newest checkpoint, the run starts from if its own folder has no checkpoint "
             "(with resume: never, in any case); empty: none."},
    {KEY(checkpoint, initial_load_model_only), BOOL, .def = "false",
     .help = "Load only the parameters of initial_load_path: a new run from step 0 with a fresh optimizer."},
    {KEY(checkpoint, initial_load_in_hf), BOOL, .def = "true",
     .help = "Begin a new run with the weights of model.hf_assets_path; false: with initial values, of its "
             "architecture. A checkpoint, of this run or by initial_load_path, goes before."},
    {KEY(checkpoint, last_save_in_hf), BOOL, .def = "false",
     .help = "After the last checkpoint also write a folder that transformers opens, hf-00001000 with the step in its "
             "name, into checkpoint.folder."},
    {KEY(checkpoint, export_dtype), WORDS(export_words), .def = "float32",
     .help = "Type of the weights in that folder. float32: exact; bfloat16: what is computed with in bfloat16, bit for "
             "bit; float16: refused where a value is beyond 65504."},
    {KEY(checkpoint, max_shard_size), .sizes = true, .min = 1, .max = 1e14, .unit = "bytes", .def = "5GB",
     .help = "Most bytes of tensors in one file of that folder; a larger tensor is alone in one."},
    {KEY(checkpoint, trust), WORDS(trust_words), .def = "owner",
     .help = "Which checkpoints may be loaded. owner: only files that you or root own, in a folder that you or "
             "root own, and that no other user may write: whoever can write a checkpoint decides what you train "
             "on. any: all, such as a colleague's."},

    {KEY(validation, enable), BOOL, .def = "false", .help = "Measure the loss on validation data during training."},
    {KEY(validation, dataset_path), .def = "",
     .help = "Validation token file, or a glob pattern that matches several."},
    {KEY(validation, freq), .min = 1, .max = MANY_STEPS, .unit = "steps", .def = "100",
     .help = "Steps between validations."},
    {KEY(validation, sequences), .min = 0, .max = 2147483647, .unit = "sequences", .def = "128",
     .help = "Sequences in the validation set, the same every time; 0: the whole file."},

    {KEY(metrics, log_freq), .min = 1, .max = MANY_STEPS, .unit = "steps", .def = "10",
     .help = "Steps between permanent progress lines; metrics.jsonl has every step."},
    {KEY(metrics, progress), BOOL, .def = "true",
     .help = "If standard error is a terminal, show every step in one line that is overwritten. Under mpirun it is "
             "a pipe, so there is no such line."},
    {KEY(metrics, peak_tflops), .min = 0, .max = 1e6, .unit = "TFLOP/s", .def = "0",
     .help = "Peak rate of one rank: a GPU's peak in the precision of training.mixed_precision_param; for a CPU, "
             "the rate of the square product that `sherd bench gemm` measures with the same ranks and threads. "
             "With it, model FLOPs utilization (MFU) is printed and recorded. 0: unknown, no MFU."},
    {KEY(metrics, tensorboard), .def = "",
     .help = "Folder for TensorBoard's event files, in job.dump_folder unless absolute; empty: none."},
    {KEY(metrics, openmetrics), .def = "",
     .help = "File with the newest figures as OpenMetrics text, replaced every few seconds, for node_exporter's "
             "textfile collector (name it FILE.prom); in job.dump_folder unless absolute; empty: none."},

    {KEY(profiling, trace), .def = "",
     .help = "File for a trace of every operation, for Perfetto or Chrome's tracing page; empty: none."},
    {KEY(profiling, trace_first_step), .min = 1, .max = MANY_STEPS, .unit = "step", .def = "2",
     .help = "First step in the trace, counted from the start of this process."},
    {KEY(profiling, trace_steps), .min = 1, .max = 10000, .unit = "steps", .def = "3",
     .help = "Number of steps in the trace."},

    {KEY(guard, action), WORDS(guard_words), .def = "skip",
     .help = "What to do with a bad step, one whose loss or gradient norm is NaN or infinite or, with z_score, "
             "whose norm is an outlier. skip: skip its update; rollback: load the newest checkpoint and skip all "
             "data since then; stop: end the run with exit status 6."},
    {KEY(guard, z_score), .min = 0, .max = 1000, .unit = "standard deviations", .def = "0",
     .help = "A step is an outlier if its gradient norm is this many standard deviations above the running mean; "
             "0: off, otherwise at least 2."},
    {KEY(guard, window), .min = 8, .max = 100000, .unit = "steps", .def = "128", .help = "Steps in the running "
                                                                                         "mean."},
    {KEY(guard, max_skips), .min = 0, .max = 1000000, .unit = "steps", .def = "10",
     .help = "skip only: stop after more than this many skipped steps in a row."},
    {KEY(guard, max_rollbacks), .min = 1, .max = 1000, .def = "3",
     .help = "For rollback: stop after this many rollbacks to the same checkpoint."},

    {KEY(fault, replica_check_every), .min = 0, .max = MANY_STEPS, .unit = "steps", .def = "100",
     .help = "Compare parameters and optimizer state between replicas (hybrid_shard; no_shard unless a node holds "
             "one copy) every this many steps and before each checkpoint. Silent memory damage ends the job and "
             "names the rank. 0: never."},

    {KEY(comm, train_timeout_seconds), .min = 0.1, .max = 604800, .unit = "seconds", .def = "300",
     .help = "A collective that takes longer is a stall: the job reports who is missing and stops."},
    {KEY(comm, trace_buf_size), .min = 16, .max = 1000000, .unit = "collectives", .def = "1024",
     .help = "Recent collectives kept for that report."},
    {KEY(comm, backend), WORDS(comm_words), .def = "auto",
     .help = "Communication backend. nccl: between GPUs; mpi: through host memory, also for GPUs. auto: nccl "
             "between GPUs if the library is found, else mpi; mpi for training.reproducible=mesh, whose sums it "
             "makes."},
    {KEY(comm, share_gpu), BOOL, .def = "false",
     .help = "Let several ranks use one GPU. Slow, for tests; without it such a job is refused."},
    {KEY(comm, nccl_max_ctas), .min = 0, .max = 64, .unit = "blocks", .def = "0",
     .help = "Thread blocks (CTAs) that one NCCL collective may use; 0: NCCL's default."},
    {KEY(comm, shared_memory), WORDS(shared_words), .def = "auto",
     .help = "auto: if a shard group lies within a node, its ranks share one copy of the gathered parameters. A "
             "gather then moves nothing, so prefetch and limit have no effect, and reductions read the other "
             "ranks' gradients in place. Not with reshard_after_forward: N. With no_shard the ranks of a node "
             "share parameters and optimizer state, and gradients unless they accumulate. off: every rank has its "
             "own copy and sends messages. The bits are the same, except that no_shard sums within nodes first: "
             "over several nodes, and with accumulation and gradient_sync=every_micro_step."},

    {KEY(memory, limit_bytes), .sizes = true, .min = 0, .max = 1e14, .unit = "bytes", .def = "0",
     .help = "Limit on the arena, the memory of one rank; a run that needs more is refused before it starts. "
             "activation_checkpoint.mode=memory_budget recomputes to fit it. 0: the node's memory divided by its "
             "ranks; on a GPU, the free memory less 1 GiB for CUDA's libraries, 2.5 GiB with NCCL."},

    {KEY(offload, optimizer), WORDS(offload_words), .def = "none",
     .help = "Where optimizer states and the remainders of bfloat16 masters live. none: in memory; nvme: in a scratch file "
             "of each rank in offload.nvme_path, from which the update fetches them slice by slice. The same bits for "
             "less memory; each step reads and writes all of them. On CPUs only."},
    {KEY(offload, optimizer_ratio), .min = 0, .max = 1, .unit = "share of the elements", .def = "1",
     .help = "How much of them goes to the file, rounded up to sixteenths; the first units in forward order stay in "
             "memory."},
    {KEY(offload, nvme_path), .def = "",
     .help = "Folder of the scratch files, on a local disk. They have no names and are gone with their process. A "
             "folder in memory (tmpfs) is refused."},
    {KEY(offload, buffer_count), .min = 2, .max = 64, .unit = "slices", .def = "3",
     .help = "Slices in memory at once while the update runs: one arrives, one is in use, one leaves."},
    {KEY(offload, verify), BOOL, .def = "true",
     .help = "Compare what comes back with a sum made before it left, so that a disk that damages it ends the job."},
    {KEY(offload, allow_network), BOOL, .def = "false",
     .help = "Allow a network file system for offload.nvme_path."},

    {KEY(debug, seed), .def = "0", .help = "Seed of initial weights and of the order of the data."},
    {KEY_OF(SH_OF_MACHINE, debug, sync_ops), BOOL, .def = "false",
     .help = "On a GPU: wait for each operation and check for errors, so that a fault is reported with the name of "
             "its operation. Slow; for debugging."},
};
/* clang-format on */

const int sh_config_n_keys = sizeof sh_config_keys / sizeof sh_config_keys[0];
_Static_assert(sizeof sh_config_keys / sizeof sh_config_keys[0] <= SH_CONFIG_KEYS_MAX,
               "SH_CONFIG_KEYS_MAX is too small");
