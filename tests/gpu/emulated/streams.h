/* Streams of the emulated device: queues of work that a separate thread, the device, does as late as it can.
 *
 * Nothing is done until something waits for it, or asks for it a few times. The device then does what that needs and,
 * occasionally, a little more, in an order drawn at random (SHERD_EMULATED_SEED) from all that a GPU could choose. So
 * a host that reads too early finds the old contents, and work that events do not order runs in another order the
 * next time. Any thread. */
#ifndef SH_TESTS_GPU_EMULATED_STREAMS_H
#define SH_TESTS_GPU_EMULATED_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

struct sh_stream;
struct sh_mark; /* a place in a stream; reference-counted */

struct sh_stream *sh_stream_create(void); /* lives as long as the process */

void sh_stream_put(struct sh_stream *s, void (*work)(void *arg), void *arg);

/* Work that may wait for other ranks, while other streams go on. in_order: it starts after all such work that was put
 * anywhere before. */
void sh_stream_put_beside(struct sh_stream *s, void (*work)(void *arg), void *arg, bool in_order);

struct sh_mark *sh_stream_mark(struct sh_stream *s);             /* one reference */
void sh_stream_after(struct sh_stream *s, struct sh_mark *mark); /* later items wait for it */

void sh_streams_rest(void); /* return when everything put anywhere is done */

bool sh_mark_done(struct sh_mark *m);        /* a query; occasionally the device does something for it */
bool sh_mark_wait(struct sh_mark *m);        /* false: there was nothing to wait for */
int64_t sh_mark_ns(const struct sh_mark *m); /* sh_now_ns() at a mark that is done */
void sh_mark_put(struct sh_mark *m);         /* give a reference back; NULL: nothing */

#endif
