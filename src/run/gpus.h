/* How the GPUs of a run do: power, clock, temperature, and what holds the clock down. A capped GPU explains more than any
 * network, so a run notes it. Each rank reads its own GPU once a second by a thread, for a driver may answer late; now and
 * then rank 0 gathers what was read since the last time.
 * Cost: 64 bytes a rank each time, through a tree. */
#ifndef SH_RUN_GPUS_H
#define SH_RUN_GPUS_H

#include "src/base/err.h"
#include "src/metrics/metrics.h"

struct sh_run;

/* What one rank has read since the last time, as means; NAN: not told. */
struct sh_gpus_reading {
    double watts, limit_watts, usual_watts;
    double mhz, most_mhz;
    double celsius; /* the highest */
    double held;    /* bits as in nvml.h, of what held the clock down in at least half of the readings */
    double told;    /* 1: something was read */
};

/* Begin to read the GPU with this number on the PCI bus. Local. One a process. Errors: those of sh_nvml_open(), and
 * SH_E_MEMORY without a thread. */
sh_rc sh_gpus_watch(const char *bus);
/* What was read since the last time; the last reading where that was within SH_GPUS_STALE_SECONDS and there is no newer
 * one. A driver that answers late has told nothing. Never waits for the driver. */
enum { SH_GPUS_STALE_SECONDS = 5 };
void sh_gpus_take(struct sh_gpus_reading *out);
/* Wait for the thread, a second at most: one that the driver holds is left behind. Also after a failed or missing watch. */
void sh_gpus_unwatch(void);

/* The ranks' readings as one, with host names [ranks][SH_METRICS_HOST]. Local, pure. */
void sh_gpus_judge(const struct sh_gpus_reading *each, int ranks, const char *hosts, struct sh_gpu_metrics *out);

/* As metrics.gpu says. Collective. Errors, agreed: SH_E_USAGE with metrics.gpu=must, where a rank cannot read its GPU;
 * with auto rank 0 says so. */
sh_rc sh_gpus_open(struct sh_run *r);
/* Rank 0 fills *out. Nothing where no rank has a GPU, or none is to be read. Collective. */
sh_rc sh_gpus_gather(const struct sh_run *r, const char *hosts, struct sh_gpu_metrics *out);

#endif
