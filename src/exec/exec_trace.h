/* Inside the executor: a trace of every operation, by events around it. The events are read at the end of each section,
 * for which the host then waits; without a trace none of this exists. Local. */
#ifndef SH_EXEC_EXEC_TRACE_H
#define SH_EXEC_EXEC_TRACE_H

#include "src/comm/comm.h"
#include "src/program/program.h"

enum { SH_EXEC_LABEL = SH_OP_LABEL };

struct sh_trace;
struct sh_exec_trace;

/* Everything is lent. calls: [ops]. */
struct sh_exec_trace *sh_exec_trace_create(const struct sh_program *p, const struct sh_device *device, void *queue,
                                           struct sh_comm *comm, const struct sh_op_call *calls, struct sh_trace *out);
void sh_exec_trace_destroy(struct sh_exec_trace *t);

/* Call these around operation i of the program. */
void sh_exec_trace_begin(struct sh_exec_trace *t, int i);
void sh_exec_trace_end(struct sh_exec_trace *t, int i);

/* After a section: write its events.
 *   pending  the section ran with the update that is carried into it
 *   tickets  [ops] of its collectives */
sh_rc sh_exec_trace_section(struct sh_exec_trace *t, const struct sh_section *s, bool pending, const int64_t *tickets);

#endif
