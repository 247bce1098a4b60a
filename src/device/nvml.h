/* What the driver's library, libnvidia-ml, tells of a GPU: power, clock, temperature, and what holds the clock down. It is
 * loaded when the first GPU is opened, so a program starts on hosts that lack it. One GPU a process. Local.
 *
 * A driver that is busy answers late, so a call may take long: none is for the thread that computes. What the library
 * or the GPU does not know is NAN, and nothing fails for it. */
#ifndef SH_DEVICE_NVML_H
#define SH_DEVICE_NVML_H

#include "src/base/err.h"

/* What holds the clock down: bits of sh_nvml_state.held. A GPU that waits for work is not held. */
enum {
    SH_NVML_POWER = 1,    /* its limit of power */
    SH_NVML_HEAT = 2,     /* its temperature, or its memory's */
    SH_NVML_BRAKE = 4,    /* the node's power supply */
    SH_NVML_HARDWARE = 8, /* the card itself, of these reasons or another */
    SH_NVML_SETTING = 16, /* a clock that somebody has set */
    SH_NVML_SYNC = 32,    /* the slowest of GPUs that are told to have one clock */
    SH_NVML_REASONS = 6
};

struct sh_nvml_state {
    double watts, limit_watts, usual_watts; /* drawn; allowed now; allowed by default */
    double mhz, most_mhz;                   /* of its multiprocessors: now, and the most that they do */
    double celsius;
    unsigned held;
};

/* The GPU with this number on the PCI bus, such as "00000000:1b:00.0". Errors: SH_E_USAGE, with the library's words:
 * there is none, it lacks what is needed, it does not start, or does not have this GPU. */
sh_rc sh_nvml_open(const char *bus);
void sh_nvml_read(struct sh_nvml_state *s);
void sh_nvml_close(void); /* also after a failed or missing open */

/* "power", "heat", "brake", "hardware", "setting", "sync": of bit 1 << i, i < SH_NVML_REASONS. */
const char *sh_nvml_reason(int i);

#endif
