/* Checks that every read or write of a place of memory is ordered with the accesses before it.
 *
 * Actors are streams and threads of the host. Each has a vector clock: how far every other actor is known to have got
 * when this one does its next thing. Putting work into a stream passes on the host's knowledge; an event carries a
 * stream's knowledge at its mark; waiting for the event takes it over. An access must know the last write of every
 * byte, and a write also the reads since then; otherwise both accesses are named and the process stops, whatever the
 * bytes were. The doubles run everything on the spot, so that a forgotten event changes no result here; this is what
 * finds it. Local, any thread. */
#ifndef SH_TESTS_ORDER_H
#define SH_TESTS_ORDER_H

#include <stdint.h>

enum { SH_ORDER_ACTORS = 24 };

struct sh_order_clock {
    int64_t at[SH_ORDER_ACTORS];
};

/* A new timeline, for a stream. */
int sh_order_actor(void);
void sh_order_actor_end(int actor); /* its number may be reused: it must have been waited for */

/* The stream's clock at this place in its queue, including what the calling thread knows. */
void sh_order_mark(int actor, struct sh_order_clock *event);
void sh_order_after(int actor, const struct sh_order_clock *event); /* the stream waits for an event */
void sh_order_wait(const struct sh_order_clock *event);             /* the calling thread waits for an event */
void sh_order_wait_for_all(const struct sh_order_clock *event);     /* and so do threads that have done nothing yet */

/* Work of a stream; label: for the message, must stay valid. */
void sh_order_access(int actor, const void *at, int64_t bytes, int write, const char *label);
void sh_order_forget(const void *at, int64_t bytes); /* freed */

#endif
