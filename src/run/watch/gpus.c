/* Power, clocks and temperature of each rank's GPU. A thread reads the driver once a second, because a read may take as
 * long as a step; training only takes the sums. A value that the driver does not report is NAN, and stays NAN in all
 * sums. */
#include "src/run/watch/gpus.h"

#include "src/base/log.h"
#include "src/base/number/median.h"
#include "src/base/mem.h"
#include "src/base/thread.h"
#include "src/base/time.h"
#include "src/device/nvml.h"
#include "src/run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PERIOD_SECONDS = 1, TIMEOUT_SECONDS = 1 };

/* Sums since the last take. A value that is missing in one reading is missing in the sum. */
struct sums {
    struct sh_gpus_reading sum;
    int n, held[SH_NVML_REASONS];
};

/* One per process, and never freed: a thread that is stuck in the driver may still come back to it. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* on the monotonic clock */
    bool running, stop, ended;
    struct sums sums;
    struct sh_gpus_reading last;
    int64_t last_ns; /* 0: nothing was read */
} watch;

/* A thread that is stuck in the driver may still use the lock, so nothing is watched any more in this process. */
static bool is_left;

/* Whether the driver reported at least one value; otherwise it is not counted as a reading. */
static bool is_told(const struct sh_nvml_state *s)
{
    return isfinite(s->watts) || isfinite(s->mhz) || isfinite(s->celsius);
}

/* Add a reading, with the lock held. */
static void add(const struct sh_nvml_state *s)
{
    struct sums *to = &watch.sums;
    struct sh_gpus_reading *sum = &to->sum;

    if (!is_told(s))
        return;
    sum->watts += s->watts;
    sum->limit_watts += s->limit_watts;
    sum->usual_watts += s->usual_watts;
    sum->mhz += s->mhz;
    sum->most_mhz += s->most_mhz;
    sum->celsius = to->n ? fmax(sum->celsius, s->celsius) : s->celsius;
    for (int i = 0; i < SH_NVML_REASONS; i++)
        to->held[i] += s->held >> i & 1;
    to->n++;
}

/* The body of the thread. The lock is released while the driver is asked, so a step never waits for the driver. */
static void *run(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&watch.lock);
    while (!watch.stop) {
        struct timespec until = sh_thread_time_in(PERIOD_SECONDS);
        struct sh_nvml_state s;

        pthread_mutex_unlock(&watch.lock);
        sh_nvml_read(&s); /* as long as it takes */
        pthread_mutex_lock(&watch.lock);
        add(&s);
        while (!watch.stop && pthread_cond_timedwait(&watch.changed, &watch.lock, &until) == 0)
            ;
    }
    watch.ended = true;
    pthread_cond_broadcast(&watch.changed);
    pthread_mutex_unlock(&watch.lock);
    return NULL;
}

/* Nobody joins the thread, because it may never return from the driver. */
static sh_rc start(void)
{
    SH_TRY(sh_thread_start(NULL, "read the GPU", run, NULL, 0));
    watch.running = true;
    return SH_OK;
}

sh_rc sh_gpus_watch(const char *bus)
{
    sh_rc rc;

    if (is_left)
        return sh_fail(SH_E_DATA, "the driver has not answered an earlier question yet");
    SH_TRY(sh_nvml_open(bus));
    memset(&watch, 0, sizeof watch);
    pthread_mutex_init(&watch.lock, NULL);
    sh_thread_cond_init(&watch.changed);
    rc = start();
    if (rc != SH_OK)
        sh_nvml_close();
    return rc;
}

/* Reasons that held the clock down in at least half of the readings; isolated ones come with each change of load. */
static unsigned mostly_held(const struct sums *s)
{
    unsigned bits = 0;

    for (int i = 0; i < SH_NVML_REASONS; i++)
        if (2 * s->held[i] >= s->n && s->held[i])
            bits |= 1U << i;
    return bits;
}

static struct sh_gpus_reading mean(const struct sums *s)
{
    struct sh_gpus_reading m = s->sum;

    m.watts /= s->n;
    m.limit_watts /= s->n;
    m.usual_watts /= s->n;
    m.mhz /= s->n;
    m.most_mhz /= s->n;
    m.held = mostly_held(s);
    m.told = 1;
    return m;
}

/* An old reading counts as none: a driver that hangs would otherwise show its last value for hours. */
void sh_gpus_take(struct sh_gpus_reading *out)
{
    *out = (struct sh_gpus_reading){.told = 0};
    if (!watch.running)
        return;
    pthread_mutex_lock(&watch.lock);
    if (watch.sums.n) {
        watch.last = mean(&watch.sums);
        watch.last_ns = sh_now_ns();
        watch.sums = (struct sums){.n = 0};
    }
    if (watch.last_ns && sh_now_ns() - watch.last_ns < SH_GPUS_STALE_SECONDS * INT64_C(1000000000))
        *out = watch.last;
    pthread_mutex_unlock(&watch.lock);
}

/* If the thread has not ended, the library stays open: closing it during a call would be worse. */
void sh_gpus_unwatch(void)
{
    struct timespec until;
    bool ended;

    if (!watch.running)
        return;
    until = sh_thread_time_in(TIMEOUT_SECONDS);
    pthread_mutex_lock(&watch.lock);
    watch.stop = true;
    pthread_cond_broadcast(&watch.changed);
    while (!watch.ended && pthread_cond_timedwait(&watch.changed, &watch.lock, &until) == 0)
        ;
    ended = watch.ended;
    pthread_mutex_unlock(&watch.lock);
    watch.running = false;
    is_left = !ended;
    if (ended)
        sh_nvml_close();
}

/* ---- over all ranks ---- */

/* The share of its usual power that a GPU may draw. Without a reported usual power it is 1; without a reported limit it
 * is infinite, so that any other is lower. */
static double share_of_power(double limit, double usual)
{
    return isnan(limit) ? INFINITY : isnan(usual) ? 1 : limit / usual;
}

/* A limit is kept with the usual power of its own GPU, and a clock with its own highest clock, because a job may have
 * GPUs of two kinds. fmax() ignores NAN. */
static void judge_one(const struct sh_gpus_reading *g, int rank, const char *hosts, struct sh_gpu_metrics *out)
{
    out->gpus++;
    if (share_of_power(g->limit_watts, g->usual_watts) < share_of_power(out->limit_watts, out->usual_watts)) {
        out->limit_watts = g->limit_watts;
        out->usual_watts = g->usual_watts;
    }
    out->celsius = fmax(out->celsius, g->celsius);
    out->held += g->held > 0;
    out->why |= (unsigned)g->held;
    if (g->mhz < out->mhz || (isnan(out->mhz) && isfinite(g->mhz))) {
        out->mhz = g->mhz;
        out->most_mhz = g->most_mhz;
        out->slowest = rank;
        out->node = hosts + (size_t)rank * SH_METRICS_HOST;
    }
}

/* On rank 0, over what all ranks gathered: worst and median, so that a GPU that is held back shows. */
void sh_gpus_judge(const struct sh_gpus_reading *each, int ranks, const char *hosts, struct sh_gpu_metrics *out)
{
    double *mhz = sh_calloc((size_t)ranks, sizeof *mhz), watts = 0;
    int clocks = 0, powers = 0;

    *out = (struct sh_gpu_metrics){.limit_watts = NAN, .usual_watts = NAN, .mhz = NAN, .most_mhz = NAN, .celsius = NAN};
    for (int i = 0; i < ranks; i++) {
        if (each[i].told <= 0)
            continue;
        judge_one(&each[i], i, hosts, out);
        if (isfinite(each[i].mhz))
            mhz[clocks++] = each[i].mhz;
        if (isfinite(each[i].watts)) {
            watts += each[i].watts;
            powers++;
        }
    }
    out->watts = powers ? watts / powers : NAN;
    out->median_mhz = clocks ? sh_median(clocks, mhz) : NAN;
    free(mhz);
}

/* Whether GPUs are read; the same on all ranks. */
static bool wanted(const struct sh_run *r)
{
    return r->cfg.metrics.gpu != SH_GPU_METRICS_OFF && r->device->gpu;
}

/* With "auto" a run continues without readings, and says once why; only "must" makes the ranks agree on a failure. */
sh_rc sh_gpus_open(struct sh_run *r)
{
    bool must = r->cfg.metrics.gpu == SH_GPU_METRICS_MUST;
    sh_rc rc = SH_OK;

    if (must && !r->device->gpu)
        rc = sh_fail(SH_E_USAGE, "training.device=%s is not a GPU; give metrics.gpu=auto", r->device->name);
    else if (wanted(r))
        rc = sh_gpus_watch(r->gpu.info.bus);
    if (must)
        return sh_agree(rc == SH_OK ? rc : sh_fail_prefix(rc, "metrics.gpu=must: "));
    if (rc != SH_OK && r->mesh->rank == 0)
        sh_log_info("note: power and clocks of GPUs are not recorded: %s", sh_error_text());
    sh_error_clear();
    return SH_OK;
}

/* Collective if readings are wanted, which is the same on all ranks. */
sh_rc sh_gpus_gather(const struct sh_run *r, const char *hosts, struct sh_gpu_metrics *out)
{
    struct sh_gpus_reading mine, *all = NULL;
    bool first = r->mesh->rank == 0;
    sh_rc rc;

    if (!wanted(r))
        return SH_OK;
    sh_gpus_take(&mine);
    if (first)
        all = sh_calloc((size_t)r->mesh->world, sizeof *all);
    rc = sh_mesh_gather(&mine, sizeof mine, all);
    if (rc == SH_OK && first)
        sh_gpus_judge(all, r->mesh->world, hosts, out);
    free(all);
    return rc;
}
