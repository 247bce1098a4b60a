/* The configuration of a run: one table of keys (keys.c), filled from defaults, then a YAML file, then the config.json of
 * model.hf_assets_path, then arguments --section.key=value.
 *
 * Nothing else is read: no environment, no file in the home directory. An unknown or doubled key, a value of the wrong
 * type or out of range is an error with file and line (or the argument) and the nearest known name, or what to write
 * instead of another trainer's key. All of them are told at once, a line each, up to 20. Words are
 * torchtitan's and FSDP's where they have one; aliases of the field (ShardingStrategy.FULL_SHARD, zero_stage) are
 * resolved while loading, so that the resolved configuration has one spelling. All functions are local. */
#ifndef SH_CONFIG_CONFIG_H
#define SH_CONFIG_CONFIG_H

#include "src/base/err.h"
#include "src/config/model.h"
#include "src/config/words.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { SH_CONFIG_PATH_MAX = 1024 };

/* clang-format off */
struct sh_config {
    struct {
        char dump_folder[SH_CONFIG_PATH_MAX]; /* everything a run writes; default ./outputs */
        char description[256];
        double stop_before_limit_seconds; /* spare time when stopping before the end of the job; -1: run into it */
    } job;
    struct sh_model model;
    struct {                     /* adapters of low rank; the model itself is then frozen */
        int rank;                /* 0: none */
        double alpha;
        char target_modules[256]; /* of sh_family_targets() */
        bool use_rslora;         /* alpha / sqrt(rank) instead of alpha / rank */
        int quantize_base;       /* enum sh_cfg_quantize: what the frozen model is kept in */
        char adapter_path[SH_CONFIG_PATH_MAX]; /* folder of PEFT to begin with; "" */
    } lora;
    struct {                     /* model.hf_...: where the section above is from */
        char assets_path[SH_CONFIG_PATH_MAX]; /* Hugging Face folder that has all of it, and the weights; "" */
        char ignore[512];        /* keys of its config.json that may be left out: "key, key" */
        char tokenizer[SH_CONFIG_PATH_MAX]; /* "byte", a folder with tokenizer.json, such a file; "": none is named */
    } hf;
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
        int packing;             /* enum sh_cfg_packing: auto (bfd where files have documents) | bfd | none | concat */
        char mix[SH_CONFIG_PATH_MAX]; /* "file=weight,file=weight" instead of training.dataset_path; "": none */
        int excess_length_strategy; /* enum sh_cfg_excess: raise | truncate | drop | split */
    } data;
    struct {
        int sharding_strategy;   /* enum sh_cfg_strategy */
        int reshard_after_forward; /* 1: as the strategy says; N > 1: over N neighbouring ranks
                                      (full_shard, hybrid_shard) */
        int gradient_sync;       /* enum sh_cfg_grad_sync: auto (every_micro_step where the strategy shards
                                    gradients, else last) | every_micro_step | last_micro_step */
        int forward_prefetch, backward_prefetch; /* units gathered ahead; 0: none */
        int limit_all_gathers;   /* gathered units alive at once, the one in use included; 0: no limit */
        int resident_units;      /* from the embedding on, gathered from update to update */
    } parallelism;
    struct {
        int shard;               /* all | node | N; SH_CONFIG_UNSET (auto): by the strategy */
        int replicate;           /* auto | N */
        int ranks_per_node;      /* 0: found by MPI; N: taken as given (tests, plans) */
        int ranks;               /* plan only: the number of ranks to plan for; 0: one, or what MPI says */
    } mesh;
    struct {
        int name;                /* enum sh_cfg_optimizer: adamw | sgd | lion; a row of optim.inc */
        double lr, beta1, beta2, eps, weight_decay;
        bool decay_all;          /* also biases, norms; default: matrices only */
        int state_dtype;         /* enum sh_cfg_precision, of what the optimizer keeps beside each parameter */
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
        bool initial_load_in_hf; /* begin with the weights of model.hf_assets_path */
        bool last_save_in_hf;    /* beside the last checkpoint, a Hugging Face folder */
        int export_dtype;        /* enum sh_cfg_export, of that folder's weights */
        int64_t max_shard_size;  /* bytes of one of its files */
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
        char tensorboard[SH_CONFIG_PATH_MAX]; /* folder of its files, below dump_folder unless absolute; "" none */
        char openmetrics[SH_CONFIG_PATH_MAX]; /* file, the same */
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
        int progress;            /* enum sh_cfg_progress: thread | inline */
    } comm;
    struct {
        int64_t limit_bytes;     /* per rank; 0: memory of the node / ranks on it */
    } memory;
    struct {                     /* what lives in a lower tier than the device's memory */
        int optimizer;           /* enum sh_cfg_offload: none | nvme */
        double optimizer_ratio;  /* of the elements whose states go there */
        char nvme_path[SH_CONFIG_PATH_MAX]; /* folder of the scratch files; "" */
        int buffer_count;        /* slices on the device at once */
        bool verify;             /* sums of what comes back */
        bool allow_network;      /* for the folder */
    } offload;
    struct {
        uint64_t seed;
        bool sync_ops;           /* wait for the GPU after each operation */
    } debug;
};
/* clang-format on */

/* Defaults, then `path` (NULL: none), then overrides "section.key=value" (no dashes), then presets and aliases.
 * All bytes of *cfg are defined, padding included, so that memcmp compares two of them.
 * Errors: SH_E_DATA when the file cannot be read, else SH_E_USAGE; the text names file and line, or the argument.
 * On failure *cfg is as it was. */
sh_rc sh_config_load(const char *path, int n_overrides, const char *const *overrides, struct sh_config *cfg);

/* What model.hf_assets_path=FOLDER is turned into: `read` gives values to keys of `model`, as text, through give(to, ...).
 * They count more than those of a configuration file, and less than those of the command line. `place` names the file they
 * are from in messages. `so_far` has what file and command line have given. Without a hook the key is a name only.
 * Errors: those of give(); SH_E_DATA, SH_E_USAGE. */
typedef sh_rc (*sh_config_give_value)(void *to, const char *key, const char *text);
typedef sh_rc (*sh_config_read_folder)(const struct sh_config *so_far, const char *place, sh_config_give_value give,
                                       void *to);
void sh_config_folder_hook(sh_config_read_folder read);

enum { SH_CONFIG_FILE_MAX = 1 << 20 }; /* bytes of a file or text; a larger one is refused */

/* The same from text in memory (`name` stands for the file in messages): configurations stored in checkpoints. */
sh_rc sh_config_parse(const char *text, size_t bytes, const char *name, int n_overrides, const char *const *overrides,
                      struct sh_config *cfg);

/* Resolved configuration as YAML that loads back to the same values; *text freed with free(). */
sh_rc sh_config_print(const struct sh_config *cfg, char **text);

/* XXH3 of that text, 64 bits in hexadecimal: what `xxhsum -H3 config.yaml` prints of a run's file. Tells whether two runs
 * had the same configuration. */
enum { SH_CONFIG_DIGEST = 17 };
sh_rc sh_config_digest(const struct sh_config *cfg, char digest[SH_CONFIG_DIGEST]);

/* The value of "section.key" as one line without YAML's quotes, for scripts; *text freed with free().
 * Errors: SH_E_USAGE: no such key, or one that only sets another. */
sh_rc sh_config_get(const struct sh_config *cfg, const char *name, char **text);

/* The names of the keys that the file and the overrides set, as sh_config_load() reads them, a line each in the order of
 * the table. Errors: as those of sh_config_load(). */
sh_rc sh_config_given(const char *path, int n_overrides, const char *const *overrides, FILE *out);

/* Every key with type, unit, range, default and help, as text, man page (roff) or Markdown. */
enum sh_config_help { SH_HELP_TEXT, SH_HELP_ROFF, SH_HELP_MARKDOWN, SH_HELP_BASH, SH_HELP_ZSH };
void sh_config_help(FILE *out, enum sh_config_help form);

/* Whose a key is: a column of the table. */
enum sh_config_of {
    SH_OF_MODEL,   /* the model's: what eval and generate need of it */
    SH_OF_RUN,     /* the training's: with another value the state of the run would be another */
    SH_OF_NOTE,    /* a note: kept in checkpoints, of no consequence for the state */
    SH_OF_MACHINE, /* the machine's, and how a run uses it: not in checkpoints; a resume may have another value */
    SH_OF_KINDS
};
#define SH_OF(kind) (1u << SH_OF_##kind)
#define SH_OF_ALL ((1u << SH_OF_KINDS) - 1)

/* Copy keys from one configuration to another: those of the kinds in `of`, a sum of SH_OF(). */
void sh_config_take(struct sh_config *to, const struct sh_config *from, unsigned of);

/* One line a difference, "section.key: a -> b", in keys of the kinds in `of`. */
void sh_config_diff(const struct sh_config *a, const struct sh_config *b, unsigned of, FILE *out);

#endif
