/* Watching a run: metrics for machines, a line for people; trace.h: a trace for a viewer. Each is written by one rank
 * unless said otherwise. All functions are local, and a file that cannot be written is an error of the run (SH_E_DATA),
 * not a silent loss. */
#ifndef SH_METRICS_METRICS_H
#define SH_METRICS_METRICS_H

#include "src/base/err.h"
#include "src/job/job.h"

#include <stdbool.h>
#include <stdint.h>

/* Where the time of a step went, in seconds; the rest of `step` is host work between the sections. */
struct sh_step_time {
    double step, compute, exposed_comm, data, checkpoint, checks;
    double exposed_offload; /* waiting for moves between tiers */
    double near;            /* near checkpoints since the step before; 0: none */
};

/* How evenly the ranks work: seconds per step without waiting, as means since the last time they were gathered. */
struct sh_pace_metrics {
    double least, median, most;
    int slowest;      /* rank */
    const char *node; /* its node; NULL: nothing was gathered */
};

/* clang-format off */
/* The GPUs of a run, by the readings since the last time (src/run/watch/gpus.h); NAN: not reported. */
struct sh_gpu_metrics {
    int gpus;                   /* that reported something; 0: nothing was gathered */
    double watts;               /* mean power of a GPU */
    double limit_watts;         /* power limit of the GPU whose limit is the lowest relative to its default, ... */
    double usual_watts;         /* ... and that default */
    double mhz, median_mhz;     /* clock of the slowest GPU, and the median clock */
    double most_mhz;            /* highest clock of the slowest GPU */
    double celsius;             /* of the hottest */
    int slowest;                /* rank; like the node, only if a clock is reported */
    const char *node;           /* its node, or NULL */
    int held;                   /* ranks whose clock is held down ... */
    unsigned why;               /* ... by what, over all of them: bits of src/device/nvml.h */
};

/* The routers of a mixture of experts, over the ranks and micro-steps of a step. */
struct sh_router_metrics {
    int blocks;                 /* blocks with experts; 0: none */
    double most;                /* the largest load of an expert over the mean of its block, of all blocks */
    bool listed;                /* at log steps: for each block ... */
    const double *largest, *spread; /* [blocks] ... the same, and the entropy of its loads, 1 if they are equal */
    int waves;                  /* in which the rows of a block and micro-step travelled to experts on other ranks, ... */
    double mean_waves;          /* ... the largest number and the mean; 0: experts are not spread */
    double busiest;             /* the rows of the rank that got most, over those of all waves, over the mean */
    bool has_aux, has_z;        /* whether there are such losses */
    double aux, z;              /* mean over the tokens, summed over the blocks; weighed, and not in `loss` */
};

/* Answers, in pairs or single: means over those of a step or a validation. A reward is beta times how much likelier an
 * answer is to the model than to the reference. */
struct sh_pair_metrics {
    int64_t pairs;                     /* 0: there are none */
    int64_t singles;                   /* 0: there are none */
    int64_t n_chosen, n_rejected;      /* both are the number of pairs, or their sum is that of single answers */
    int64_t n_less;                    /* the smaller of the two */
    double chosen, rejected, margin;   /* rewards, and the mean of their difference */
    double accuracy;                   /* share of the pairs whose chosen answer has the larger reward */
    double logp_chosen, logp_rejected; /* log-probabilities */
    int64_t scored;                    /* pairs that a head scores, with margin and accuracy as above; 0: there are none */
    double reward, least, most;        /* mean, minimum and maximum over both answers of these */
    int64_t compared;                  /* answers that were compared with those to other prompts; 0: there are none */
    double kl;                         /* mean of what these are compared with */
    int64_t values;                    /* texts whose numbers a head learns; 0: there are none */
};

/* Distillation: means over the targets of a step, as the loss weighs them. */
struct sh_teacher_metrics {
    bool learns;     /* there is a teacher */
    double kl;       /* of the teacher's words by the student's, as objective.kd_form has both, at objective.temperature */
    double mass;     /* the teacher's probability of the words that are learned from */
    double accuracy; /* share of the targets that are the student's likeliest word */
};

/* Parts of a model, over all ranks; norms of the gradient before clipping, of the parameters after the step, and of what
 * it changed. */
struct sh_norm_metrics {
    int rows;                   /* 0: none were measured */
    const char *const *name;    /* [rows] */
    const double *gradient, *parameter, *update; /* [rows] */
    int blocks;
    const char *const *block;   /* [blocks] */
    const double *largest;      /* [blocks] magnitude of what the forward makes */
    double seconds;             /* that measuring them took, on the rank that writes */
};

struct sh_step_metrics {
    int64_t step;            /* steps done, this one included */
    double loss, grad_norm, lr;
    bool has_head_z;         /* training.z_loss is not 0: */
    double head_z;           /* what squares add to the objective; loss is without them */
    double loss_scale;       /* that the gradients were computed with, in float16; else 0 */
    const char *skipped;     /* NULL, or why the update was skipped */
    int64_t tokens;          /* of this step over all ranks */
    bool masked;             /* whether the data have masks */
    int64_t targets;         /* of these tokens, those that count in the loss */
    int64_t tokens_seen;     /* since the start of training */
    double tokens_per_second;
    double flops_causal;     /* per token, as in the start line */
    double mfu;              /* sh_mfu() of this step; 0: the peak is not known */
    struct sh_step_time time;
    double start[SH_PHASES]; /* of the first step of a process: seconds from its launch; else 0 */
    double since_last;       /* seconds since the step before ended: this step, and saves and validations before it */
    int64_t arena_bytes;     /* planned and allocated, of one rank */
    int64_t peak_rss_bytes;  /* largest over the ranks */
    bool offloads;           /* states live in a lower tier: the next two and time.exposed_offload are valid */
    int64_t offload_read_bytes, offload_written_bytes; /* moved by this step on the rank that writes */
    int64_t gpu_used_bytes;  /* of a GPU, by all that run on it, largest over the ranks; 0: no GPU is used */
    struct sh_pace_metrics pace;
    struct sh_gpu_metrics gpu;
    struct sh_router_metrics routers;
    struct sh_pair_metrics pairs;
    struct sh_teacher_metrics teacher;
    struct sh_norm_metrics norms;
};
/* clang-format on */

struct sh_rollback_metrics {
    int64_t to, from;    /* steps */
    int64_t first, last; /* samples of the run that are left out for good */
};

struct sh_checkpoint_metrics {
    int64_t step; /* that it holds */
    const char *path;
    int64_t bytes;
    const char *verify;                                   /* what was read back: checkpoint.verify */
    double seconds;                                       /* from the snapshot to the commit */
    double stall;                                         /* of these, those that training stood still */
    double disk_seconds;                                  /* of these, those of writing the data and of fsync */
    double gb_per_second, disk_gb_per_second, disk_share; /* filled in when it is written */
};

struct sh_not_saved_metrics {
    int64_t step;
    int failures; /* in a row, this one included */
    const char *reason;
};

enum { SH_METRICS_HOST = 64 };
#define SH_METRICS_FROM_MEMORY "near checkpoint" /* what such a run is resumed from */

/* What the start line of a process says. */
struct sh_start_metrics {
    int64_t step;                /* steps done before it */
    const char *resumed_from;    /* a checkpoint, or NULL */
    const char *parameters_from; /* one of which only the parameters were taken, or NULL; both NULL: initial values */
    double seconds_down;         /* from the end of the near checkpoint that it goes on from; 0: from none */
    int64_t recoveries;          /* times that the run has gone on from memory, this one included */
    const char *lost_nodes;      /* of the batch job, separated by spaces, or NULL */
    int n_lost_nodes;
    int ranks, replicate, shard;
    int nodes, threads; /* threads: per rank */
    int cores;          /* that the ranks of the first node together may run on */
    const char *device; /* "cpu", or the GPU's name */
    const char *hosts;  /* [n_hosts][SH_METRICS_HOST], as gathered from the ranks: names may repeat */
    int n_hosts;
    int stages;                      /* of a pipeline; 0: there are none */
    const double *stage_bytes;       /* [stages] planned and allocated, of the rank of each that takes most */
    int64_t parameters;              /* of the model */
    const char *config;              /* sh_config_digest() */
    double flops_causal, flops_full; /* per token, forward and backward; attention counted as half or whole square */
    double peak_tflops;              /* per rank; 0: not known */
};

/* Model FLOPs utilization: the arithmetic that the model needs for these tokens, over what the ranks could do.
 *   flops        per token, forward and backward, with causal attention; recomputation does not count
 *   peak_tflops  per rank, in 10^12 operations per second; 0: not known, and so is the result */
double sh_mfu(double tokens_per_second, double flops, int ranks, double peak_tflops);

struct sh_validation_metrics {
    int64_t step;
    double loss;
    int64_t tokens, bytes; /* bytes: of the text of these tokens; 0: not known, and bits per byte are left out */
    double seconds;
    double bits_per_byte; /* filled in when it is written */
    int64_t labels;       /* 0: the model predicts tokens */
    double accuracy;      /* share of the texts of which it found all labels */
    bool multi_label;     /* a text may have several labels, with an F1 score of all of them */
    double f1;
    struct sh_pair_metrics pairs;
};

/* What a line of metrics.jsonl is about. The structs above that belong to these begin with their step. */
enum sh_metrics_event {
    SH_METRICS_START,
    SH_METRICS_STEP,
    SH_METRICS_VALIDATION,
    SH_METRICS_CHECKPOINT,
    SH_METRICS_NOT_SAVED,
    SH_METRICS_ROLLBACK,
    SH_METRICS_EVENTS
};

/* metrics.jsonl: one object per line. Opened for appending, so a resumed run continues in the same file. A line that
 * cannot be written is kept as a failure, which sh_metrics_result() returns when the ranks next agree. With NULL, as on
 * ranks that do not write, nothing is written. */
struct sh_metrics;
sh_rc sh_metrics_open(const char *path, struct sh_metrics **out);

/* How many starts in a file of metrics went on from memory. Cost: one read of the file. Nothing can be read: 0. */
int64_t sh_metrics_recoveries(const struct sh_metrics *m);
/* Write the same figures for other programs as well. A failure to write them is kept like that of a line.
 *   tensorboard  a new file of events in this folder; `step` was done before
 *   openmetrics  one file, replaced every few seconds; every sample carries the labels: `job` and `host` join it with
 *                what a site measures on its nodes and devices */
struct sh_metrics_labels {
    const char *job, *run, *host;
    int rank;
};
sh_rc sh_metrics_tensorboard(struct sh_metrics *m, const char *folder, int64_t step);
sh_rc sh_metrics_openmetrics(struct sh_metrics *m, const char *path, const struct sh_metrics_labels *labels);
void sh_metrics_start(struct sh_metrics *m, const struct sh_start_metrics *s);
void sh_metrics_step(struct sh_metrics *m, const struct sh_step_metrics *s);
void sh_metrics_validation(struct sh_metrics *m, const struct sh_validation_metrics *v);
void sh_metrics_checkpoint(struct sh_metrics *m, const struct sh_checkpoint_metrics *c);
void sh_metrics_rollback(struct sh_metrics *m, const struct sh_rollback_metrics *r);
void sh_metrics_not_saved(struct sh_metrics *m, const struct sh_not_saved_metrics *n);
sh_rc sh_metrics_result(const struct sh_metrics *m);
void sh_metrics_finish(
    struct sh_metrics *m); /* complete all files; what cannot be written is kept as a failure, as above */
void sh_metrics_close(struct sh_metrics *m);

/* Read a line of metrics.jsonl: what it is about, SH_METRICS_EVENTS if that is nothing of the above that has
 * figures. Whole numbers that are absent are 0, texts NULL, others NAN, also if they are null or of a size that no
 * run has and no axis could show. Lists are not read. Texts are the line's. */
struct json_t;
union sh_metrics_any {
    struct sh_start_metrics start;
    struct sh_step_metrics step;
    struct sh_validation_metrics validation;
    struct sh_checkpoint_metrics checkpoint;
    struct sh_rollback_metrics rollback;
};
enum sh_metrics_event sh_metrics_read(const struct json_t *line, union sh_metrics_any *out);

/* One line per step on standard error. On a terminal the next line overwrites it, except for those that are due, which
 * stay: every log_freq-th, the first, the last, and skipped steps. Elsewhere only the lines that are due are printed.
 * Tokens per second and MFU are means since the last line that stayed; the time left is estimated from the last
 * SH_PROGRESS_RECENT steps, with the saves and validations between them. */
enum { SH_PROGRESS_RECENT = 256, SH_PROGRESS_LINE = 512 };
/* clang-format off */
struct sh_progress {
    bool terminal;           /* write over the last line */
    bool open;               /* such a line is on the screen */
    bool styled;             /* the loss bold, what is of less interest dim */
    int64_t total, log_freq;
    int ranks;
    double peak_tflops;      /* per rank; 0: no MFU */
    /* state */
    int64_t tokens;          /* since the last line that stayed */
    double seconds;          /* the same */
    double recent[SH_PROGRESS_RECENT]; /* since_last of the newest steps, a ring */
    double recent_sum;
    int64_t n_recent, steps; /* in the ring; of this process */
};
/* clang-format on */
void sh_progress_init(struct sh_progress *p, bool allowed, int64_t total, int64_t log_freq, int ranks,
                      double peak_tflops);
void sh_progress_step(struct sh_progress *p, const struct sh_step_metrics *s);
void sh_progress_break(struct sh_progress *p); /* before any other line is printed */

/* The line of a step as it would be printed now, in at most `columns` columns (0: as many as it takes). Fields that do
 * not fit are left out, the least important first: gradient norm and loss scale, then memory, learning rate, MFU, time
 * left, speed, and the reason of a skipped step. */
void sh_progress_line(const struct sh_progress *p, const struct sh_step_metrics *s, int columns,
                      char line[SH_PROGRESS_LINE]);

#endif
