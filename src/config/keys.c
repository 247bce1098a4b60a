/* The table of keys, from the rows in src/config/keys/, and the words that stand for values. */
#include "src/config/keys.h"

/* Where the value of a row lives, and its type. The type comes from the field, so that the two cannot differ. */
#define FIELD(field) \
    .type = _Generic(((struct sh_config_state *)0)->field,                                                  \
                     bool: SH_KEY_BOOL, int: SH_KEY_INT, int64_t: SH_KEY_INT64, uint64_t: SH_KEY_UINT64,    \
                     double: SH_KEY_DOUBLE, char *: SH_KEY_STRING),                                         \
    .offset = offsetof(struct sh_config_state, field), .size = sizeof(((struct sh_config_state *)0)->field)

/* Only these words; a key that also accepts numbers sets .words without only_words. */
#define WORDS(list) .words = list##_words, .only_words = true
#define BOOL WORDS(bool)

/* In place of a default that depends on model.name. */
#define FROM_PRESET "the preset's"

/* Larger than any run, small enough that products of two such numbers stay far from overflow. */
#define MANY_STEPS 1e12
#define MANY_ELEMS 16777216
#define MANY_SCALE 1099511627776 /* 2^40, equal to SH_LOSS_SCALE_MOST */
#define MANY_RANKS 1048576

/* Each list ends with a NULL name. If several words have one value, the first is printed. */
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
static words router_words = {{"softmax", SH_ROUTER_SOFTMAX}, {"sigmoid", SH_ROUTER_SIGMOID}, {NULL, 0}};
static words quantize_words = {{"none", SH_QUANTIZE_NONE}, {"nf4", SH_QUANTIZE_NF4}, {NULL, 0}};
static words precision_words = {{"float32", SH_PRECISION_FLOAT32}, {"bfloat16", SH_PRECISION_BFLOAT16}, {NULL, 0}};
static words compute_words = {{"float32", SH_PRECISION_FLOAT32},
                              {"bfloat16", SH_PRECISION_BFLOAT16},
                              {"float16", SH_PRECISION_FLOAT16},
                              {NULL, 0}};
static words state_words = {
    {"float32", SH_PRECISION_FLOAT32}, {"bfloat16", SH_PRECISION_BFLOAT16}, {"int8", SH_PRECISION_INT8}, {NULL, 0}};
static words gather_words = {{"compute", SH_GATHER_COMPUTE}, {"int8", SH_GATHER_INT8}, {NULL, 0}};
static words less_words = {{"auto", SH_LESS_AUTO}, {NULL, 0}};
static words tile_rows_words = {{"auto", SH_TILE_ROWS_AUTO}, {NULL, 0}};
static words loss_scale_words = {{"dynamic", SH_LOSS_SCALE_DYNAMIC}, {NULL, 0}};
static words device_words = {{"auto", SH_DEVICE_AUTO}, {"cpu", SH_DEVICE_CPU}, {"cuda", SH_DEVICE_CUDA}, {NULL, 0}};
static words comm_words = {{"auto", SH_COMM_AUTO}, {"mpi", SH_COMM_MPI}, {"nccl", SH_COMM_NCCL}, {NULL, 0}};
static words kernels_words = {{"cpu", SH_KERNELS_CPU}, {"ref", SH_KERNELS_REF}, {NULL, 0}};
static words reproducible_words = {{"none", SH_REPRODUCIBLE_NONE}, {"mesh", SH_REPRODUCIBLE_MESH}, {NULL, 0}};
static words token_type_words = {
    {"auto", SH_TOKEN_AUTO}, {"uint16", SH_TOKEN_UINT16}, {"uint32", SH_TOKEN_UINT32}, {NULL, 0}};
static words masks_words = {{"auto", SH_MASK_AUTO}, {"off", SH_MASK_OFF}, {"must", SH_MASK_MUST}, {NULL, 0}};
static words packing_words = {{"auto", SH_PACKING_AUTO},
                              {"bfd", SH_PACKING_BFD},
                              {"none", SH_PACKING_NONE},
                              {"concat", SH_PACKING_CONCAT},
                              {NULL, 0}};
/* Words from axolotl. */
static words excess_words = {{"raise", SH_EXCESS_RAISE},
                             {"truncate", SH_EXCESS_TRUNCATE},
                             {"drop", SH_EXCESS_DROP},
                             {"split", SH_EXCESS_SPLIT},
                             {NULL, 0}};
/* Names from PyTorch; src/plan/request.c says what each strategy keeps. */
static words strategy_words = {
    {"no_shard", SH_NO_SHARD},
    {"shard_optim", SH_SHARD_OPTIM},
    {"shard_grad_op", SH_SHARD_GRAD_OP},
    {"full_shard", SH_FULL_SHARD},
    {"hybrid_shard", SH_HYBRID_SHARD},
    {"hybrid_shard_zero2", SH_HYBRID_SHARD_ZERO2},
    {NULL, 0},
};
static words context_method_words = {
    {"auto", SH_CONTEXT_AUTO},
    {"ulysses", SH_CONTEXT_ULYSSES},
    {"gather", SH_CONTEXT_GATHER},
    {NULL, 0},
};
static words pipeline_schedule_words = {
    {"1f1b", SH_SCHEDULE_1F1B},
    {"zbh1", SH_SCHEDULE_ZBH1},
    {"interleaved1f1b", SH_SCHEDULE_INTERLEAVED},
    {NULL, 0},
};
static words grad_sync_words = {
    {"auto", SH_GRAD_SYNC_AUTO},
    {"every_micro_step", SH_GRAD_SYNC_EVERY},
    {"last_micro_step", SH_GRAD_SYNC_LAST},
    {NULL, 0},
};
/* Words in addition to numbers; their values are no valid numbers of ranks. */
static words shard_words = {{"all", SH_MESH_ALL}, {"node", SH_MESH_NODE}, {"auto", SH_CONFIG_UNSET}, {NULL, 0}};
static words replicate_words = {{"auto", SH_MESH_AUTO}, {NULL, 0}};
static words optimizer_words = {
#define OPTIM(id, word, ...) {word, SH_OPTIM_##id},
#include "src/config/optim.inc"
#undef OPTIM
    {NULL, 0}};
/* Each optimizer starts with "; ", the first one too; the row of the key skips that first "; ". */
static const char optimizer_help[] =
#define OPTIM(id, word, means, ...) "; " word ": " means
#include "src/config/optim.inc"
#undef OPTIM
    ". A checkpoint holds the states of its optimizer, so another one cannot resume it.";
static words coefficients_words = {
    {"simple", SH_ORTHO_SIMPLE}, {"quintic", SH_ORTHO_QUINTIC}, {"polar_express", SH_ORTHO_POLAR_EXPRESS}, {NULL, 0}};
static words split_words = {
    {"qkv", SH_MUON_SPLIT_QKV}, {"heads", SH_MUON_SPLIT_HEADS}, {"none", SH_MUON_SPLIT_NONE}, {NULL, 0}};
/* Words from torch.optim.Muon. */
static words adjust_words = {{"original", SH_ADJUST_ORIGINAL},
                             {"match_rms_adamw", SH_ADJUST_MATCH_RMS_ADAMW},
                             {"spectral_unclamped", SH_ADJUST_SPECTRAL_UNCLAMPED},
                             {NULL, 0}};
static words kd_form_words = {
    {"normalized", SH_KD_NORMALIZED}, {"stored", SH_KD_STORED}, {"tail", SH_KD_TAIL}, {NULL, 0}};
static words decay_words = {{"constant", SH_DECAY_CONSTANT},
                            {"linear", SH_DECAY_LINEAR},
                            {"cosine", SH_DECAY_COSINE},
                            {"sqrt", SH_DECAY_SQRT},
                            {"exp", SH_DECAY_EXP},
                            {"power", SH_DECAY_POWER},
                            {"wsd", SH_DECAY_WSD},
                            {"power_tail", SH_DECAY_POWER_TAIL},
                            {NULL, 0}};
static words shape_words = {{"linear", SH_DECAY_LINEAR},
                            {"cosine", SH_DECAY_COSINE},
                            {"sqrt", SH_DECAY_SQRT},
                            {"exp", SH_DECAY_EXP},
                            {NULL, 0}};
/* Words from torchtitan, if it has them. */
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
static words shrink_words = {{"none", SH_SHRINK_NONE}, {"pow2", SH_SHRINK_POW2}, {"most", SH_SHRINK_MOST}, {NULL, 0}};
static words async_words = {{"disabled", SH_ASYNC_DISABLED}, {"async", SH_ASYNC_ASYNC}, {NULL, 0}};
static words offload_mode_words = {{"manual", SH_OFFLOAD_MANUAL}, {"memory_budget", SH_OFFLOAD_BUDGET}, {NULL, 0}};
static words offload_words = {{"none", SH_OFFLOAD_NONE}, {"cpu", SH_OFFLOAD_CPU}, {"nvme", SH_OFFLOAD_NVME}, {NULL, 0}};
static words gpu_homes_words = {{"none", SH_OFFLOAD_NONE}, {"cpu", SH_OFFLOAD_CPU}, {NULL, 0}};
static words overlap_words = {{"auto", SH_OVERLAP_AUTO}, {"off", SH_OVERLAP_OFF}, {NULL, 0}};
static words progress_words = {{"thread", SH_PROGRESS_THREAD}, {"inline", SH_PROGRESS_INLINE}, {NULL, 0}};
static words gpu_metrics_words = {
    {"auto", SH_GPU_METRICS_AUTO}, {"must", SH_GPU_METRICS_MUST}, {"off", SH_GPU_METRICS_OFF}, {NULL, 0}};
static words norms_words = {
    {"off", SH_NORMS_OFF}, {"blocks", SH_NORMS_BLOCKS}, {"parameters", SH_NORMS_PARAMETERS}, {NULL, 0}};
static words shared_memory_words = {{"auto", SH_SHARED_MEMORY_AUTO}, {"off", SH_SHARED_MEMORY_OFF}, {NULL, 0}};
static words verify_words = {{"disk", SH_VERIFY_DISK}, {"cache", SH_VERIFY_CACHE}, {"off", SH_VERIFY_OFF}, {NULL, 0}};
static words export_words = {
    {"float32", SH_EXPORT_FLOAT32}, {"float16", SH_EXPORT_FLOAT16}, {"bfloat16", SH_EXPORT_BFLOAT16}, {NULL, 0}};
static words trust_words = {{"owner", SH_TRUST_OWNER}, {"any", SH_TRUST_ANY}, {NULL, 0}};
static words busy_words = {{"wait", SH_BUSY_WAIT}, {"skip", SH_BUSY_SKIP}, {NULL, 0}};
static words objective_words = {{"lm", SH_OBJECTIVE_LM},
                                {"dpo", SH_OBJECTIVE_DPO},
                                {"distillation", SH_OBJECTIVE_DISTILLATION},
                                {"plugin", SH_OBJECTIVE_PLUGIN},
                                {"reward", SH_OBJECTIVE_REWARD},
                                {"regression", SH_OBJECTIVE_REGRESSION},
                                {"multi_label", SH_OBJECTIVE_MULTI_LABEL},
                                {NULL, 0}};
#define LOSS_TYPE(id, word, takes) {word, SH_PREFER_##id},
static words loss_type_words = {SH_LOSS_TYPES(LOSS_TYPE){NULL, 0}};
#undef LOSS_TYPE
static words guard_words = {
    {"skip", SH_GUARD_SKIP}, {"rollback", SH_GUARD_ROLLBACK}, {"stop", SH_GUARD_STOP}, {NULL, 0}};
/* torchtitan writes -1 for the rest of the ranks. */
static words rest_words = {{"-1", SH_MESH_ALL}, {NULL, 0}};
static words op_words = {{"op", SH_ALIAS_SELECTIVE_OP}, {NULL, 0}};
static words reshard_words = {{"default", SH_ALIAS_RESHARD_DEFAULT},
                              {"always", SH_ALIAS_RESHARD_ALWAYS},
                              {"never", SH_ALIAS_RESHARD_NEVER},
                              {NULL, 0}};

/* Keys of a section must be adjacent, since help and printing start a section where the name changes. The order is that
 * of the documentation. An alias is resolved into another key (alias.c) and never printed. */
/* clang-format off */
const struct sh_config_key sh_config_keys[] = {
#define KEY(whose, type, section, key, ...) KEY_AT(#section "." #key, whose, type, section, key, __VA_ARGS__)
#define KEY_AT(key_name, whose, type, section, key, ...) \
    {.name = key_name, FIELD(cfg.section.key), .of = SH_OF_##whose, __VA_ARGS__},
#define ALIAS(key_name, main_key, field, ...) {.name = key_name, .alias_of = main_key, FIELD(alias.field), __VA_ARGS__},
#include "src/config/keys/job.inc"
#include "src/config/keys/model.inc"
#include "src/config/keys/hf.inc"
#include "src/config/keys/training.inc"
#include "src/config/keys/lora.inc"
#include "src/config/keys/moe.inc"
#include "src/config/keys/data.inc"
#include "src/config/keys/objective.inc"
#include "src/config/keys/plugin.inc"
#include "src/config/keys/parallelism.inc"
#include "src/config/keys/mesh.inc"
#include "src/config/keys/optimizer.inc"
#include "src/config/keys/lr_scheduler.inc"
#include "src/config/keys/activation_checkpoint.inc"
#include "src/config/keys/checkpoint.inc"
#include "src/config/keys/validation.inc"
#include "src/config/keys/metrics.inc"
#include "src/config/keys/profiling.inc"
#include "src/config/keys/guard.inc"
#include "src/config/keys/fault.inc"
#include "src/config/keys/comm.inc"
#include "src/config/keys/memory.inc"
#include "src/config/keys/offload.inc"
#include "src/config/keys/debug.inc"
#undef ALIAS
#undef KEY_AT
#undef KEY
};
/* clang-format on */

const int sh_config_n_keys = sizeof sh_config_keys / sizeof sh_config_keys[0];
_Static_assert(sizeof sh_config_keys / sizeof sh_config_keys[0] <= SH_CONFIG_KEYS_MAX,
               "SH_CONFIG_KEYS_MAX is too small");
