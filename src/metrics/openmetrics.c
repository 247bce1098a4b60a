/* The newest figures of a run as a file of OpenMetrics text, for a collector of files such as node_exporter's.
 * Source: the OpenMetrics 1.0 specification; names of metrics end in their unit, counters in _total. */
#include "src/metrics/values.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/time.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const struct {
    const char *name; /* without _total */
    const char *unit; /* (optional) the name ends with it */
    const char *help;
} rows[SH_EXPOSED_N] = {
    [SH_EXPOSED_STEPS] = {"sherd_steps", NULL, "Training steps done by this process."},
    [SH_EXPOSED_TOKENS] = {"sherd_tokens", NULL, "Tokens trained on by this process, over all ranks."},
    [SH_EXPOSED_SKIPPED] = {"sherd_skipped_steps", NULL, "Steps whose update was left out."},
    [SH_EXPOSED_CHECKPOINTS] = {"sherd_checkpoints", NULL, "Checkpoints committed."},
    [SH_EXPOSED_FAILED_CHECKPOINTS] = {"sherd_failed_checkpoints", NULL, "Saves that failed."},
    [SH_EXPOSED_ROLLBACKS] = {"sherd_rollbacks", NULL, "Times the run went back to a checkpoint."},
    [SH_EXPOSED_STEP] = {"sherd_step", NULL, "Newest step of the run."},
    [SH_EXPOSED_STEP_TIMESTAMP] = {"sherd_step_timestamp_seconds", "seconds", "When the newest step ended, since 1970."},
    [SH_EXPOSED_LOSS] = {"sherd_loss", NULL, "Training loss of the newest step, nats per token."},
    [SH_EXPOSED_GRAD_NORM] = {"sherd_grad_norm", NULL, "Norm of the gradient, before clipping."},
    [SH_EXPOSED_LR] = {"sherd_learning_rate", NULL, "Learning rate."},
    [SH_EXPOSED_LOSS_SCALE] = {"sherd_loss_scale", NULL, "Scale of the loss of the newest step, in float16."},
    [SH_EXPOSED_SPEED] = {"sherd_tokens_per_second", NULL, "Tokens per second of the newest step, over all ranks."},
    [SH_EXPOSED_MFU] = {"sherd_mfu_ratio", "ratio", "Model FLOPs utilization of the newest step."},
    [SH_EXPOSED_STEP_SECONDS] = {"sherd_step_seconds", "seconds", "Duration of the newest step."},
    [SH_EXPOSED_COMPUTE_SECONDS] = {"sherd_compute_seconds", "seconds", "Computation in the newest step."},
    [SH_EXPOSED_COMM_SECONDS] = {"sherd_exposed_comm_seconds", "seconds",
                                 "Waiting for communication in the newest step."},
    [SH_EXPOSED_OFFLOAD_SECONDS] = {"sherd_exposed_offload_seconds", "seconds",
                                    "Waiting for moves between tiers in the newest step."},
    [SH_EXPOSED_OFFLOAD_READ] = {"sherd_offload_read_bytes", "bytes",
                                 "Moved to the device of rank 0 in the newest step."},
    [SH_EXPOSED_OFFLOAD_WRITTEN] = {"sherd_offload_written_bytes", "bytes",
                                    "Moved from the device of rank 0 in the newest step."},
    [SH_EXPOSED_DATA_SECONDS] = {"sherd_data_seconds", "seconds", "Reading data in the newest step."},
    [SH_EXPOSED_RSS_BYTES] = {"sherd_peak_rss_bytes", "bytes", "Peak resident memory, largest over the ranks."},
    [SH_EXPOSED_ARENA_BYTES] = {"sherd_arena_bytes", "bytes", "Planned memory of a rank."},
    [SH_EXPOSED_GPU_BYTES] = {"sherd_gpu_used_bytes", "bytes", "Memory in use on a GPU, largest over the ranks."},
    [SH_EXPOSED_GPU_WATTS] = {"sherd_gpu_power_watts", "watts", "Power of a GPU, mean over the ranks."},
    [SH_EXPOSED_GPU_HERTZ] = {"sherd_gpu_clock_hertz", "hertz", "Clock of the slowest GPU's multiprocessors."},
    [SH_EXPOSED_GPU_CELSIUS] = {"sherd_gpu_temperature_celsius", "celsius", "Temperature of the hottest GPU."},
    [SH_EXPOSED_GPUS_HELD] = {"sherd_gpus_held", NULL, "Ranks whose GPU clock is throttled, by power, heat or a setting."},
    [SH_EXPOSED_VALIDATION_LOSS] = {"sherd_validation_loss", NULL, "Newest validation loss, nats per token."},
    [SH_EXPOSED_CHECKPOINT_STEP] = {"sherd_checkpoint_step", NULL, "Step of the newest checkpoint."},
    [SH_EXPOSED_CHECKPOINT_SECONDS] = {"sherd_checkpoint_seconds", "seconds", "Duration of the newest save."},
};
/* clang-format on */

/* `known`, not NAN, marks the values that exist: a loss that is NaN is reported as NaN. */
struct sh_exposition {
    char *path, *labels;
    double value[SH_EXPOSED_N]; /* a gauge is left out until it is known; counters are known from the start */
    bool known[SH_EXPOSED_N];
    int64_t written_ns;
};

/* Rows before SH_EXPOSED_STEP. */
static bool is_counter(enum sh_exposed what)
{
    return what < SH_EXPOSED_STEP;
}

/* Write a label in quotes; three characters are escaped. */
static void write_label(FILE *out, const char *name, const char *text)
{
    fprintf(out, "%s=\"", name);
    for (; *text; text++)
        if (*text == '\n')
            fputs("\\n", out);
        else
            fprintf(out, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    fputs("\"", out);
}

/* NULL: out of memory; freed with free(). */
static char *make_labels(const struct sh_metrics_labels *l)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    if (!out)
        return NULL;
    write_label(out, "job", l->job);
    fputc(',', out);
    write_label(out, "run", l->run);
    fputc(',', out);
    write_label(out, "host", l->host);
    fprintf(out, ",rank=\"%d\"", l->rank);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* Written once at the start with counters at 0, so that a rate over the first minutes is right. */
sh_rc sh_exposition_open(const char *path, const struct sh_metrics_labels *labels, struct sh_exposition **out)
{
    char *text = make_labels(labels);
    struct sh_exposition *e;
    sh_rc rc;

    if (!text)
        return sh_fail(SH_E_MEMORY, "out of memory: no room for the labels of %s", path);
    e = sh_calloc(1, sizeof *e);
    *e = (struct sh_exposition){.path = sh_strdup(path), .labels = text};
    for (int i = 0; i < SH_EXPOSED_N; i++)
        e->known[i] = is_counter((enum sh_exposed)i);
    rc = sh_exposition_write(e, true);
    if (rc == SH_OK)
        *out = e;
    else
        sh_exposition_close(e);
    return rc;
}

/* In memory only; sh_exposition_write() decides when the file is written again. */
void sh_exposition_set(struct sh_exposition *e, enum sh_exposed what, double value)
{
    e->value[what] = value;
    e->known[what] = true;
}

/* A counter that is not known yet is 0, as all of `value` are at first. */
void sh_exposition_add(struct sh_exposition *e, enum sh_exposed what, double value)
{
    sh_exposition_set(e, what, e->value[what] + value);
}

/* Write numbers that are not finite by their names. */
static void write_number(FILE *out, double v)
{
    if (isnan(v))
        fputs("NaN", out);
    else if (isinf(v))
        fputs(v > 0 ? "+Inf" : "-Inf", out);
    else
        fprintf(out, "%.17g", v);
}

/* TYPE, UNIT and HELP before each value, in the order that the format requires. */
static void write_row(FILE *out, const struct sh_exposition *e, enum sh_exposed what)
{
    const char *name = rows[what].name;

    fprintf(out, "# TYPE %s %s\n", name, is_counter(what) ? "counter" : "gauge");
    if (rows[what].unit)
        fprintf(out, "# UNIT %s %s\n", name, rows[what].unit);
    fprintf(out, "# HELP %s %s\n", name, rows[what].help);
    fprintf(out, "%s%s{%s} ", name, is_counter(what) ? "_total" : "", e->labels);
    write_number(out, e->value[what]);
    fputc('\n', out);
}

/* Replaced atomically: a collector never reads half a file. */
sh_rc sh_exposition_write(struct sh_exposition *e, bool now)
{
    int64_t at = sh_now_ns();
    char *text = NULL;
    size_t n = 0;
    FILE *out;
    sh_rc rc;

    if (!now && at - e->written_ns < SH_EXPOSITION_SECONDS * INT64_C(1000000000))
        return SH_OK;
    out = open_memstream(&text, &n);
    if (!out)
        return sh_fail(SH_E_MEMORY, "%s: %s", e->path, strerror(errno));
    for (int i = 0; i < SH_EXPOSED_N; i++)
        if (e->known[i])
            write_row(out, e, (enum sh_exposed)i);
    fputs("# EOF\n", out);
    if (fclose(out) != 0)
        rc = sh_fail(SH_E_MEMORY, "out of memory: no room for %s", e->path);
    else
        rc = sh_write_file_atomic(e->path, text, n);
    free(text);
    e->written_ns = at;
    return rc;
}

void sh_exposition_close(struct sh_exposition *e)
{
    if (!e)
        return;
    free(e->path);
    free(e->labels);
    free(e);
}
