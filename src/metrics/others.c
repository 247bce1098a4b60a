/* What happens in a run, under the names of other programs: TensorBoard's tags and the metrics of OpenMetrics. */
#include "src/metrics/values.h"

#include <math.h>
#include <time.h>

/* More values than a step has: a step with offload, a loss scale and GPUs has 23. */
enum { MOST_VALUES = 32 };

/* The values of one event; those that are not known are not added. */
struct list {
    struct sh_value value[MOST_VALUES];
    int n;
};

/* `known`, not NAN, decides: a loss that is not finite is a fact that a chart must show. */
static void add(struct list *l, bool known, const char *tag, double value)
{
    if (known && l->n < MOST_VALUES)
        l->value[l->n++] = (struct sh_value){.tag = tag, .value = value};
}

static sh_rc write_events(const struct sh_others *o, int64_t step, const struct list *l)
{
    return o->events ? sh_events_write(o->events, step, l->n, l->value) : SH_OK;
}

/* Whether a value of the GPUs was reported, which happens at log steps only. */
static bool is_told(const struct sh_step_metrics *s, double value)
{
    return s->gpu.gpus > 0 && isfinite(value);
}

/* A tag's first word groups its charts in TensorBoard: train, speed, seconds, memory, offload, gpu. */
static void list_step(const struct sh_step_metrics *s, struct list *l)
{
    add(l, true, "train/loss", s->loss);
    add(l, true, "train/grad_norm", s->grad_norm);
    add(l, true, "train/learning_rate", s->lr);
    add(l, s->loss_scale > 0, "train/loss_scale", s->loss_scale);
    add(l, true, "train/tokens_seen", (double)s->tokens_seen);
    add(l, true, "train/skipped", s->skipped != NULL);
    add(l, true, "speed/tokens_per_second", s->tokens_per_second);
    add(l, s->mfu > 0, "speed/mfu", s->mfu);
    add(l, true, "seconds/step", s->time.step);
    add(l, true, "seconds/compute", s->time.compute);
    add(l, true, "seconds/exposed_comm", s->time.exposed_comm);
    add(l, s->offloads, "seconds/exposed_offload", s->time.exposed_offload);
    add(l, s->offloads, "offload/read_bytes", (double)s->offload_read_bytes);
    add(l, s->offloads, "offload/written_bytes", (double)s->offload_written_bytes);
    add(l, true, "seconds/data", s->time.data);
    add(l, true, "seconds/checkpoint", s->time.checkpoint);
    add(l, true, "memory/arena_bytes", (double)s->arena_bytes);
    add(l, true, "memory/peak_rss_bytes", (double)s->peak_rss_bytes);
    add(l, s->gpu_used_bytes > 0, "memory/gpu_used_bytes", (double)s->gpu_used_bytes);
    add(l, is_told(s, s->gpu.watts), "gpu/power_watts", s->gpu.watts);
    add(l, is_told(s, s->gpu.mhz), "gpu/clock_mhz", s->gpu.mhz);
    add(l, is_told(s, s->gpu.celsius), "gpu/celsius", s->gpu.celsius);
    add(l, s->gpu.gpus > 0, "gpu/held", s->gpu.held);
}

/* OpenMetrics requires base units, so MHz become hertz. */
static void expose_gpu(struct sh_exposition *e, const struct sh_step_metrics *s)
{
    if (is_told(s, s->gpu.watts))
        sh_exposition_set(e, SH_EXPOSED_GPU_WATTS, s->gpu.watts);
    if (is_told(s, s->gpu.mhz))
        sh_exposition_set(e, SH_EXPOSED_GPU_HERTZ, 1e6 * s->gpu.mhz);
    if (is_told(s, s->gpu.celsius))
        sh_exposition_set(e, SH_EXPOSED_GPU_CELSIUS, s->gpu.celsius);
    if (s->gpu.gpus)
        sh_exposition_set(e, SH_EXPOSED_GPUS_HELD, s->gpu.held);
}

/* Counters count what this process did, so that they start at 0 after a restart, as Prometheus expects; gauges say
 * where the run is. */
static void expose_step(struct sh_exposition *e, const struct sh_step_metrics *s)
{
    sh_exposition_add(e, SH_EXPOSED_STEPS, 1);
    sh_exposition_add(e, SH_EXPOSED_TOKENS, (double)s->tokens);
    sh_exposition_add(e, SH_EXPOSED_SKIPPED, s->skipped != NULL);
    sh_exposition_set(e, SH_EXPOSED_STEP, (double)s->step);
    sh_exposition_set(e, SH_EXPOSED_STEP_TIMESTAMP, (double)time(NULL));
    sh_exposition_set(e, SH_EXPOSED_LOSS, s->loss);
    sh_exposition_set(e, SH_EXPOSED_GRAD_NORM, s->grad_norm);
    sh_exposition_set(e, SH_EXPOSED_LR, s->lr);
    sh_exposition_set(e, SH_EXPOSED_SPEED, s->tokens_per_second);
    sh_exposition_set(e, SH_EXPOSED_STEP_SECONDS, s->time.step);
    sh_exposition_set(e, SH_EXPOSED_COMPUTE_SECONDS, s->time.compute);
    sh_exposition_set(e, SH_EXPOSED_COMM_SECONDS, s->time.exposed_comm);
    sh_exposition_set(e, SH_EXPOSED_DATA_SECONDS, s->time.data);
    sh_exposition_set(e, SH_EXPOSED_RSS_BYTES, (double)s->peak_rss_bytes);
    sh_exposition_set(e, SH_EXPOSED_ARENA_BYTES, (double)s->arena_bytes);
    if (s->offloads) {
        sh_exposition_set(e, SH_EXPOSED_OFFLOAD_SECONDS, s->time.exposed_offload);
        sh_exposition_set(e, SH_EXPOSED_OFFLOAD_READ, (double)s->offload_read_bytes);
        sh_exposition_set(e, SH_EXPOSED_OFFLOAD_WRITTEN, (double)s->offload_written_bytes);
    }
    if (s->loss_scale > 0)
        sh_exposition_set(e, SH_EXPOSED_LOSS_SCALE, s->loss_scale);
    if (s->mfu > 0)
        sh_exposition_set(e, SH_EXPOSED_MFU, s->mfu);
    if (s->gpu_used_bytes > 0)
        sh_exposition_set(e, SH_EXPOSED_GPU_BYTES, (double)s->gpu_used_bytes);
    expose_gpu(e, s);
}

static sh_rc expose(const struct sh_others *o, bool now)
{
    return o->exposition ? sh_exposition_write(o->exposition, now) : SH_OK;
}

/* The exposition is written now and then (SH_EXPOSITION_SECONDS); events are written at each call. */
sh_rc sh_others_step(struct sh_others *o, const struct sh_step_metrics *s)
{
    struct list l = {.n = 0};

    list_step(s, &l);
    if (o->exposition)
        expose_step(o->exposition, s);
    SH_TRY(write_events(o, s->step, &l));
    return expose(o, false);
}

sh_rc sh_others_validation(struct sh_others *o, int64_t step, const struct sh_validation_metrics *v)
{
    struct list l = {.n = 0};

    add(&l, true, "validation/loss", v->loss);
    /* Nats per token times tokens are the nats of the text; divided by ln 2 they are bits, which do not depend on the
     * tokenizer. */
    add(&l, v->bytes > 0, "validation/bits_per_byte", v->loss * (double)v->tokens / log(2.0) / (double)v->bytes);
    if (o->exposition)
        sh_exposition_set(o->exposition, SH_EXPOSED_VALIDATION_LOSS, v->loss);
    SH_TRY(write_events(o, step, &l));
    return expose(o, false);
}

sh_rc sh_others_checkpoint(struct sh_others *o, const struct sh_checkpoint_metrics *c)
{
    struct list l = {.n = 0};

    add(&l, true, "checkpoint/seconds", c->seconds);
    add(&l, true, "checkpoint/stall_seconds", c->stall);
    if (o->exposition) {
        sh_exposition_add(o->exposition, SH_EXPOSED_CHECKPOINTS, 1);
        sh_exposition_set(o->exposition, SH_EXPOSED_CHECKPOINT_STEP, (double)c->step);
        sh_exposition_set(o->exposition, SH_EXPOSED_CHECKPOINT_SECONDS, c->seconds);
    }
    SH_TRY(write_events(o, c->step, &l));
    return expose(o, false);
}

/* For events without figures, like a failed save or a rollback: a collector counts them, but a chart of TensorBoard has
 * no use for them. */
sh_rc sh_others_count(struct sh_others *o, enum sh_exposed what)
{
    if (o->exposition)
        sh_exposition_add(o->exposition, what, 1);
    return expose(o, false);
}

/* The last figures must not wait for the interval: no other write comes after them. */
sh_rc sh_others_finish(struct sh_others *o)
{
    return expose(o, true);
}

void sh_others_close(struct sh_others *o)
{
    sh_events_close(o->events);
    sh_exposition_close(o->exposition);
    *o = (struct sh_others){.events = NULL};
}
