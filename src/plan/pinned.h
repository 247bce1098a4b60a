/* Compare the host memory that the ranks of a node with GPUs pin with what the node has. Pinned memory is never
 * swapped, so on a node with less memory processes are killed in mid-run, or the run does not start. */
#ifndef SH_PLAN_PINNED_H
#define SH_PLAN_PINNED_H

#include "src/program/program.h"

/* Bytes that a rank pins: homes in the host tier, and snapshots; 0 on CPUs. Local. */
int64_t sh_pinned_bytes(const struct sh_program *p);

/*   ranks  of the node; each pins as much as this program, because chunks and homes have equal sizes
 *   bytes  that the node has for them; 0: not known, and nothing is compared
 *   whose  what these bytes are, for the message: "the free memory of this node is"
 * Local. Errors: SH_E_MEMORY. */
sh_rc sh_pinned_check(const struct sh_program *p, int ranks, int64_t bytes, const char *whose);

#endif
