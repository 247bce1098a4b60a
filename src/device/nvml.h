/* Power, clock and temperature of a GPU, and the reasons why its clock is held down, from the driver's library,
 * libnvidia-ml. The library is loaded when the first GPU is opened, so a program starts on hosts that lack it. One GPU
 * per process. Local.
 *
 * A busy driver answers late, so a call may take long: the thread that computes must make none. A value that the
 * library or the GPU does not know is NAN, which is not an error. */
#ifndef SH_DEVICE_NVML_H
#define SH_DEVICE_NVML_H

#include "src/base/err.h"

/* What holds the clock down: bits of sh_nvml_state.held. A GPU that waits for work is not held. */
enum {
    SH_NVML_POWER = 1,    /* its power limit */
    SH_NVML_HEAT = 2,     /* its temperature, or its memory's */
    SH_NVML_BRAKE = 4,    /* the node's power supply */
    SH_NVML_HARDWARE = 8, /* the card itself, of these reasons or another */
    SH_NVML_SETTING = 16, /* a clock that somebody has set */
    SH_NVML_SYNC = 32,    /* the slowest of several GPUs that are set to one clock */
    SH_NVML_REASONS = 6
};

struct sh_nvml_state {
    double watts, limit_watts, usual_watts; /* drawn; allowed now; allowed by default */
    double mhz, most_mhz;                   /* of its multiprocessors: now, and the maximum */
    double celsius;
    unsigned held;
};

/* Open the GPU with this number on the PCI bus, such as "00000000:1b:00.0". Errors: SH_E_USAGE, with the library's
 * message: there is no library, it lacks functions, it does not start, or it does not have this GPU. */
sh_rc sh_nvml_open(const char *bus);
void sh_nvml_read(struct sh_nvml_state *s);
/* How the open GPU reaches another one of its node: SH_NVML_UNKNOWN also if no GPU is open, or the library lacks the
 * functions. */
enum sh_nvml_way {
    SH_NVML_UNKNOWN,
    SH_NVML_LINK,   /* NVLink */
    SH_NVML_SWITCH, /* switches of the PCI bus alone */
    SH_NVML_HOST,   /* a processor */
    SH_NVML_SYSTEM  /* the link between processors */
};
enum sh_nvml_way sh_nvml_way_to(const char *bus);
void sh_nvml_close(void); /* also after a failed or missing open */

/* "power", "heat", "brake", "hardware", "setting", "sync": of bit 1 << i, i < SH_NVML_REASONS. */
const char *sh_nvml_reason(int i);

#endif
