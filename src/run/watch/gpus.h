/* The condition of a run's GPUs: power, clock, temperature, and what holds the clock down. A capped GPU explains more
 * than any network does, so a run records it. On each rank a thread reads the rank's own GPU once a second, because a
 * driver may answer late; now and then rank 0 gathers the readings since the last time.
 * Cost: 64 bytes per rank each time, through a tree. */
#ifndef SH_WATCH_GPUS_H
#define SH_WATCH_GPUS_H

#include "src/base/err.h"
#include "src/metrics/metrics.h"

struct sh_run;

/* The readings of one rank since the last time, as means; NAN: not reported. */
struct sh_gpus_reading {
    double watts, limit_watts, usual_watts;
    double mhz, most_mhz;
    double celsius; /* the highest */
    double held;    /* bits as in nvml.h: what held the clock down in at least half of the readings */
    double told;    /* 1: something was read */
};

/* Start reading the GPU with this number on the PCI bus. Local. One per process. Errors: those of sh_nvml_open();
 * SH_E_MEMORY if no thread can be created; SH_E_DATA after a thread was left behind. */
sh_rc sh_gpus_watch(const char *bus);
/* The mean of the readings since the last call; if there are none, the previous mean if it is less than
 * SH_GPUS_STALE_SECONDS old. A driver that answers too late for that counts as reporting nothing. Never waits for the
 * driver. */
enum { SH_GPUS_STALE_SECONDS = 5 };
void sh_gpus_take(struct sh_gpus_reading *out);
/* Stop the thread and wait for it, one second at most; a thread that is stuck in the driver is left behind. Allowed
 * also after a failed watch or without one. */
void sh_gpus_unwatch(void);

/* Combine the readings of all ranks, whose host names are [ranks][SH_METRICS_HOST]. Local, pure. */
void sh_gpus_judge(const struct sh_gpus_reading *each, int ranks, const char *hosts, struct sh_gpu_metrics *out);

/* Start reading GPUs as metrics.gpu says. Collective. Errors, agreed: SH_E_USAGE with metrics.gpu=must if a rank cannot
 * read its GPU. With auto, rank 0 prints a note if it cannot read its own. */
sh_rc sh_gpus_open(struct sh_run *r);
/* Gather the readings; rank 0 fills *out. Does nothing if the ranks have no GPUs, or metrics.gpu is off. Collective. */
sh_rc sh_gpus_gather(const struct sh_run *r, const char *hosts, struct sh_gpu_metrics *out);

#endif
