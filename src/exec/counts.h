/* Rows that travel in waves (ROUTE_WAVE, kernels/op.h), on a device whose memory the host cannot read. How many rows each
 * rank has for each is written to pinned host memory: whoever starts an ALL_TO_ALL reads it there. The host waits for the
 * device once for all waves of a router, before the first operation that depends on them; the backward finds them known.
 *
 * Then the host also knows which operations have nothing to do, and leaves them out: an exchange, with its wait, if no
 * rank has rows in its wave, which all ranks find alike; a product, if none have come here. Inside src/exec; local. */
#ifndef SH_EXEC_COUNTS_H
#define SH_EXEC_COUNTS_H

#include "src/device/device.h"
#include "src/program/program.h"

struct sh_counts;

/* From now on the counts in the calls of the program [ops] are in that memory. Everything is lent until the end.
 *   queue  of the operations
 *   out    NULL: the program counts no rows, or the host reads the device's memory
 * Errors: SH_E_MEMORY. */
sh_rc sh_counts_open(const struct sh_program *p, const struct sh_device *device, void *queue, struct sh_op_call *calls,
                     struct sh_counts **out);
void sh_counts_close(struct sh_counts *c); /* NULL: nothing */

/* Operation `op` of the program has been put into the queue. */
void sh_counts_note(struct sh_counts *c, int op);

/* Whether operation `op` has nothing to do. Waits for the device if that is not known yet. NULL: it has. */
bool sh_counts_idle(struct sh_counts *c, int op);

#endif
