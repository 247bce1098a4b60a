/* The values of options that are words, one enum per option. keys.c has their spelling. Modules that act on such an
 * option include this header, so that a value has one name in the whole tree. No code; valid C and C++. */
#ifndef SH_CONFIG_WORDS_H
#define SH_CONFIG_WORDS_H

#include <stdbool.h>
#include <stdint.h>

/* Values of mesh.shard and mesh.replicate that are not a number of ranks. */
enum { SH_MESH_ALL = 0, SH_MESH_NODE = -1, SH_MESH_AUTO = -2 };
enum { SH_CONFIG_UNSET = INT32_MIN }; /* mesh.shard: auto, by the strategy */
#define SH_CAPACITY_FACTOR 1.25       /* moe.capacity_factor, if it is not given */

/* clang-format off */
enum sh_cfg_strategy {
    SH_NO_SHARD, SH_SHARD_OPTIM, SH_SHARD_GRAD_OP, SH_FULL_SHARD, SH_HYBRID_SHARD, SH_HYBRID_SHARD_ZERO2
};
/* clang-format on */
enum sh_cfg_precision { SH_PRECISION_FLOAT32, SH_PRECISION_BFLOAT16, SH_PRECISION_FLOAT16, SH_PRECISION_INT8 };
enum sh_cfg_gather { SH_GATHER_COMPUTE, SH_GATHER_INT8 };
enum { SH_LOSS_SCALE_DYNAMIC = 0 };                   /* training.loss_scale, if it is not a number */
enum { SH_TILE_ROWS_AUTO = -1, SH_TILE_ROWS = 8192 }; /* training.tile_rows, likewise, and what it stands for */
enum {
    SH_ROW_LEAVES_MAX = 64,
    SH_ROW_LEAF_LEAST = 16
}; /* tokens: products of fewer rows may be summed in another order */
enum {
    SH_LESS_AUTO = -1
}; /* parallelism.pipeline_parallel_first_stage_less_layers and _last_, if they are no numbers */
/* clang-format off */
enum sh_cfg_recompute { SH_RECOMPUTE_NONE, SH_RECOMPUTE_FULL, SH_RECOMPUTE_EVERY_K, SH_RECOMPUTE_SELECTIVE,
                        SH_RECOMPUTE_MEMORY_BUDGET };
/* clang-format on */
enum sh_cfg_optimizer {
#define OPTIM(id, ...) SH_OPTIM_##id,
#include "src/config/optim.inc"
#undef OPTIM
    SH_OPTIMS
};
/* clang-format off */
enum sh_cfg_decay { SH_DECAY_CONSTANT, SH_DECAY_LINEAR, SH_DECAY_COSINE, SH_DECAY_SQRT, SH_DECAY_EXP, SH_DECAY_POWER,
                    SH_DECAY_WSD, SH_DECAY_POWER_TAIL };
/* clang-format on */
/* Whether the rate falls at the end of the run by another rule than before. */
static inline int sh_cfg_decay_has_tail(int decay)
{
    return decay == SH_DECAY_WSD || decay == SH_DECAY_POWER_TAIL;
}
enum sh_cfg_coefficients { SH_ORTHO_SIMPLE, SH_ORTHO_QUINTIC, SH_ORTHO_POLAR_EXPRESS, SH_ORTHO_KINDS };
/* Whether an optimizer takes steps of orthogonal matrices. */
static inline bool sh_cfg_is_muon(int optimizer)
{
    return optimizer == SH_OPTIM_MUON || optimizer == SH_OPTIM_NORMUON;
}

enum sh_cfg_muon_split { SH_MUON_SPLIT_QKV, SH_MUON_SPLIT_HEADS, SH_MUON_SPLIT_NONE };
enum sh_cfg_adjust { SH_ADJUST_ORIGINAL, SH_ADJUST_MATCH_RMS_ADAMW, SH_ADJUST_SPECTRAL_UNCLAMPED };
/* What a teacher's numbers stand for: all that there is, what they say, or that and one word that is the rest. */
enum sh_cfg_kd_form { SH_KD_NORMALIZED, SH_KD_STORED, SH_KD_TAIL };
enum sh_cfg_context_method { SH_CONTEXT_AUTO, SH_CONTEXT_ULYSSES, SH_CONTEXT_GATHER };
enum sh_cfg_pipeline_schedule { SH_SCHEDULE_1F1B, SH_SCHEDULE_ZBH1, SH_SCHEDULE_INTERLEAVED };
enum sh_cfg_grad_sync { SH_GRAD_SYNC_AUTO, SH_GRAD_SYNC_EVERY, SH_GRAD_SYNC_LAST };
enum sh_cfg_reproducible { SH_REPRODUCIBLE_NONE, SH_REPRODUCIBLE_MESH };
enum sh_cfg_resume { SH_RESUME_AUTO, SH_RESUME_NEVER, SH_RESUME_MUST };
enum { SH_WRITERS_AUTO }; /* checkpoint.writers_per_node, if it is not a number */
enum sh_cfg_io { SH_IO_AUTO, SH_IO_MPIIO, SH_IO_DIRECT };
enum sh_cfg_shrink { SH_SHRINK_NONE, SH_SHRINK_POW2, SH_SHRINK_MOST };
enum sh_cfg_async { SH_ASYNC_DISABLED, SH_ASYNC_ASYNC };
enum sh_cfg_busy { SH_BUSY_WAIT, SH_BUSY_SKIP };
enum sh_cfg_verify { SH_VERIFY_DISK, SH_VERIFY_CACHE, SH_VERIFY_OFF };
enum sh_cfg_export { SH_EXPORT_FLOAT32, SH_EXPORT_FLOAT16, SH_EXPORT_BFLOAT16 };
enum sh_cfg_trust { SH_TRUST_OWNER, SH_TRUST_ANY };
enum sh_cfg_offload { SH_OFFLOAD_NONE, SH_OFFLOAD_CPU, SH_OFFLOAD_NVME };
enum sh_cfg_overlap { SH_OVERLAP_AUTO, SH_OVERLAP_OFF };
enum sh_cfg_offload_mode { SH_OFFLOAD_MANUAL, SH_OFFLOAD_BUDGET };
enum sh_cfg_progress { SH_PROGRESS_THREAD, SH_PROGRESS_INLINE };
enum sh_cfg_gpu_metrics { SH_GPU_METRICS_AUTO, SH_GPU_METRICS_MUST, SH_GPU_METRICS_OFF };
enum sh_cfg_norms { SH_NORMS_OFF, SH_NORMS_BLOCKS, SH_NORMS_PARAMETERS };
enum sh_cfg_shared_memory { SH_SHARED_MEMORY_AUTO, SH_SHARED_MEMORY_OFF };
enum sh_cfg_family {
#define FAMILY(id, ...) SH_FAMILY_##id,
#include "src/config/family.inc"
#undef FAMILY
};
enum sh_cfg_rope { SH_ROPE_LLAMA3, SH_ROPE_LINEAR, SH_ROPE_YARN, SH_ROPE_LONG };
enum sh_cfg_router { SH_ROUTER_SOFTMAX, SH_ROUTER_SIGMOID };
enum sh_cfg_quantize { SH_QUANTIZE_NONE, SH_QUANTIZE_NF4 };
/* clang-format off */
/* The losses of answers, in TRL's words: ROW(id, "word", what it takes). kernels/preference.h has their formulas. */
enum {
    SH_TAKES_SMOOTHING = 1,
    SH_TAKES_REFERENCE = 2,
    SH_TAKES_LABELS = 4, /* of single answers, not pairs */
    SH_TAKES_MISMATCHED = 16, /* and of answers to other prompts beside them */
    SH_TAKES_NUMBERS = 8 /* numbers of the data in place of the reference's: of values that a head makes */
};
#define SH_LOSS_TYPES(ROW)                                         \
    ROW(SIGMOID, "sigmoid", SH_TAKES_SMOOTHING | SH_TAKES_REFERENCE)   \
    ROW(HINGE, "hinge", SH_TAKES_REFERENCE)                            \
    ROW(IPO, "ipo", SH_TAKES_REFERENCE)                                \
    ROW(EXO_PAIR, "exo_pair", SH_TAKES_SMOOTHING | SH_TAKES_REFERENCE) \
    ROW(NCA_PAIR, "nca_pair", SH_TAKES_REFERENCE)                      \
    ROW(ROBUST, "robust", SH_TAKES_SMOOTHING | SH_TAKES_REFERENCE)     \
    ROW(BCO_PAIR, "bco_pair", SH_TAKES_REFERENCE)                      \
    ROW(SPPO_HARD, "sppo_hard", SH_TAKES_REFERENCE)                    \
    ROW(APO_ZERO, "apo_zero", SH_TAKES_REFERENCE)                      \
    ROW(APO_DOWN, "apo_down", SH_TAKES_REFERENCE)                      \
    ROW(SIGMOID_NORM, "sigmoid_norm", SH_TAKES_REFERENCE)              \
    ROW(CPO, "cpo", SH_TAKES_SMOOTHING)                                \
    ROW(SIMPO, "simpo", SH_TAKES_SMOOTHING)                            \
    ROW(ORPO, "orpo", 0)                                               \
    ROW(APO_ZERO_UNPAIRED, "apo_zero_unpaired", SH_TAKES_REFERENCE | SH_TAKES_LABELS) \
    ROW(PLUGIN, "plugin", SH_TAKES_REFERENCE)                          \
    ROW(KTO, "kto", SH_TAKES_REFERENCE | SH_TAKES_LABELS | SH_TAKES_MISMATCHED)
/* Those of values, which objectives of their own have. */
#define SH_VALUE_LOSSES(ROW)               \
    ROW(REWARD, "reward", SH_TAKES_NUMBERS) \
    ROW(REGRESSION, "regression", SH_TAKES_NUMBERS | SH_TAKES_LABELS)
#define SH_LOSS_TYPE(id, word, takes) SH_PREFER_##id,
enum sh_cfg_loss_type { SH_LOSS_TYPES(SH_LOSS_TYPE) SH_VALUE_LOSSES(SH_LOSS_TYPE) SH_PREFERENCES };
#undef SH_LOSS_TYPE
#define SH_LOSS_CASE(id, word, takes) case SH_PREFER_##id: return takes;
static inline int sh_cfg_loss_takes(int loss)
{
    switch (loss) { SH_LOSS_TYPES(SH_LOSS_CASE) SH_VALUE_LOSSES(SH_LOSS_CASE) default: return 0; }
}
#undef SH_LOSS_CASE
/* clang-format on */
enum sh_cfg_objective {
    SH_OBJECTIVE_LM,
    SH_OBJECTIVE_DPO,
    SH_OBJECTIVE_DISTILLATION,
    SH_OBJECTIVE_PLUGIN,
    SH_OBJECTIVE_REWARD,
    SH_OBJECTIVE_REGRESSION,
    SH_OBJECTIVE_MULTI_LABEL
};
enum sh_cfg_guard { SH_GUARD_SKIP, SH_GUARD_ROLLBACK, SH_GUARD_STOP };
enum sh_cfg_kernels { SH_KERNELS_CPU, SH_KERNELS_REF };
enum sh_cfg_device { SH_DEVICE_AUTO, SH_DEVICE_CPU, SH_DEVICE_CUDA };
enum sh_cfg_comm { SH_COMM_AUTO, SH_COMM_MPI, SH_COMM_NCCL };
enum sh_cfg_token_type { SH_TOKEN_AUTO, SH_TOKEN_UINT16, SH_TOKEN_UINT32 };
enum sh_cfg_masks { SH_MASK_AUTO, SH_MASK_OFF, SH_MASK_MUST };
enum sh_cfg_packing { SH_PACKING_AUTO, SH_PACKING_BFD, SH_PACKING_NONE, SH_PACKING_CONCAT };
enum sh_cfg_excess { SH_EXCESS_RAISE, SH_EXCESS_TRUNCATE, SH_EXCESS_DROP, SH_EXCESS_SPLIT };

#endif
