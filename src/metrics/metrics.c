/* A run's metrics.jsonl: a line of JSON for each start, step, validation and checkpoint. The same figures also go to
 * TensorBoard and OpenMetrics, if these are asked for (others.c). */
#include "src/metrics/metrics.h"

#include "sherd_config.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/device/nvml.h"
#include "src/metrics/values.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A metrics file that cannot be written (a full disk) does not end the training at once: the first failure is kept,
 * later lines are dropped, and the end of the run reports it through sh_metrics_result(). */
struct sh_metrics {
    FILE *file;
    char *path;
    char *failure; /* of the first line that could not be written, or NULL */
    sh_rc failed;  /* its class */
    struct sh_others others;
};

/* Appends: a resumed run continues in the file of the first one. */
sh_rc sh_metrics_open(const char *path, struct sh_metrics **out)
{
    FILE *f;

    SH_TRY(sh_open_output(path, "a", &f));
    *out = sh_calloc(1, sizeof **out);
    (*out)->file = f;
    (*out)->path = sh_strdup(path);
    return SH_OK;
}

/* NULL is fine. Lines are flushed already. */
void sh_metrics_close(struct sh_metrics *m)
{
    if (!m)
        return;
    fclose(m->file);
    sh_others_close(&m->others);
    free(m->path);
    free(m->failure);
    free(m);
}

/* The first failure is reported: later ones have the same cause. */
sh_rc sh_metrics_result(const struct sh_metrics *m)
{
    return m && m->failure ? sh_fail(m->failed, "%s", m->failure) : SH_OK;
}

sh_rc sh_metrics_tensorboard(struct sh_metrics *m, const char *folder, int64_t step)
{
    return sh_events_open(folder, step, &m->others.events);
}

sh_rc sh_metrics_openmetrics(struct sh_metrics *m, const char *path, const struct sh_metrics_labels *labels)
{
    return sh_exposition_open(path, labels, &m->others.exposition);
}

/* The first failure to write, here or for other programs, is kept for the end of the run. */
static void keep(struct sh_metrics *m, sh_rc rc)
{
    if (rc == SH_OK)
        return;
    if (!m->failure) {
        m->failed = rc;
        m->failure = sh_strdup(sh_error_text());
    }
    sh_error_clear();
}

/* NULL is fine: only rank 0 has metrics. */
void sh_metrics_finish(struct sh_metrics *m)
{
    if (m)
        keep(m, sh_others_finish(&m->others));
}

/* JSON has no NaN or Inf: such a number is written as null. */
static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* UTC, as in ISO 8601: events are looked up in logs of other programs, on other hosts. */
static json_t *now(void)
{
    char text[32];
    time_t seconds = time(NULL);
    struct tm utc;

    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    return json_string(text);
}

/* Seconds per step of the fastest, the median and the slowest rank, and where the slowest one runs. */
static json_t *pace(const struct sh_pace_metrics *p)
{
    return json_pack("{s:o, s:o, s:o, s:i, s:s}", "min", number(p->least), "median", number(p->median), "max",
                     number(p->most), "slowest_rank", p->slowest, "slowest_node", p->node);
}

/* A key without a number is left out. */
static void add_number(json_t *object, const char *key, double v)
{
    if (isfinite(v))
        json_object_set_new(object, key, json_real(v));
}

/* By name, since the bits are Sherd's own. */
static json_t *reasons(unsigned bits)
{
    json_t *list = json_array();

    for (int i = 0; i < SH_NVML_REASONS; i++)
        if (bits >> i & 1)
            json_array_append_new(list, json_string(sh_nvml_reason(i)));
    return list;
}

/* Figures that no GPU reported are left out. */
static json_t *gpu(const struct sh_gpu_metrics *g)
{
    json_t *object = json_pack("{s:i, s:i, s:o}", "told", g->gpus, "held", g->held, "held_by", reasons(g->why));

    if (!object)
        return NULL;
    add_number(object, "power_watts", g->watts);
    add_number(object, "limit_watts", g->limit_watts);
    add_number(object, "default_limit_watts", g->usual_watts);
    add_number(object, "clock_mhz", g->mhz);
    add_number(object, "median_clock_mhz", g->median_mhz);
    add_number(object, "highest_clock_mhz", g->most_mhz);
    add_number(object, "celsius", g->celsius);
    if (g->node) {
        json_object_set_new(object, "slowest_rank", json_integer(g->slowest));
        json_object_set_new(object, "slowest_node", json_string(g->node));
    }
    return object;
}

/* Reasons may hold names of files, and these may hold any bytes. */
static json_t *words(const char *text)
{
    json_t *s = json_string(text);

    return s ? s : json_string("(not UTF-8)");
}

static sh_rc put(const struct sh_metrics *m, const char *text)
{
    if (!text)
        return sh_fail(SH_E_MEMORY, "out of memory: no room for a line of %s", m->path);
    if (fprintf(m->file, "%s\n", text) < 0 || fflush(m->file) != 0)
        return sh_fail(SH_E_DATA, "write %s: %s", m->path, strerror(errno));
    return SH_OK;
}

/* Flushed line by line: what is in the file is what has happened. After a lost line nothing more is written. */
static void write_line(struct sh_metrics *m, json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;

    if (m && !m->failure)
        keep(m, put(m, text));
    free(text);
    json_decref(line);
}

static json_t *words_or_null(const char *text)
{
    return text ? words(text) : json_null();
}

/* Model FLOPs utilization: achieved over peak FLOP/s of all ranks. 0 if the peak is not known; then it is not
 * printed. */
double sh_mfu(double tokens_per_second, double flops, int ranks, double peak_tflops)
{
    return peak_tflops > 0 && ranks > 0 ? tokens_per_second * flops / (ranks * peak_tflops * 1e12) : 0;
}

static bool has_name(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), name))
            return true;
    return false;
}

/* Each host once. Ranks of a node are neighbours nearly always, so the newest name is compared first: a job of 4,096
 * ranks is not worth a table. */
static json_t *hosts(const struct sh_start_metrics *s)
{
    json_t *list = json_array();
    const char *newest = "";

    for (int i = 0; i < s->n_hosts; i++) {
        const char *name = s->hosts + (size_t)i * SH_METRICS_HOST;

        if (strcmp(name, newest) && !has_name(list, name))
            json_array_append_new(list, words(name));
        newest = name;
    }
    return list;
}

/* Figures that do not change from step to step are written here once. */
void sh_metrics_start(struct sh_metrics *m, const struct sh_start_metrics *s)
{
    json_t *line = json_pack(
        "{s:s, s:o, s:I, s:o, s:o, s:i, s:{s:i, s:i}, s:i, s:i, s:o, s:i, s:I, s:o, s:s, s:s, s:s, s:s, s:o, s:o}",
        "event", "start", "time", now(), "step", (json_int_t)s->step, "resumed_from", words_or_null(s->resumed_from),
        "parameters_from", words_or_null(s->parameters_from), "ranks", s->ranks, "mesh", "replicate", s->replicate,
        "shard", s->shard, "nodes", s->nodes, "threads", s->threads, "device", words_or_null(s->device), "cores",
        s->cores, "parameters", (json_int_t)s->parameters, "hosts", hosts(s), "version", PACKAGE_VERSION, "built_with",
        SHERD_BUILT_WITH, "config", s->config, "flops_formula",
        "6*weights_in_products + 6*L*H*D*T (causal) or 12*L*H*D*T (full)", "flops_per_token_causal",
        number(s->flops_causal), "flops_per_token_full", number(s->flops_full));

    if (line && s->peak_tflops > 0)
        json_object_set_new(line, "peak_tflops", number(s->peak_tflops));
    write_line(m, line);
}

/* Fields that do not apply (no peak, no GPU, no masks) are left out
 * rather than written as 0, which would look like a measurement. */
void sh_metrics_step(struct sh_metrics *m, const struct sh_step_metrics *s)
{
    json_t *time = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "step", number(s->time.step), "compute",
                             number(s->time.compute), "exposed_comm", number(s->time.exposed_comm), "data",
                             number(s->time.data), "checkpoint", number(s->time.checkpoint), "checks",
                             number(s->time.checks));
    if (time && s->offloads)
        json_object_set_new(time, "exposed_offload", number(s->time.exposed_offload));
    json_t *line = json_pack("{s:I, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:I, s:I}", "step", (json_int_t)s->step, "loss",
                             number(s->loss), "grad_norm", number(s->grad_norm), "lr", number(s->lr), "tokens",
                             (json_int_t)s->tokens, "tokens_seen", (json_int_t)s->tokens_seen, "tokens_per_second",
                             number(s->tokens_per_second), "seconds", time, "arena_bytes", (json_int_t)s->arena_bytes,
                             "peak_rss_bytes", (json_int_t)s->peak_rss_bytes);

    if (line && s->mfu > 0)
        json_object_set_new(line, "mfu", number(s->mfu));
    if (line && s->gpu_used_bytes)
        json_object_set_new(line, "gpu_used_bytes", json_integer((json_int_t)s->gpu_used_bytes));
    if (line && s->offloads) {
        json_object_set_new(line, "offload_read_bytes", json_integer((json_int_t)s->offload_read_bytes));
        json_object_set_new(line, "offload_written_bytes", json_integer((json_int_t)s->offload_written_bytes));
    }
    if (line && s->masked)
        json_object_set_new(line, "targets", json_integer((json_int_t)s->targets));
    if (line && s->loss_scale > 0)
        json_object_set_new(line, "loss_scale", number(s->loss_scale));
    if (line && s->skipped)
        json_object_set_new(line, "skipped", json_string(s->skipped));
    if (line && s->pace.node)
        json_object_set_new(line, "rank_seconds", pace(&s->pace));
    if (line && s->gpu.gpus)
        json_object_set_new(line, "gpu", gpu(&s->gpu));
    write_line(m, line);
    if (m)
        keep(m, sh_others_step(&m->others, s));
}

/* The same step may have a line for its training loss; readers tell the lines apart by their keys. */
void sh_metrics_validation(struct sh_metrics *m, int64_t step, const struct sh_validation_metrics *v)
{
    json_t *line = json_pack("{s:I, s:o, s:I, s:o}", "step", (json_int_t)step, "validation_loss", number(v->loss),
                             "tokens", (json_int_t)v->tokens, "seconds", number(v->seconds));

    if (line && v->bytes)
        json_object_set_new(line, "bits_per_byte", number(v->loss * (double)v->tokens / log(2.0) / (double)v->bytes));
    write_line(m, line);
    if (m)
        keep(m, sh_others_validation(&m->others, step, v));
}

/* Two rates: over the whole save, and over the time in which bytes went to the disk. Their ratio tells whether the file
 * system or the rest of the save is the bottleneck. */
void sh_metrics_checkpoint(struct sh_metrics *m, const struct sh_checkpoint_metrics *c)
{
    write_line(m, json_pack("{s:I, s:o, s:I, s:s, s:o, s:o, s:o, s:o, s:o}", "step", (json_int_t)c->step, "checkpoint",
                            words(c->path), "bytes", (json_int_t)c->bytes, "verify", c->verify, "seconds",
                            number(c->seconds), "stall_seconds", number(c->stall), "gb_per_second",
                            number((double)c->bytes / c->seconds / 1e9), "disk_gb_per_second",
                            number((double)c->bytes / c->disk_seconds / 1e9), "disk_share",
                            number(c->disk_seconds / c->seconds)));
    if (m)
        keep(m, sh_others_checkpoint(&m->others, c));
}

void sh_metrics_not_saved(struct sh_metrics *m, int64_t step, int failures, const char *reason)
{
    write_line(m, json_pack("{s:s, s:o, s:I, s:i, s:o}", "event", "checkpoint_failed", "time", now(), "step",
                            (json_int_t)step, "failures", failures, "reason", words(reason)));
    if (m)
        keep(m, sh_others_count(&m->others, SH_EXPOSED_FAILED_CHECKPOINTS));
}

/* The range of samples that the run will not see again: a reader of the losses finds the gap here. */
void sh_metrics_rollback(struct sh_metrics *m, const struct sh_rollback_metrics *r)
{
    write_line(m,
               json_pack("{s:I, s:I, s:I, s:I}", "step", (json_int_t)r->to, "rollback_from", (json_int_t)r->from,
                         "first_sample_left_out", (json_int_t)r->first, "last_sample_left_out", (json_int_t)r->last));
    if (m)
        keep(m, sh_others_count(&m->others, SH_EXPOSED_ROLLBACKS));
}
