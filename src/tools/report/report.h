/* Many runs on one page: reads the files of all runs in and below a folder and writes one HTML file that needs
 * no network, no script and no other file.
 *
 * sh_report_open() reads, sh_report_write() writes, sh_report_close() frees. All functions are local. The contents of a
 * run's folder are treated as text of unknown origin: whatever is shown of them is escaped. */
#ifndef SH_REPORT_REPORT_H
#define SH_REPORT_REPORT_H

#include "src/base/err.h"
#include "src/job/job.h"

#include <stdbool.h>
#include <stdint.h>

/* Where the wall time of training went. Offload: waits for moves between memory and a file; shown if some run has any.
 * */
enum sh_spent {
    SH_SPENT_COMPUTE,
    SH_SPENT_COMM,
    SH_SPENT_OFFLOAD,
    SH_SPENT_DATA,
    SH_SPENT_CHECKPOINT,
    SH_SPENT_OTHER,
    SH_SPENT_N
};

struct sh_report_step {
    int64_t step;
    double loss, grad_norm, lr, tokens_per_second; /* NAN: not finite in the run */
    double loss_scale;                             /* NAN: not in float16 */
    double expert_load;                            /* largest over mean; NAN: no experts */
    double reward_chosen, reward_margin;           /* of pairs of answers; NAN: there are none */
    double reward, reward_least, reward_most;      /* mean and extremes, of a head; NAN: there is none */
    double kl, teacher_mass, token_accuracy;       /* of distillation; NAN: there is no teacher */
    double expert_waves;                           /* mean; NAN: no experts on several ranks */
    double seconds[SH_SPENT_N];
    double at;    /* end, in seconds since 1970: the time of the start plus the time since then; small: not known */
    bool first;   /* first step of a start: it also warms up, and is not measured */
    bool skipped; /* without its update */
};

enum { SH_REPORT_HOLDS = 6 }; /* reasons for which a GPU's clock is held down */

struct sh_report_point {
    int64_t step;
    double loss, at, seconds; /* at: its end, as for a step */
};

/* A start of a run that its last course contains: 0 for a mesh that is not known. */
struct sh_report_start {
    int64_t step; /* done before it */
    int ranks, replicate, shard;
};

/* The prediction of `sherd plan --json`, made before the run started, from its folder's predicted.json. */
enum sh_predicted {
    SH_PREDICTED_PRODUCTS,
    SH_PREDICTED_ATTENTION,
    SH_PREDICTED_OTHER,   /* operations */
    SH_PREDICTED_SLOWED,  /* what concurrent collectives add to these three */
    SH_PREDICTED_EXPOSED, /* waiting for collectives */
    SH_PREDICTED_HOST,    /* and the spread of the nodes */
    SH_PREDICTED_N
};
/* clang-format off */
struct sh_report_prediction {
    double tokens_per_second;      /* 0: there is no prediction */
    double seconds;                /* of a step */
    double part[SH_PREDICTED_N];   /* of these seconds; sums to about the same */
    double mfu;                    /* causal; 0: not known */
    double goodput;                /* share of the time in which the run goes forward despite failures; 0: not known */
    double price;                  /* per device and hour; 0: not known */
    char *limit, *then;            /* what limits the step first, and second; NULL: nothing worth naming */
    char *machine;                 /* its name */
    bool too_large;                /* does not fit the machine's memory */
};
/* clang-format on */

/* A line of a resolved configuration. */
struct sh_report_key {
    char *name, *value; /* "training.seq_len", "2048" */
};

/* What the run's GPUs reported, at log steps. */
/* clang-format off */
struct sh_report_gpus {
    int lines, held;                 /* lines with such a report; those of them with clocks held down */
    bool by[SH_REPORT_HOLDS];        /* what held them, in the order of src/device/nvml.h */
    double mhz, most_mhz;            /* the lowest clock that was held down, and the GPU's maximum; 0: not told */
    int rank;                        /* the rank of that clock */
    char *node;                      /* its node; NULL: not told */
    double celsius;                  /* the highest */
    double watts, usual_watts;       /* the lowest power limit and its default; 0: not told */
};
/* clang-format on */

/* One run: its configuration, its steps in the order of the run (without those discarded by a rollback), and the
 * figures of its measured steps: those since the number of ranks last changed, without the first of a start. */
/* clang-format off */
struct sh_report_run {
    char *path;                      /* as found below the folder that was given */
    char *name;                      /* the end of its path: as many parts as tell it from the other runs */
    struct sh_report_key *keys;
    int n_keys;                      /* the same keys in the same order in all runs */
    int64_t global_batch;            /* sequences of a training step */
    int64_t wanted;                  /* training.steps */
    int64_t warm_up;                 /* steps of a start that are not measured */
    char *began;                     /* "2030-01-31 12:00 UTC", its first start; NULL: not known */
    char *device, *version, *host;   /* of the newest start; host: the first of n_hosts; NULL: not known */
    int n_hosts, threads, cores;     /* of the newest start: threads of a rank, cores of a node; 0: not known */
    int64_t parameters, tokens;      /* of the model; trained on so far; 0: not known */
    double clock;                    /* while reading: seconds since 1970 of the last line read */
    double ended_at;                 /* the clock at the end of the last step */
    double launched;                 /* in the same clock: when the first start was; 0: not known */
    double start[SH_PHASES];         /* of the newest start: seconds to its first step; 0: not known */
    int restarts, from_memory;       /* starts after the first that did a step; that went on from a near checkpoint */
    int64_t repeated;                /* steps that these did again */
    double goodput;                  /* share of the time since the first start in which the steps that stayed were done */
    double wall;                     /* seconds of all steps, saves and validations, discarded ones included */
    int ranks, replicate, shard;     /* 0: not known */
    struct sh_report_step *steps;
    int n_steps, cap_steps, from;    /* from: the first with this number of ranks */
    struct sh_report_start *starts;  /* ascending */
    int n_starts, cap_starts;
    struct sh_report_point *validations;
    int n_validations, cap_validations;
    int64_t arena_bytes, peak_rss_bytes;
    bool recorded, finished;         /* it has a progress.json; that says that all its steps are done */
    char *ended;                     /* why, for a run that has done no step; NULL: it has, or nothing says so */
    char *stopped;                   /* why, for a run with some of its steps done; NULL: it continues, or was killed */
    char *over;                      /* why it will do no more steps; NULL: it has done all, continues, or waits */
    struct sh_report_prediction predicted;
    int paces, slow_rank;            /* times the ranks' pace was gathered; the rank that was slowest most often */
    int slowest;                     /* surplus of readings with it over a tenth behind; see take_pace() */
    char *slow_node;                 /* its node; NULL: none */
    struct sh_report_gpus gpus;
    int unreadable;                  /* lines of metrics.jsonl that were cut off */
    double tokens_per_second;        /* median; 0: no step was measured */
    double flops, peak_tflops;       /* per token, and per rank; 0: not known */
    double mfu;                      /* at the median speed, see src/metrics/metrics.h; 0: not known */
    double seconds;                  /* wall time of a step, mean, with its share of checkpoints */
    double share[SH_SPENT_N];        /* of that time; sums to 1 */
};
/* clang-format on */

/* Runs that differ only in their number of ranks, and in what follows from it. Weak: each rank keeps its work, so
 * the global batch grows with the ranks. Strong: the global batch stays constant. */
enum sh_scaling { SH_SCALING_WEAK, SH_SCALING_STRONG, SH_SCALING_N };

/* Runs of one series on one number of ranks: a run, or repeats of it. Speeds are tokens per second of all ranks, 0 if
 * there are none: the point was only predicted, or only measured. */
struct sh_report_at {
    int ranks, first, n; /* the range of its runs in the series' list */
    int64_t batch;
    int measured; /* of these runs */
    double median, least, most;
    double predicted;
};

struct sh_report_series {
    enum sh_scaling kind;
    char *label; /* distinguishes it from the other runs */
    int *runs;   /* [n] indices, by ranks */
    int n, cap;
    struct sh_report_at *at; /* [n_at] by ranks */
    int n_at;
    double base, predicted_base; /* tokens per second and rank on the fewest ranks: 100 %; 0: none */
};

/* The folder's study.yaml, as written by jobscripts/scaling-study; texts are NULL without one. */
struct sh_report_study {
    char *name, *machine, *submitted;
    int64_t warm_up; /* steps after each start that are not measured */
    bool paper;      /* a study on paper: nothing was to be run */
};

struct sh_report {
    char *folder, *name; /* as it was given; its last part */
    char *sample;        /* (optional) text that the model wrote */
    struct sh_report_study study;
    const struct sh_report *against; /* (optional) lent: an older report of the same points */
    int reload;                      /* the browser reloads the page after this many seconds; 0: never */
    struct sh_report_run *runs;      /* by path */
    int n_runs, cap_runs;
    struct sh_report_series *series; /* weak ones first */
    int n_series, cap_series;
};

/* Read every run in `folder` and below it: folders with a config.yaml and a metrics.jsonl. Links are not followed, and
 * folders below a run are not searched. Lines of metrics.jsonl that were cut off when a job was killed are skipped and
 * noted.
 * Errors: SH_E_DATA with the place: no run, metrics without a configuration, a line that is not one of metrics;
 * SH_E_USAGE for a configuration that this version does not accept.
 * Cost: the files are read once; some 110 bytes per step are held in memory. */
sh_rc sh_report_open(const char *folder, struct sh_report **out);

/* Write the page. Replaces `path` in one step. Errors: SH_E_DATA. */
sh_rc sh_report_write(const struct sh_report *r, const char *path);

/* Show the text of this file on the page, up to 64 KiB. Errors: SH_E_DATA. */
sh_rc sh_report_add_sample(struct sh_report *r, const char *path);

/* The last step that the run has done, 0 if there is none. */
int64_t sh_report_done(const struct sh_report_run *run);
/* Whether the run has done all of its steps: progress.json knows, and only without one the metrics tell. */
bool sh_report_is_done(const struct sh_report_run *run);
/* Whether every run has done all of its steps, or will not do the rest. */
bool sh_report_finished(const struct sh_report *r);

/* Write the only run as lines of MLPerf's logging format. Replaces `path` in one step. Errors: SH_E_USAGE: there are
 * several runs; SH_E_DATA. */
sh_rc sh_report_mllog(const struct sh_report *r, const char *path);

void sh_report_close(struct sh_report *r);

/* Tokens per second and rank, relative to those on the fewest ranks of the series, measured or predicted; 1 is perfect
 * scaling, NAN: not known. */
double sh_report_efficiency(const struct sh_report_series *s, const struct sh_report_at *at);
double sh_report_predicted_efficiency(const struct sh_report_series *s, const struct sh_report_at *at);

/* The value of a key, "" if there is no key of that name. */
const char *sh_report_value(const struct sh_report_run *run, const char *name);

/* Whether the runs have different values of their i-th key. */
bool sh_report_differs(const struct sh_report *r, int i);

#endif
