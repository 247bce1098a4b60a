/* The configuration of a run: one table of keys (keys.c), filled from defaults, then a YAML file, then arguments
 * --section.key=value.
 *
 * Nothing else is read: no environment, no file in the home directory. An unknown or doubled key, a value of the wrong
 * type or out of range is an error with file and line (or the argument) and the nearest known name, or what to write
 * instead of another trainer's key. All of them are told at once, a line each, up to 20. Words are
 * torchtitan's and FSDP's where they have one; aliases of the field (ShardingStrategy.FULL_SHARD, zero_stage) are
 * resolved while loading, so that the resolved configuration has one spelling. All functions are local. */
#ifndef SH_CONFIG_CONFIG_H
#define SH_CONFIG_CONFIG_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { SH_CONFIG_PATH_MAX = 1024 };

/* Words of mesh.shard and mesh.replicate, with the numbers of src/mesh/shape.h. */
enum { SH_CONFIG_MESH_ALL = 0, SH_CONFIG_MESH_NODE = -1, SH_CONFIG_MESH_AUTO = -2 };
enum { SH_CONFIG_UNSET = INT32_MIN }; /* mesh.shard: auto, by the strategy */

enum sh_cfg_strategy {
    SH_NO_SHARD, SH_SHARD_OPTIM, SH_SHARD_GRAD_OP, SH_FULL_SHARD, SH_HYBRID_SHARD, SH_HYBRID_SHARD_ZERO2
};
enum sh_cfg_precision { SH_PRECISION_FLOAT32, SH_PRECISION_BFLOAT16 };
enum sh_cfg_recompute { SH_RECOMPUTE_NONE, SH_RECOMPUTE_FULL, SH_RECOMPUTE_EVERY_K, SH_RECOMPUTE_SELECTIVE,
                        SH_RECOMPUTE_MEMORY_BUDGET };
enum sh_cfg_decay { SH_DECAY_CONSTANT, SH_DECAY_LINEAR, SH_DECAY_COSINE, SH_DECAY_WSD };
enum sh_cfg_grad_sync { SH_GRAD_SYNC_AUTO, SH_GRAD_SYNC_EVERY, SH_GRAD_SYNC_LAST };
enum sh_cfg_reproducible { SH_REPRODUCIBLE_NONE, SH_REPRODUCIBLE_MESH };
enum sh_cfg_resume { SH_RESUME_AUTO, SH_RESUME_NEVER, SH_RESUME_MUST };
enum { SH_WRITERS_AUTO }; /* number of io/checkpoint/checkpoint.h */
enum sh_cfg_io { SH_IO_AUTO, SH_IO_MPIIO, SH_IO_DIRECT }; /* numbers of io/checkpoint/checkpoint.h */
enum sh_cfg_async { SH_ASYNC_DISABLED, SH_ASYNC_ASYNC };
enum sh_cfg_busy { SH_BUSY_WAIT, SH_BUSY_SKIP };
enum sh_cfg_verify { SH_VERIFY_DISK, SH_VERIFY_CACHE, SH_VERIFY_OFF };
enum sh_cfg_trust { SH_TRUST_OWNER, SH_TRUST_ANY }; /* numbers of io/checkpoint/checkpoint.h */
enum sh_cfg_shared_memory { SH_SHARED_MEMORY_AUTO, SH_SHARED_MEMORY_OFF };
enum sh_cfg_family { SH_FAMILY_LLAMA, SH_FAMILY_GPT2 };
enum sh_cfg_guard { SH_GUARD_ACTION_SKIP, SH_GUARD_ACTION_ROLLBACK, SH_GUARD_ACTION_STOP }; /* numbers of optim.h */
enum sh_cfg_kernels { SH_KERNELS_CPU, SH_KERNELS_REF };
enum sh_cfg_device { SH_DEVICE_AUTO, SH_DEVICE_CPU, SH_DEVICE_CUDA };
enum sh_cfg_comm { SH_COMM_AUTO, SH_COMM_MPI, SH_COMM_NCCL };
enum sh_cfg_token_type { SH_TOKEN_AUTO, SH_TOKEN_UINT16, SH_TOKEN_UINT32 };
enum sh_cfg_masks { SH_MASK_AUTO, SH_MASK_OFF, SH_MASK_MUST }; /* numbers of io/data/data.h */

struct sh_config {
    struct {
        char dump_folder[SH_CONFIG_PATH_MAX]; /* everything a run writes; default ./outputs */
        char description[256];
        double stop_before_limit_seconds; /* spare time when stopping before the end of the job; -1: run into it */
    } job;
    struct {                     /* the preset sets all of these; keys given by the user win */
        char name[64];           /* preset: debug, gpt2-124m, gpt2-1558m, llama3.2-1b, llama3.1-8b, llama3.1-70b;
                                    custom: none, every dimension is given */
        int family;              /* enum sh_cfg_family: llama | gpt2 */
        int n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size, max_seq_len;
        double norm_eps;
        double rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
        int rope_original_max_len; /* rope_factor 0: no scaling */
        bool tie_word_embeddings;
        double init_std;
    } model;
    struct {
        char dataset_path[SH_CONFIG_PATH_MAX]; /* .bin file, or a glob of them */
        int seq_len;             /* default: 2048, or model.max_seq_len where that is less */
        int local_batch_size;    /* sequences of one rank in one micro-step */
        int global_batch_size;   /* sequences of a training step over all ranks; -1: local * ranks, no accumulation */
        int64_t steps;
        double max_norm;         /* 0: no clipping */
        int mixed_precision_param; /* enum sh_cfg_precision: float32 | bfloat16 */
        int mixed_precision_reduce; /* the same */
        int threads;             /* of one rank; 0: cores of the node / ranks on it */
        int device;              /* enum sh_cfg_device: auto (GPUs where every rank has one) | cpu | cuda */
        int kernels;             /* enum sh_cfg_kernels, of the CPU: cpu | ref */
        int reproducible;        /* enum sh_cfg_reproducible: none (same mesh, same bits) | mesh (the same bits on every
                                    mesh of 2^k ranks) */
        bool deterministic;      /* false: a GPU may add in any order in the backward of attention */
        bool measure_products;   /* of a GPU's kernels for a product take the fastest, by a clock */
        int loss_chunk_rows;     /* 0: equal parts of at most 50 MiB or 256 rows on the CPU, 2048 rows or more on a GPU */
    } training;
    struct {
        int token_type;          /* for files without a header: auto (by vocabulary) | uint16 | uint32 */
        int target_mask;         /* enum sh_cfg_masks: auto (where files have one) | off | must */
        bool shuffle;
        bool document_mask;      /* attention does not cross document boundaries */
        int document_separator;  /* token id that ends a document; -1: none */
    } data;
    struct {
        int sharding_strategy;   /* enum sh_cfg_strategy */
        int reshard_after_forward; /* 1: as the strategy says; N > 1: over N neighbouring ranks
                                      (full_shard, hybrid_shard) */
        int gradient_sync;       /* enum sh_cfg_grad_sync: auto (every_micro_step where the strategy shards
                                    gradients, else last) | every_micro_step | last_micro_step */
        int forward_prefetch, backward_prefetch; /* units gathered ahead; 0: none */
        int limit_all_gathers;   /* gathered units alive at once, the one in use included; 0: no limit */
    } parallelism;
    struct {
        int shard;               /* all | node | N; SH_CONFIG_UNSET (auto): by the strategy */
        int replicate;           /* auto | N */
        int ranks_per_node;      /* 0: found by MPI; N: taken as given (tests, plans) */
        int ranks;               /* plan only: the number of ranks to plan for; 0: one, or what MPI says */
    } mesh;
    struct {
        double lr, beta1, beta2, eps, weight_decay;
        bool decay_all;          /* also biases, norms; default: matrices only */
    } optimizer;
    struct {
        int64_t warmup_steps;
        int decay_type;          /* enum sh_cfg_decay */
        double decay_ratio;      /* wsd: share of the steps in which the rate falls */
        double min_lr_factor;
        int64_t total_steps;     /* 0: training.steps */
    } lr_scheduler;
    struct {
        int mode;                /* enum sh_cfg_recompute: none | full | every_k | selective |
                                    memory_budget: what memory.limit_bytes makes necessary */
        int every_k;             /* every_k: each k-th block is recomputed */
    } activation_checkpoint;
    struct {
        bool enable;
        char folder[SH_CONFIG_PATH_MAX]; /* below dump_folder unless absolute */
        int64_t interval;        /* steps; the last step is always saved */
        bool create_seed_checkpoint; /* also save the initial values, as step 0 */
        int resume;              /* enum sh_cfg_resume: auto (newest in folder if any) | never | must */
        int io;                  /* enum sh_cfg_io: auto | mpiio | direct */
        int writers_per_node;    /* of the direct road; SH_WRITERS_AUTO: by the length of the ranks' ranges */
        int async_mode;          /* enum sh_cfg_async: disabled | async */
        int verify;              /* enum sh_cfg_verify, before a file gets its name: disk | cache | off */
        int async_busy;          /* enum sh_cfg_busy, when the last one is still being written: wait | skip */
        char hints[512];         /* for MPI-IO: "name=value,name=value" */
        double timeout_seconds;  /* of one stage of a save or a load */
        int max_failures;        /* saves that may fail in a row; more end the job */
        int keep_latest_k;       /* ephemeral ones: the newest that stay; 0: all */
        int64_t keep_every_n;    /* permanent ones: those whose step is a multiple; 0: none */
        char initial_load_path[SH_CONFIG_PATH_MAX]; /* start from this file while the folder has none; "" */
        int trust;               /* enum sh_cfg_trust, which files are loaded: owner | any */
        bool initial_load_model_only; /* its parameters only: new optimizer, step 0 */
    } checkpoint;
    struct {
        bool enable;
        char dataset_path[SH_CONFIG_PATH_MAX];
        int64_t freq;            /* steps */
        int sequences;           /* size of the fixed validation set; 0: all of the file */
    } validation;
    struct {
        int64_t log_freq;        /* steps between lines of progress; metrics.jsonl has every step */
        bool progress;           /* one-line progress when standard error is a terminal */
        double peak_tflops;      /* of a rank, in 10^12 operations per second; 0: not known, no MFU */
    } metrics;
    struct {
        char trace[SH_CONFIG_PATH_MAX]; /* Chrome trace file; "" none; --trace FILE */
        int64_t trace_first_step, trace_steps;
    } profiling;
    struct {
        int action;              /* enum sh_cfg_guard, with a step whose loss or gradient norm is NaN or Inf, or an outlier */
        double z_score;          /* outlier: the gradient norm is so many deviations above its running mean; 0: off */
        int window;              /* steps of that mean */
        int max_skips;           /* in a row; more: SH_E_NUMERIC */
        int max_rollbacks;       /* to one checkpoint; more: SH_E_NUMERIC */
    } guard;
    struct {
        int64_t replica_check_every; /* steps; 0: replicas are never compared */
    } fault;
    struct {
        double train_timeout_seconds; /* a collective that takes longer is a stall */
        int trace_buf_size;      /* collectives kept for the report of a stall */
        int backend;             /* enum sh_cfg_comm: auto | mpi | nccl */
        bool share_gpu;          /* several ranks may use one GPU */
        int nccl_max_ctas;       /* 0: NCCL's default */
        int shared_memory;       /* enum sh_cfg_shared_memory: auto | off */
    } comm;
    struct {
        int64_t limit_bytes;     /* per rank; 0: memory of the node / ranks on it */
    } memory;
    struct {
        uint64_t seed;
        bool sync_ops;           /* wait for the GPU after each operation */
    } debug;
};

/* Defaults, then `path` (NULL: none), then overrides "section.key=value" (no dashes), then presets and aliases.
 * All bytes of *cfg are defined, padding included, so that memcmp compares two of them.
 * Errors: SH_E_DATA when the file cannot be read, else SH_E_USAGE; the text names file and line, or the argument.
 * On failure *cfg is as it was. */
sh_rc sh_config_load(const char *path, int n_overrides, const char *const *overrides, struct sh_config *cfg);

enum { SH_CONFIG_FILE_MAX = 1 << 20 }; /* bytes of a file or text; a larger one is refused */

/* The same from text in memory (`name` stands for the file in messages): configurations stored in checkpoints. */
sh_rc sh_config_parse(const char *text, size_t bytes, const char *name, int n_overrides, const char *const *overrides,
                      struct sh_config *cfg);

/* Resolved configuration as YAML that loads back to the same values; *text freed with free(). */
sh_rc sh_config_print(const struct sh_config *cfg, char **text);

/* The value of "section.key" as one line without YAML's quotes, for scripts; *text freed with free().
 * Errors: SH_E_USAGE: no such key, or one that only sets another. */
sh_rc sh_config_get(const struct sh_config *cfg, const char *name, char **text);

/* The names of the keys that the file and the overrides set, as sh_config_load() reads them, a line each in the order of
 * the table. Errors: as those of sh_config_load(). */
sh_rc sh_config_given(const char *path, int n_overrides, const char *const *overrides, FILE *out);

/* Every key with type, unit, range, default and help, as text, man page (roff) or Markdown. */
enum sh_config_help { SH_HELP_TEXT, SH_HELP_ROFF, SH_HELP_MARKDOWN };
void sh_config_help(FILE *out, enum sh_config_help form);

/* Copy keys from one configuration to another: those of `names` (ends with NULL), each a section or "section.key". */
void sh_config_take(struct sh_config *to, const struct sh_config *from, const char *const *names);

/* One line a difference, "section.key: a -> b". The sections named in `skip_section` (ends with NULL; may be NULL) are
 * left out. */
void sh_config_diff(const struct sh_config *a, const struct sh_config *b, const char *const *skip_section, FILE *out);

#endif
