/* Reads metrics.jsonl of one run into steps, validations and summary figures. The file contains all starts of a run in
 * turn: steps that were repeated after a resume or a rollback replace the earlier ones, so that the course that led
 * to the end remains. */
#include "src/tools/report/parts.h"

#include "io/file/file.h"
#include "src/base/median.h"
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

/* NAN if the value is absent, null because it was not finite, or of a size that no run has and no axis could show. */
static double number(const json_t *object, const char *key)
{
    double v = json_number_value(json_object_get(object, key)), size = fabs(v);

    return json_is_number(json_object_get(object, key)) && (size <= 0 || (size > 1e-30 && size < 1e30)) ? v : NAN;
}

/* Returns 0 for an absent value. */
static int64_t whole(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

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
 * so they are dropped. */
static void give_up_from(struct sh_report_run *run, int64_t step)
{
    while (run->n_steps && run->steps[run->n_steps - 1].step >= step)
        run->n_steps--;
    while (run->n_validations && run->validations[run->n_validations - 1].step >= step)
        run->n_validations--;
    if (run->from > run->n_steps)
        run->from = run->n_steps;
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
static void take_pace(struct sh_report_run *run, const json_t *pace)
{
    double median = number(pace, "median"), most = number(pace, "max");
    const char *node = json_string_value(json_object_get(pace, "slowest_node"));
    int rank = (int)whole(pace, "slowest_rank");

    if (!json_is_object(pace))
        return;
    run->paces++;
    if (!(most > 1.1 * median) || !node)
        return;
    if (run->slow_node && rank == run->slow_rank) {
        run->slowest++;
        return;
    }
    if (run->slow_node && --run->slowest > 0)
        return;
    free(run->slow_node);
    run->slow_node = sh_strdup(node);
    run->slow_rank = rank;
    run->slowest = 1;
}

/* Keeps the lowest clock of all lines, with its place. */
static void take_held(struct sh_report_gpus *g, const json_t *gpu)
{
    const json_t *by = json_object_get(gpu, "held_by");
    const char *node = json_string_value(json_object_get(gpu, "slowest_node"));
    double mhz = or_zero(number(gpu, "clock_mhz"));

    g->held++;
    for (int i = 0; i < SH_REPORT_HOLDS; i++)
        for (size_t k = 0; k < json_array_size(by); k++) {
            const char *name = json_string_value(json_array_get(by, k));

            g->by[i] = g->by[i] || (name && !strcmp(name, sh_nvml_reason(i)));
        }
    if (mhz <= 0 || (g->mhz > 0 && mhz >= g->mhz) || !node)
        return;
    g->mhz = mhz;
    g->most_mhz = or_zero(number(gpu, "highest_clock_mhz"));
    g->rank = (int)whole(gpu, "slowest_rank");
    free(g->node);
    g->node = sh_strdup(node);
}

static void take_gpus(struct sh_report_gpus *g, const json_t *gpu)
{
    double watts = or_zero(number(gpu, "limit_watts")), usual = or_zero(number(gpu, "default_limit_watts"));

    if (!json_is_object(gpu))
        return;
    g->lines++;
    g->celsius = fmax(g->celsius, or_zero(number(gpu, "celsius")));
    if (watts > 0 && usual > 0 && (g->watts <= 0 || watts / usual < g->watts / g->usual_watts)) {
        g->watts = watts;
        g->usual_watts = usual;
    }
    if (whole(gpu, "held") > 0)
        take_held(g, gpu);
}

/* The rest of the step after compute, communication, moves to a file and data is "other"; a checkpoint is added when
 * its line follows. The first steps of a start are marked, since they warm up. */
static void take_step(struct sh_report_run *run, const json_t *line, int64_t *warming)
{
    const json_t *t = json_object_get(line, "seconds");
    struct sh_report_step s = {.step = whole(line, "step"),
                               .loss = number(line, "loss"),
                               .grad_norm = number(line, "grad_norm"),
                               .lr = number(line, "lr"),
                               .loss_scale = number(line, "loss_scale"),
                               .first = *warming > 0,
                               .skipped = json_object_get(line, "skipped"),
                               .tokens_per_second = number(line, "tokens_per_second")};
    double *spent = s.seconds;

    spent[SH_SPENT_COMPUTE] = or_zero(number(t, "compute"));
    spent[SH_SPENT_COMM] = or_zero(number(t, "exposed_comm"));
    spent[SH_SPENT_OFFLOAD] = or_zero(number(t, "exposed_offload"));
    spent[SH_SPENT_DATA] = or_zero(number(t, "data"));
    spent[SH_SPENT_OTHER] = or_zero(number(t, "step") - spent[SH_SPENT_COMPUTE] - spent[SH_SPENT_COMM] -
                                    spent[SH_SPENT_OFFLOAD] - spent[SH_SPENT_DATA]);
    give_up_from(run, s.step);
    run->steps = sh_grow(run->steps, run->n_steps, &run->cap_steps, sizeof *run->steps);
    pass(run, number(t, "step"));
    s.at = run->clock;
    run->steps[run->n_steps++] = s;
    run->tokens = whole(line, "tokens_seen");
    take_pace(run, json_object_get(line, "rank_seconds"));
    take_gpus(&run->gpus, json_object_get(line, "gpu"));
    run->arena_bytes = whole(line, "arena_bytes");
    if (json_object_get(line, "flops_per_token_causal")) /* older versions write it in each line */
        run->flops = or_zero(number(line, "flops_per_token_causal"));
    if (whole(line, "peak_rss_bytes") > run->peak_rss_bytes)
        run->peak_rss_bytes = whole(line, "peak_rss_bytes");
    *warming -= *warming > 0;
}

/* Steps only increase, since give_up_from() has cut the list. */
static void take_validation(struct sh_report_run *run, const json_t *line)
{
    struct sh_report_point *p;
    double seconds = or_zero(number(line, "seconds"));

    pass(run, seconds);
    run->validations = sh_grow(run->validations, run->n_validations, &run->cap_validations, sizeof *run->validations);
    p = &run->validations[run->n_validations++];
    *p = (struct sh_report_point){
        .step = whole(line, "step"), .loss = number(line, "validation_loss"), .at = run->clock, .seconds = seconds};
}

/* Training pauses after the step that is saved. A save in the background is reported later, so its step is searched
 * for. */
static void take_checkpoint(struct sh_report_run *run, const json_t *line)
{
    int64_t step = whole(line, "step");
    int i = run->n_steps - 1;

    /* From the end, since it is usually one of the last steps. */
    pass(run, number(line, "stall_seconds"));
    while (i >= 0 && run->steps[i].step > step)
        i--;
    if (i >= 0 && run->steps[i].step == step)
        run->steps[i].seconds[SH_SPENT_CHECKPOINT] += or_zero(number(line, "stall_seconds"));
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

/* An absent key, as in files of older versions, leaves *text unchanged. */
static void copy_text(char **text, const json_t *line, const char *key)
{
    const char *found = json_string_value(json_object_get(line, key));

    if (!found)
        return;
    free(*text);
    *text = sh_strdup(found);
}

static void take_hosts(struct sh_report_run *run, const json_t *hosts)
{
    const char *first = json_string_value(json_array_get(hosts, 0));

    if (!first)
        return;
    free(run->host);
    run->host = sh_strdup(first);
    run->n_hosts = (int)json_array_size(hosts);
}

/* A run may continue with other ranks: speed and memory are those of the newest start. */
static void take_start(struct sh_report_run *run, const json_t *line, int64_t *warming)
{
    const json_t *mesh = json_object_get(line, "mesh");
    int ranks = (int)whole(line, "ranks");

    give_up_from(run, whole(line, "step") + 1);
    if (ranks != run->ranks) {
        run->from = run->n_steps;
        run->peak_rss_bytes = 0;
    }
    run->ranks = ranks;
    if (!run->began)
        run->began = moment(line);
    run->clock = seconds_of(line);
    copy_text(&run->device, line, "device");
    copy_text(&run->version, line, "version");
    take_hosts(run, json_object_get(line, "hosts"));
    if (whole(line, "parameters") > 0)
        run->parameters = whole(line, "parameters");
    run->flops = or_zero(number(line, "flops_per_token_causal"));
    run->peak_tflops = or_zero(number(line, "peak_tflops"));
    run->threads = (int)whole(line, "threads");
    run->cores = (int)whole(line, "cores");
    run->replicate = (int)whole(mesh, "replicate");
    run->shard = (int)whole(mesh, "shard");
    add_start(run, (struct sh_report_start){whole(line, "step"), ranks, run->replicate, run->shard});
    *warming = run->warm_up;
}

/* Lines are recognized by their keys; other kinds are skipped. */
static void take(struct sh_report_run *run, const json_t *line, int64_t *warming)
{
    const char *event = json_string_value(json_object_get(line, "event"));

    if (event && !strcmp(event, "start"))
        take_start(run, line, warming);
    else if (json_object_get(line, "loss"))
        take_step(run, line, warming);
    else if (json_object_get(line, "validation_loss"))
        take_validation(run, line);
    else if (json_object_get(line, "checkpoint"))
        take_checkpoint(run, line);
}

/* A killed job leaves the start of a line; the next start continues after it. Text that does not even start like an
 * object is an error. */
static sh_rc take_text(struct sh_report_run *run, const char *text, size_t bytes, const char *path, int number,
                       int64_t *warming)
{
    json_t *line = json_loadb(text, bytes, 0, NULL);

    if (json_is_object(line))
        take(run, line, warming);
    else if (text[0] == '{')
        run->unreadable++;
    else if (bytes > 1) {
        json_decref(line);
        return sh_fail(SH_E_DATA, "%s:%d: not a line of metrics, which are JSON objects", path, number);
    }
    json_decref(line);
    return SH_OK;
}

/* The median ignores the rare long step: a save, a burst of a neighbour's traffic on the network. */
static double median_speed(const struct sh_report_run *run)
{
    double *speeds = sh_calloc((size_t)run->n_steps + 1, sizeof *speeds), median;
    int n = 0;

    for (int i = run->from; i < run->n_steps; i++)
        if (!run->steps[i].first && run->steps[i].tokens_per_second > 0)
            speeds[n++] = run->steps[i].tokens_per_second;
    median = sh_median(n, speeds);
    free(speeds);
    return median;
}

/* Counts from the last change of the number of ranks, without first steps: figures of one setting and not of a mixture.
 * */
static void sum_up(struct sh_report_run *run)
{
    double total = 0;
    int measured = 0;

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
    int64_t warming = warm_up;
    sh_rc rc = SH_OK;
    FILE *f;

    run->warm_up = warm_up;
    SH_TRY(open_file(path, &f));
    for (int n = 1; rc == SH_OK && (bytes = getline(&text, &room, f)) > 0; n++)
        rc = take_text(run, text, (size_t)bytes, path, n, &warming);
    if (rc == SH_OK && ferror(f))
        rc = sh_fail(SH_E_DATA, "read %s: %s", path, strerror(errno));
    free(text);
    fclose(f);
    if (rc == SH_OK)
        sum_up(run);
    return rc;
}
