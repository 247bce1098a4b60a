/* How long a queue was busy with something, without waiting for it: a pair of events around each stretch, read when
 * both have happened. On a GPU, stretches still under way count in the next step; no time is lost. Local. */
#ifndef SH_EXEC_TIMINGS_H
#define SH_EXEC_TIMINGS_H

#include "src/device/device.h"

enum sh_timing { SH_TIMING_SECTION, SH_TIMING_WAIT, SH_TIMING_MOVE, SH_TIMINGS };

struct sh_timings;

/* Device and queue are lent until the end. */
struct sh_timings *sh_timings_create(const struct sh_device *device, void *queue);
void sh_timings_destroy(struct sh_timings *s);

/* Mark the start of a stretch in the queue, and later its end; stretches may lie within others. */
int64_t sh_timings_begin(struct sh_timings *s, enum sh_timing kind);
void sh_timings_end(struct sh_timings *s, int64_t span);

/* Seconds of each kind since the last call, in stretches that have ended. */
void sh_timings_take(struct sh_timings *s, double seconds[SH_TIMINGS]);

#endif
