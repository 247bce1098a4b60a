/* How long a queue was at something, without waiting for it: a pair of events around each stretch, read when both have
 * happened. On a GPU what is still under way counts in the next step; no time is lost. Local. */
#ifndef SH_RUN_SPANS_H
#define SH_RUN_SPANS_H

#include "src/device/device.h"

enum sh_span { SH_SPAN_SECTION, SH_SPAN_WAIT, SH_SPANS };

struct sh_spans;

/* Device and queue are lent until the end. */
struct sh_spans *sh_spans_create(const struct sh_device *device, void *queue);
void sh_spans_destroy(struct sh_spans *s);

/* Mark the begin of a stretch in the queue, and later its end; stretches may lie within others. */
int64_t sh_spans_begin(struct sh_spans *s, enum sh_span kind);
void sh_spans_end(struct sh_spans *s, int64_t span);

/* Seconds of each kind since the last call, of stretches that are over. */
void sh_spans_take(struct sh_spans *s, double seconds[SH_SPANS]);

#endif
