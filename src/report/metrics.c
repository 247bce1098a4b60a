/* metrics.jsonl of one run into steps, validations and summary figures. A file holds all starts of a run in turn: steps
 * that were done again after a resume or a rollback replace those before, so that what remains is the course that led
 * to the end. */
#include "src/report/parts.h"

#include "io/file/file.h"
#include "src/base/mem.h"
#include "src/metrics/metrics.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is not there, was not finite and is null, or is a size that no run has and no axis could show, is NAN. */
static double number(const json_t *object, const char *key)
{
    double v = json_number_value(json_object_get(object, key)), size = fabs(v);

    return json_is_number(json_object_get(object, key)) && (size <= 0 || (size > 1e-30 && size < 1e30)) ? v : NAN;
}

/* 0 for what is not there. */
static int64_t whole(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* For durations, where what is missing has taken no time. */
static double or_zero(double v)
{
    return isfinite(v) && v > 0 ? v : 0;
}

/* After going back, to a checkpoint or by a start from one, steps are done again: those from `step` on are of a past
 * that was given up. */
static void give_up_from(struct sh_report_run *run, int64_t step)
{
    while (run->n_steps && run->steps[run->n_steps - 1].step >= step)
        run->n_steps--;
    while (run->n_validations && run->validations[run->n_validations - 1].step >= step)
        run->n_validations--;
    if (run->from > run->n_steps)
        run->from = run->n_steps;
}

/* What is left of the step after compute, communication and data is "other"; a checkpoint is added when its line comes.
 * The first step of a start is marked, since it warms up. */
static void take_step(struct sh_report_run *run, const json_t *line, bool *started)
{
    const json_t *t = json_object_get(line, "seconds");
    struct sh_report_step s = {.step = whole(line, "step"),
                               .loss = number(line, "loss"),
                               .first = *started,
                               .tokens_per_second = number(line, "tokens_per_second")};
    double *spent = s.seconds;

    spent[SH_SPENT_COMPUTE] = or_zero(number(t, "compute"));
    spent[SH_SPENT_COMM] = or_zero(number(t, "exposed_comm"));
    spent[SH_SPENT_DATA] = or_zero(number(t, "data"));
    spent[SH_SPENT_OTHER] =
        or_zero(number(t, "step") - spent[SH_SPENT_COMPUTE] - spent[SH_SPENT_COMM] - spent[SH_SPENT_DATA]);
    give_up_from(run, s.step);
    run->steps = sh_grow(run->steps, run->n_steps, &run->cap_steps, sizeof *run->steps);
    run->steps[run->n_steps++] = s;
    run->arena_bytes = whole(line, "arena_bytes");
    if (json_object_get(line, "flops_per_token_causal")) /* older runs have it in each line */
        run->flops = or_zero(number(line, "flops_per_token_causal"));
    if (whole(line, "peak_rss_bytes") > run->peak_rss_bytes)
        run->peak_rss_bytes = whole(line, "peak_rss_bytes");
    *started = false;
}

/* Steps only grow, since give_up_from() has cut the list. */
static void take_validation(struct sh_report_run *run, const json_t *line)
{
    struct sh_report_point *p;

    run->validations = sh_grow(run->validations, run->n_validations, &run->cap_validations, sizeof *run->validations);
    p = &run->validations[run->n_validations++];
    *p = (struct sh_report_point){.step = whole(line, "step"), .loss = number(line, "validation_loss")};
}

/* Training stands still after the step that is saved. A save in the background is told later, so the step is looked
 * for. */
static void take_checkpoint(struct sh_report_run *run, const json_t *line)
{
    int64_t step = whole(line, "step");
    int i = run->n_steps - 1;

    /* From the end: it is most often one of the last steps. */
    while (i >= 0 && run->steps[i].step > step)
        i--;
    if (i >= 0 && run->steps[i].step == step)
        run->steps[i].seconds[SH_SPENT_CHECKPOINT] += or_zero(number(line, "stall_seconds"));
}

/* A run may go on with other ranks: speed and memory are those of the newest. */
static void take_start(struct sh_report_run *run, const json_t *line, bool *started)
{
    const json_t *mesh = json_object_get(line, "mesh");
    int ranks = (int)whole(line, "ranks");

    give_up_from(run, whole(line, "step") + 1);
    if (ranks != run->ranks) {
        run->from = run->n_steps;
        run->peak_rss_bytes = 0;
    }
    run->ranks = ranks;
    run->flops = or_zero(number(line, "flops_per_token_causal"));
    run->peak_tflops = or_zero(number(line, "peak_tflops"));
    run->replicate = (int)whole(mesh, "replicate");
    run->shard = (int)whole(mesh, "shard");
    *started = true;
}

/* Lines are told by their keys; other kinds are passed over. */
static void take(struct sh_report_run *run, const json_t *line, bool *started)
{
    const char *event = json_string_value(json_object_get(line, "event"));

    if (event && !strcmp(event, "start"))
        take_start(run, line, started);
    else if (json_object_get(line, "loss"))
        take_step(run, line, started);
    else if (json_object_get(line, "validation_loss"))
        take_validation(run, line);
    else if (json_object_get(line, "checkpoint"))
        take_checkpoint(run, line);
}

/* A job that is killed leaves the beginning of a line; the next start continues after it. Text that does not even
 * begin as an object is no such line. */
static sh_rc take_text(struct sh_report_run *run, const char *text, size_t bytes, const char *path, int number,
                       bool *started)
{
    json_t *line = json_loadb(text, bytes, 0, NULL);

    if (json_is_object(line))
        take(run, line, started);
    else if (text[0] == '{')
        run->unreadable++;
    else if (bytes > 1) {
        json_decref(line);
        return sh_fail(SH_E_DATA, "%s:%d: not a line of metrics, which are objects of JSON", path, number);
    }
    json_decref(line);
    return SH_OK;
}

/* Ascending. */
static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median leaves out the rare long step: a save, a neighbour's storm on the network. */
static double median_speed(const struct sh_report_run *run)
{
    double *speeds = sh_calloc((size_t)run->n_steps + 1, sizeof *speeds), median = 0;
    int n = 0;

    for (int i = run->from; i < run->n_steps; i++)
        if (!run->steps[i].first && run->steps[i].tokens_per_second > 0)
            speeds[n++] = run->steps[i].tokens_per_second;
    qsort(speeds, (size_t)n, sizeof *speeds, compare);
    if (n)
        median = (speeds[(n - 1) / 2] + speeds[n / 2]) / 2;
    free(speeds);
    return median;
}

/* From the last change of the number of ranks on, without first steps: figures of one setting and not of a mixture. */
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

/* Not what is no file: a FIFO would be waited for. */
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

/* Line by line: a long run has a file of hundreds of MB, of which one line is in memory at a time. */
sh_rc sh_report_read_metrics(const char *path, struct sh_report_run *run)
{
    char *text = NULL;
    size_t room = 0;
    ssize_t bytes;
    bool started = true;
    sh_rc rc = SH_OK;
    FILE *f;

    SH_TRY(open_file(path, &f));
    for (int n = 1; rc == SH_OK && (bytes = getline(&text, &room, f)) > 0; n++)
        rc = take_text(run, text, (size_t)bytes, path, n, &started);
    if (rc == SH_OK && ferror(f))
        rc = sh_fail(SH_E_DATA, "read %s: %s", path, strerror(errno));
    free(text);
    fclose(f);
    if (rc == SH_OK)
        sum_up(run);
    return rc;
}
