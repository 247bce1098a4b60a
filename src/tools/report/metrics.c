/* Reads metrics.jsonl of one run into steps, validations and summary figures. The file contains all starts of a run in
 * turn: steps that were repeated after a resume or a rollback replace the earlier ones, so that the course that led
 * to the end remains. */
#include "src/tools/report/parts.h"

#include "io/file/file.h"
#include "src/base/number/median.h"
#include "src/base/mem.h"
#include "src/device/nvml.h"
#include "src/metrics/metrics.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* For durations: a missing one has taken no time. */
static double or_zero(double v)
{
    return isfinite(v) && v > 0 ? v : 0;
}

/* Adds time during which the run continued. */
static void pass(struct sh_report_run *run, double seconds)
{
    run->wall += or_zero(seconds);
    run->clock += or_zero(seconds);
}

/* After a rollback, or a start from a checkpoint, steps are repeated: the earlier steps from `step` on were discarded,
 * so they are dropped. Returns the number of steps. */
static int64_t give_up_from(struct sh_report_run *run, int64_t step)
{
    int n = run->n_steps;

    while (run->n_steps && run->steps[run->n_steps - 1].step >= step)
        run->n_steps--;
    while (run->n_validations && run->validations[run->n_validations - 1].step >= step)
        run->n_validations--;
    if (run->from > run->n_steps)
        run->from = run->n_steps;
    return n - run->n_steps;
}

/* A start that did nothing, or whose steps were discarded, is forgotten. */
static void add_start(struct sh_report_run *run, struct sh_report_start start)
{
    while (run->n_starts && run->starts[run->n_starts - 1].step >= start.step)
        run->n_starts--;
    run->starts = sh_grow(run->starts, run->n_starts, &run->cap_starts, sizeof *run->starts);
    run->starts[run->n_starts++] = start;
}

/* Finds the rank that is behind, by a majority vote over the run: the slowest rank of each gathering has one vote, and
 * two different votes cancel out. The majority's rank remains, if there is one; `slowest` counts its surplus of votes.
 * */
static void take_pace(struct sh_report_run *run, const struct sh_pace_metrics *pace)
{
    if (!pace->node)
        return;
    run->paces++;
    if (!(pace->most > 1.1 * pace->median))
        return;
    if (run->slow_node && pace->slowest == run->slow_rank) {
        run->slowest++;
        return;
    }
    if (run->slow_node && --run->slowest > 0)
        return;
    free(run->slow_node);
    run->slow_node = sh_strdup(pace->node);
    run->slow_rank = pace->slowest;
    run->slowest = 1;
}

/* Keeps the lowest clock of all lines, with its place. */
static void take_held(struct sh_report_gpus *g, const struct sh_gpu_metrics *gpu, const json_t *by)
{
    double mhz = or_zero(gpu->mhz);

    g->held++;
    for (int i = 0; i < SH_REPORT_HOLDS; i++)
        for (size_t k = 0; k < json_array_size(by); k++) {
            const char *name = json_string_value(json_array_get(by, k));

            g->by[i] = g->by[i] || (name && !strcmp(name, sh_nvml_reason(i)));
        }
    if (mhz <= 0 || (g->mhz > 0 && mhz >= g->mhz) || !gpu->node)
        return;
    g->mhz = mhz;
    g->most_mhz = or_zero(gpu->most_mhz);
    g->rank = gpu->slowest;
    free(g->node);
    g->node = sh_strdup(gpu->node);
}

static void take_gpus(struct sh_report_gpus *g, const struct sh_gpu_metrics *gpu, const json_t *by)
{
    double watts = or_zero(gpu->limit_watts), usual = or_zero(gpu->usual_watts);

    if (!gpu->gpus)
        return;
    g->lines++;
    g->celsius = fmax(g->celsius, or_zero(gpu->celsius));
    if (watts > 0 && usual > 0 && (g->watts <= 0 || watts / usual < g->watts / g->usual_watts)) {
        g->watts = watts;
        g->usual_watts = usual;
    }
    if (gpu->held > 0)
        take_held(g, gpu, by);
}

/* The rest of the step after compute, communication, moves to a file and data is "other"; a checkpoint is added when
 * its line follows. */
static void split_time(const struct sh_step_time *t, double spent[SH_SPENT_N])
{
    spent[SH_SPENT_COMPUTE] = or_zero(t->compute);
    spent[SH_SPENT_COMM] = or_zero(t->exposed_comm);
    spent[SH_SPENT_OFFLOAD] = or_zero(t->exposed_offload);
    spent[SH_SPENT_DATA] = or_zero(t->data);
    spent[SH_SPENT_OTHER] = or_zero(t->step - spent[SH_SPENT_COMPUTE] - spent[SH_SPENT_COMM] - spent[SH_SPENT_OFFLOAD] -
                                    spent[SH_SPENT_DATA]);
}

/* Of the line of a start, until its first step shows that it did something. */
struct begun {
    bool restart, from_memory;
    int64_t repeats;
    int64_t warming; /* steps that are not measured */
};

/* The first step of a start says how long it took to get there. */
static void take_first_step(struct sh_report_run *run, const struct sh_step_metrics *m, struct begun *b)
{
    double sum = 0;

    for (int i = 0; i < SH_PHASES; i++)
        sum += run->start[i] = or_zero(m->start[i]);
    if (run->launched > 0 && run->n_starts == 1 && !b->restart)
        run->launched -= fmax(sum - or_zero(m->start[SH_PHASE_STEP]), 0);
    run->restarts += b->restart;
    run->from_memory += b->from_memory;
    run->repeated += b->repeats;
    b->restart = b->from_memory = false;
    b->repeats = 0;
}

/* The first steps of a start are marked, since they warm up. */
static void take_step(struct sh_report_run *run, const struct sh_step_metrics *m, const json_t *line, struct begun *b)
{
    struct sh_report_step s = {.step = m->step,
                               .loss = m->loss,
                               .grad_norm = m->grad_norm,
                               .lr = m->lr,
                               .loss_scale = m->loss_scale,
                               .expert_load = m->routers.most,
                               .reward_chosen = m->pairs.chosen,
                               .reward_margin = m->pairs.margin,
                               .reward = m->pairs.reward,
                               .reward_least = m->pairs.least,
                               .reward_most = m->pairs.most,
                               .kl = m->teacher.kl,
                               .teacher_mass = m->teacher.mass,
                               .token_accuracy = m->teacher.accuracy,
                               .expert_waves = m->routers.mean_waves,
                               .first = b->warming > 0,
                               .skipped = m->skipped,
                               .tokens_per_second = m->tokens_per_second};

    split_time(&m->time, s.seconds);
    give_up_from(run, s.step);
    run->steps = sh_grow(run->steps, run->n_steps, &run->cap_steps, sizeof *run->steps);
    pass(run, m->time.step);
    s.at = run->clock;
    run->steps[run->n_steps++] = s;
    run->tokens = m->tokens_seen;
    run->ended_at = run->clock;
    if (m->start[SH_PHASE_STEP] > 0 || b->restart)
        take_first_step(run, m, b);
    take_pace(run, &m->pace);
    take_gpus(&run->gpus, &m->gpu, json_object_get(json_object_get(line, "gpu"), "held_by"));
    run->arena_bytes = m->arena_bytes;
    if (m->peak_rss_bytes > run->peak_rss_bytes)
        run->peak_rss_bytes = m->peak_rss_bytes;
    b->warming -= b->warming > 0;
}

/* Steps only increase, since give_up_from() has cut the list. */
static void take_validation(struct sh_report_run *run, const struct sh_validation_metrics *m)
{
    double seconds = or_zero(m->seconds);

    pass(run, seconds);
    run->validations = sh_grow(run->validations, run->n_validations, &run->cap_validations, sizeof *run->validations);
    run->validations[run->n_validations++] =
        (struct sh_report_point){.step = m->step, .loss = m->loss, .at = run->clock, .seconds = seconds};
}

/* Training pauses after the step that is saved. A save in the background is reported later, so its step is searched
 * for. */
static void take_checkpoint(struct sh_report_run *run, const struct sh_checkpoint_metrics *m)
{
    int i = run->n_steps - 1;

    /* From the end, since it is usually one of the last steps. */
    pass(run, m->stall);
    while (i >= 0 && run->steps[i].step > m->step)
        i--;
    if (i >= 0 && run->steps[i].step == m->step)
        run->steps[i].seconds[SH_SPENT_CHECKPOINT] += or_zero(m->stall);
}

/* "2030-01-31T12:00:00Z" in readable form; NULL if the line has something else. */
static char *moment(const json_t *line)
{
    const char *text = json_string_value(json_object_get(line, "time"));

    if (!text || strlen(text) != strlen("2030-01-31T12:00:00Z") || text[10] != 'T' || text[19] != 'Z')
        return NULL;
    return sh_strfmt("%.10s %.5s UTC", text, text + 11);
}

/* The same in seconds since 1970; 0 if the line has something else. */
static double seconds_of(const json_t *line)
{
    const char *text = json_string_value(json_object_get(line, "time"));
    struct tm utc = {.tm_year = 0};
    const char *end = text ? strptime(text, "%Y-%m-%dT%H:%M:%SZ", &utc) : NULL;

    return end && !*end ? (double)timegm(&utc) : 0;
}

/* A text that is absent leaves *to unchanged. */
static void copy_text(char **to, const char *text)
{
    if (!text)
        return;
    free(*to);
    *to = sh_strdup(text);
}

/* A run may continue with other ranks: speed and memory are those of the newest start. */
static void take_start(struct sh_report_run *run, const struct sh_start_metrics *m, const json_t *line, struct begun *b)
{
    const json_t *hosts = json_object_get(line, "hosts");

    b->restart = b->restart || run->n_steps;
    b->from_memory = m->resumed_from && !strcmp(m->resumed_from, SH_METRICS_FROM_MEMORY);
    b->repeats += give_up_from(run, m->step + 1);
    if (m->ranks != run->ranks) {
        run->from = run->n_steps;
        run->peak_rss_bytes = 0;
    }
    run->ranks = m->ranks;
    if (!run->began)
        run->began = moment(line);
    run->clock = seconds_of(line);
    if (run->launched <= 0)
        run->launched = run->clock;
    copy_text(&run->device, m->device);
    copy_text(&run->version, json_string_value(json_object_get(line, "version")));
    copy_text(&run->host, json_string_value(json_array_get(hosts, 0)));
    if (json_array_size(hosts))
        run->n_hosts = (int)json_array_size(hosts);
    if (m->parameters > 0)
        run->parameters = m->parameters;
    run->flops = or_zero(m->flops_causal);
    run->peak_tflops = or_zero(m->peak_tflops);
    run->threads = m->threads;
    run->cores = m->cores;
    run->replicate = m->replicate;
    run->shard = m->shard;
    add_start(run, (struct sh_report_start){m->step, m->ranks, m->replicate, m->shard});
    b->warming = run->warm_up;
}

/* Other kinds of lines are skipped. */
static void take(struct sh_report_run *run, const json_t *line, struct begun *b)
{
    union sh_metrics_any m;

    switch (sh_metrics_read(line, &m)) {
    case SH_METRICS_START: take_start(run, &m.start, line, b); break;
    case SH_METRICS_STEP: take_step(run, &m.step, line, b); break;
    case SH_METRICS_VALIDATION: take_validation(run, &m.validation); break;
    case SH_METRICS_CHECKPOINT: take_checkpoint(run, &m.checkpoint); break;
    default: break;
    }
}

/* A killed job leaves the start of a line; the next start continues after it. Text that does not even start like an
 * object is an error. */
static sh_rc take_text(struct sh_report_run *run, const char *text, size_t bytes, const char *path, int number,
                       struct begun *b)
{
    json_t *line = json_loadb(text, bytes, 0, NULL);

    if (json_is_object(line))
        take(run, line, b);
    else if (text[0] == '{')
        run->unreadable++;
    else if (bytes > 1) {
        json_decref(line);
        return sh_fail(SH_E_DATA, "%s:%d: not a line of metrics, which are JSON objects", path, number);
    }
    json_decref(line);
    return SH_OK;
}

double *sh_report_speeds(const struct sh_report_run *run, int *n)
{
    double *speeds = sh_calloc((size_t)run->n_steps + 1, sizeof *speeds);

    *n = 0;
    for (int i = run->from; i < run->n_steps; i++)
        if (!run->steps[i].first && run->steps[i].tokens_per_second > 0)
            speeds[(*n)++] = run->steps[i].tokens_per_second;
    sh_sort_doubles(*n, speeds);
    return speeds;
}

/* The median ignores the rare long step: a save, a burst of a neighbour's traffic on the network. */
static double median_speed(const struct sh_report_run *run)
{
    int n;
    double *speeds = sh_report_speeds(run, &n), median = sh_median(n, speeds);

    free(speeds);
    return median;
}

/* Of the time from the launch of the first start to the end of the last step, the share in which steps and validations
 * were done that nobody had to repeat; 0: not known. */
static double goodput_of(const struct sh_report_run *run)
{
    double good = 0, all = run->ended_at - run->launched;

    for (int i = 0; i < run->n_steps; i++)
        for (int k = 0; k < SH_SPENT_N; k++)
            good += run->steps[i].seconds[k];
    for (int i = 0; i < run->n_validations; i++)
        good += run->validations[i].seconds;
    return run->launched > 0 && all > 0 ? fmin(good / all, 1) : 0;
}

/* Counts from the last change of the number of ranks, without first steps: figures of one setting and not of a mixture.
 * */
static void sum_up(struct sh_report_run *run)
{
    double total = 0;
    int measured = 0;

    run->goodput = goodput_of(run);
    run->tokens_per_second = median_speed(run);
    run->mfu = sh_mfu(run->tokens_per_second, run->flops, run->ranks, run->peak_tflops);
    for (int i = run->from; i < run->n_steps; i++) {
        if (run->steps[i].first)
            continue;
        for (int k = 0; k < SH_SPENT_N; k++)
            run->share[k] += run->steps[i].seconds[k];
        measured++;
    }
    for (int k = 0; k < SH_SPENT_N; k++)
        total += run->share[k];
    for (int k = 0; k < SH_SPENT_N && total > 0; k++)
        run->share[k] /= total;
    run->seconds = measured ? total / measured : 0;
}

/* Accepts only regular files: a FIFO would block. */
static sh_rc open_file(const char *path, FILE **out)
{
    int64_t size;
    int fd;

    SH_TRY(sh_file_open(path, &fd, &size));
    *out = fdopen(fd, "r");
    if (*out)
        return SH_OK;
    close(fd);
    return sh_fail(SH_E_DATA, "open %s: %s", path, strerror(errno));
}

/* Reads line by line: a long run has a file of hundreds of MB, of which only one line is in memory at a time. */
sh_rc sh_report_read_metrics(const char *path, int64_t warm_up, struct sh_report_run *run)
{
    char *text = NULL;
    size_t room = 0;
    ssize_t bytes;
    struct begun b = {.warming = warm_up};
    sh_rc rc = SH_OK;
    FILE *f;

    run->warm_up = warm_up;
    SH_TRY(open_file(path, &f));
    for (int n = 1; rc == SH_OK && (bytes = getline(&text, &room, f)) > 0; n++)
        rc = take_text(run, text, (size_t)bytes, path, n, &b);
    if (rc == SH_OK && ferror(f))
        rc = sh_fail(SH_E_DATA, "read %s: %s", path, strerror(errno));
    free(text);
    fclose(f);
    if (rc == SH_OK)
        sum_up(run);
    return rc;
}
