/* A training step: its metrics and its trace as training itself writes them, next to what the machine allows. */
#include "src/tools/bench/bench.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/words.h"
#include "src/metrics/metrics.h"
#include "src/run/run.h"
#include "src/tools/bench/folder.h"
#include "src/tools/bench/points.h"
#include "src/tools/bench/rate.h"
#include "src/tools/bench/trace.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first steps touch pages and create objects of libraries. */
enum { WARM_UP = 2, TRIES = 5, LINE_BYTES = 1 << 16, STEP = 0, TRACED = 1 };

/* The list starts with the step, then the step with a trace, then the operations of the trace. */
struct bench {
    struct sh_run *r;
    const struct sh_bench_options *options;
    struct sh_bench_list list;
    struct sh_bench_peaks peaks;
    struct sh_bench_points points;
    int64_t arena_bytes, rss_bytes;
};

/* Files in the folder, all of which are deleted. */
static const char *const files[] = {"tokens.bin", "trace.json", "metrics.jsonl", "config.yaml", "progress.json"};
enum { TOKENS, TRACE, METRICS };

static const char between[] = "between operations";

/* The caller frees it. */
static char *path_of(const struct sh_config *cfg, int file)
{
    return sh_path_join(cfg->job.dump_folder, files[file]);
}

/* Two steps' worth of tokens, so that there is something to shuffle. */
static sh_rc write_tokens(const struct sh_config *cfg, int world)
{
    return sh_bench_write_tokens(cfg, 2 * sh_request_global_batch(cfg, world) * cfg->training.seq_len + 1, 0);
}

/* Sets a field of the configuration, which is large enough for any path that a folder could have. */
static void set_path(char to[SH_CONFIG_PATH_MAX], const struct sh_config *cfg, int file)
{
    char *path = path_of(cfg, file);

    snprintf(to, SH_CONFIG_PATH_MAX, "%s", path);
    free(path);
}

/* The last step of a run does its own update at once, plus that of the step before if updates are carried. */
static int steps_behind(const struct sh_config *cfg)
{
    bool carries = cfg->offload.overlap_update != SH_OVERLAP_OFF;

    return carries && (cfg->offload.optimizer != SH_OFFLOAD_NONE || cfg->offload.mode == SH_OFFLOAD_BUDGET ||
                       sh_cfg_is_muon(cfg->optimizer.name));
}

/* Switches off everything that adds work other than steps. */
static void prepare(struct sh_config *cfg, const struct sh_bench_options *options)
{
    /* First steps to warm up, then one plain step per round, then as many with a trace, which makes them slower. */
    cfg->data.token_weight = SH_MASK_OFF; /* its tokens have none */
    sh_bench_only_steps(cfg, files[TOKENS], WARM_UP + 2 * options->repeat + steps_behind(cfg));
    set_path(cfg->profiling.trace, cfg, TRACE);
    cfg->profiling.trace_first_step = WARM_UP + options->repeat + 1;
    cfg->profiling.trace_steps = options->repeat;
    cfg->guard.action = SH_GUARD_SKIP;
    cfg->metrics.log_freq = cfg->training.steps;
}

/* Steps of the warm-up, and one after the others, are read only for the memory; plain and traced steps go to separate
 * rows. */
static void read_line(struct bench *b, const struct sh_step_metrics *m)
{
    int64_t round = m->step - WARM_UP - 1;
    int row = round < b->options->repeat ? STEP : TRACED;

    b->arena_bytes = m->arena_bytes;
    b->rss_bytes = m->peak_rss_bytes;
    if (round < 0 || round >= 2 * b->options->repeat)
        return;
    b->list.times[row].seconds[row == STEP ? round : round - b->options->repeat] = m->time.step;
    b->list.times[row].tokens = m->tokens;
}

/* Rank 0. Training writes a line for each step; a missing line means that a step was not done. */
static sh_rc read_metrics(struct bench *b, const struct sh_config *cfg)
{
    char *path = path_of(cfg, METRICS), text[LINE_BYTES];
    FILE *f = fopen(path, "re");
    sh_rc rc = f ? SH_OK : sh_fail(SH_E_DATA, "open %s: %s", path, strerror(errno));
    int steps = 0;

    free(path);
    SH_TRY(rc);
    while (fgets(text, sizeof text, f)) {
        json_t *line = json_loads(text, 0, NULL);
        union sh_metrics_any m;

        if (sh_metrics_read(line, &m) == SH_METRICS_STEP) {
            read_line(b, &m.step);
            steps++;
        }
        json_decref(line);
    }
    fclose(f);
    return steps == cfg->training.steps
               ? SH_OK
               : sh_fail(SH_E_BUG, "only %d of %lld steps are in the metrics", steps, (long long)cfg->training.steps);
}

/* Adds the time of traced steps that no operation accounts for, and the shares of those steps. */
static void sum_up(struct bench *b)
{
    int rest, rounds = b->options->repeat;
    double whole = sh_bench_median(b->list.times[TRACED].seconds, rounds);
    struct sh_bench_times sum = {.bytes = 0}, *t;

    for (int i = TRACED + 1; i < b->list.n; i++) {
        t = &b->list.times[i];
        sum.flops += t->flops;
        sum.bytes += t->bytes;
        sum.floor_seconds += t->floor_seconds;
        for (int k = 0; k < rounds; k++)
            sum.seconds[k] += t->seconds[k];
    }
    rest = sh_bench_add(&b->list, "%s", between);
    for (int k = 0; k < rounds; k++)
        b->list.times[rest].seconds[k] = b->list.times[TRACED].seconds[k] - sum.seconds[k];
    for (int i = STEP; i <= TRACED; i++) {
        b->list.times[i].flops = sum.flops;
        b->list.times[i].bytes = sum.bytes;
        b->list.times[i].floor_seconds = sum.floor_seconds;
    }
    for (int i = TRACED; i < b->list.n; i++)
        b->list.times[i].share = sh_bench_median(b->list.times[i].seconds, rounds) / whole;
    sh_bench_sort(&b->list, TRACED + 1, rounds);
}

/* Time of a step in addition to its operations. Untraced steps are used, since a trace slows steps down. */
static double host_seconds(const struct bench *b)
{
    int rounds = b->options->repeat;
    double rest = sh_bench_median(b->list.times[STEP].seconds, rounds);

    for (int i = TRACED + 1; i < b->list.n; i++)
        if (strcmp(b->list.rows[i].name, between))
            rest -= sh_bench_median(b->list.times[i].seconds, rounds);
    return rest > 0 ? rest : 0;
}

static sh_rc write_points(struct bench *b)
{
    sh_bench_points_figure(&b->points, "memory.bytes_per_second", b->peaks.bytes_per_second);
    sh_bench_points_figure(&b->points, "host.step_seconds", host_seconds(b));
    return sh_bench_points_write(&b->points, b->options, b->r);
}

/* The caller frees it. */
static char *describe(const struct bench *b, const struct sh_config *cfg)
{
    const struct sh_bench_times *step = &b->list.times[STEP];
    double seconds = sh_bench_median(step->seconds, b->options->repeat);
    char arena[SH_STR_SHORT], rss[SH_STR_SHORT];

    return sh_strfmt(
        "training steps of %s%s in %s: %lld tokens on %d ranks of %d threads, %d steps, then as many with a trace\n"
        "memory of a rank: %s planned, %s of the process at most\n"
        "measured peaks of a rank: %.1f GFLOP/s in a square product, %.1f GB/s in a copy (read and written); "
        "operations and\n"
        "bytes are rank 0's; a floor is the longer of both at these rates; the step's is %.4g s, %.1f %% of its time",
        cfg->model.name, cfg->debug.moe_force_load_balance ? " with experts by turn, not by score," : "",
        sh_dtype_name(b->r->p->act), (long long)step->tokens, sh_mesh_ranks(&b->r->mesh->shape), b->r->threads,
        b->options->repeat, sh_str_bytes(b->arena_bytes, arena), sh_str_bytes(b->rss_bytes, rss),
        b->peaks.flops_per_second / 1e9, b->peaks.bytes_per_second / 1e9, step->floor_seconds,
        100 * step->floor_seconds / seconds);
}

/* Rank 0. */
static sh_rc report(struct bench *b, const struct sh_config *cfg)
{
    char *path = path_of(cfg, TRACE), *head;
    sh_rc rc;

    sh_bench_add(&b->list, "step");
    sh_bench_add(&b->list, "step, traced");
    rc = read_metrics(b, cfg);
    if (rc == SH_OK)
        rc = sh_bench_trace_read(path, b->r->p->n_streams, b->options->repeat, &b->peaks, &b->list);
    if (rc == SH_OK && b->options->machine)
        rc = sh_bench_points_trace(&b->points, path, b->r->p, b->options->repeat);
    free(path);
    SH_TRY(rc);
    sum_up(b);
    head = describe(b, cfg);
    rc = sh_bench_report("step", head, b->list.rows, b->list.times, b->list.n, b->options->repeat, b->options);
    free(head);
    return rc == SH_OK ? write_points(b) : rc;
}

/* Takes the best of many tries, some before the training and some after it: any disturbance only makes them slower.
 * Who asks for one round or two wants a quick look. */
static sh_rc find_peaks(struct bench *b)
{
    int tries = b->options->repeat < 3 ? 2 * b->options->repeat - 1 : TRIES;
    struct sh_rate rate;
    sh_rc rc = sh_rate_open(b->r->device, b->r->threads, 0, &rate);

    for (int k = 0; k < tries && rc == SH_OK; k++) {
        double product = 1, copy = 1;

        rc = sh_rate_product(&rate, b->r->p->act, &product);
        if (rc == SH_OK)
            rc = sh_rate_copy(&rate, rate.bytes / 2, &copy);
        b->peaks.flops_per_second = fmax(b->peaks.flops_per_second, sh_rate_product_flops(&rate) / product);
        b->peaks.bytes_per_second = fmax(b->peaks.bytes_per_second, (double)rate.bytes / copy);
    }
    sh_rate_close(&rate);
    return rc;
}

/* Collective. Peaks are measured before and after training: clocks of CPUs and GPUs change while a job runs. */
static sh_rc measure(struct bench *b, const struct sh_config *cfg)
{
    int world = sh_mesh_ranks(&b->r->mesh->shape);

    SH_TRY(sh_agree(b->r->mesh->rank == 0 ? write_tokens(cfg, world) : SH_OK));
    SH_TRY(find_peaks(b));
    SH_TRY(sh_run_train(b->r));
    SH_TRY(find_peaks(b));
    return sh_agree(b->r->mesh->rank == 0 ? report(b, cfg) : SH_OK);
}

/* Collective; a file that was never written is not an error. */
static void delete_file(const struct sh_config *cfg, int file)
{
    char *path = path_of(cfg, file);

    sh_bench_folder_drop(path);
    free(path);
}

/* Collective. Everything is written into a new folder, which is deleted at the end. */
sh_rc sh_bench_step(const struct sh_config *asked, const struct sh_bench_options *options)
{
    struct sh_config cfg = *asked;
    struct bench b = {.options = options};
    sh_rc rc;

    SH_TRY(sh_agree(sh_bench_check("step", options)));
    SH_TRY(sh_bench_folder_make(&cfg, options->folder));
    prepare(&cfg, options);
    rc = sh_agree(sh_bench_refuse_replaced("step", options, asked, &cfg));
    if (rc == SH_OK)
        rc = sh_run_open(&cfg, SH_TO_TRAIN, &b.r);
    if (rc == SH_OK) {
        b.r->passing = true;
        rc = measure(&b, &cfg);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        delete_file(&cfg, (int)i);
    sh_run_close(b.r);
    sh_bench_folder_delete(&cfg);
    sh_bench_list_free(&b.list);
    return rc;
}
