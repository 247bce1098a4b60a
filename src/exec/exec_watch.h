/* Inside the executor: what it says of its work, by one call before and one after each section and each operation. From
 * these come the seconds of a step, the trace while there is one (exec_trace.h), and the operation that a report of a
 * stall names.
 *
 * How long the queue was busy is measured without waiting for it: a pair of events around each stretch, read when both
 * have happened. On a GPU, stretches still under way count in the next step; no time is lost. Local. */
#ifndef SH_EXEC_EXEC_WATCH_H
#define SH_EXEC_EXEC_WATCH_H

#include "src/comm/comm.h"
#include "src/exec/exec_trace.h"

enum sh_exec_timing { SH_EXEC_TIMING_SECTION, SH_EXEC_TIMING_WAIT, SH_EXEC_TIMING_MOVE, SH_EXEC_TIMINGS };

struct sh_exec_watch;

/* Everything is lent until the end. labels: [ops]. */
struct sh_exec_watch *sh_exec_watch_open(const struct sh_program *p, const struct sh_device *device, void *queue,
                                         struct sh_comm *comm, char (*labels)[SH_EXEC_LABEL]);
void sh_exec_watch_close(struct sh_exec_watch *w);
void sh_exec_watch_set_trace(struct sh_exec_watch *w, struct sh_exec_trace *trace); /* owned from now on; NULL: none */

/* Around a section of the program, and around its operation i. pending and tickets: as in exec_trace.h. */
void sh_exec_watch_enter(struct sh_exec_watch *w, const struct sh_section *s);
void sh_exec_watch_begin(struct sh_exec_watch *w, int64_t step, int i);
void sh_exec_watch_end(struct sh_exec_watch *w, int i);
sh_rc sh_exec_watch_leave(struct sh_exec_watch *w, bool pending, const int64_t *tickets);

/* Seconds of each kind since the last call, in stretches that have ended. */
void sh_exec_watch_take(struct sh_exec_watch *w, double seconds[SH_EXEC_TIMINGS]);

#endif
