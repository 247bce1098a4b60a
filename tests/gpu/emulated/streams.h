/* Streams of the emulated device: queues of work that a thread of their own, the device, does as late as it may.
 *
 * Nothing is done before something waits for it, or asks for it a few times; then the device does what that needs and, now
 * and then, a little more, in an order that is drawn (SHERD_EMULATED_SEED) from all that a GPU could take. So a host that reads
 * too early finds what was there before, and what is not tied by events runs in another order the next time.
 * Any thread. */
#ifndef SH_TESTS_GPU_EMULATED_STREAMS_H
#define SH_TESTS_GPU_EMULATED_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

struct sh_stream;
struct sh_mark; /* a place in a stream; counted references */

struct sh_stream *sh_stream_create(void); /* lives as long as the process */

/* in_order: it begins behind all such work that was put anywhere before. */
void sh_stream_put(struct sh_stream *s, void (*work)(void *arg), void *arg, bool in_order);

struct sh_mark *sh_stream_mark(struct sh_stream *s);             /* one reference */
void sh_stream_after(struct sh_stream *s, struct sh_mark *mark); /* what follows waits for it */

void sh_streams_rest(void); /* return when all that was put anywhere is done */

bool sh_mark_done(struct sh_mark *m);        /* asks; now and then the device does something for it */
bool sh_mark_wait(struct sh_mark *m);        /* false: there was nothing to wait for */
int64_t sh_mark_ns(const struct sh_mark *m); /* sh_now_ns() of a mark that is done */
void sh_mark_put(struct sh_mark *m);         /* give a reference back; NULL: nothing */

#endif
