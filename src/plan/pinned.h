/* Host memory that the ranks of a node pin beside their GPUs, against what the node has. Pinned memory is never swapped,
 * so a node that has less ends with processes killed in mid-run, or does not start. */
#ifndef SH_PLAN_PINNED_H
#define SH_PLAN_PINNED_H

#include "src/program/program.h"

/* Bytes that a rank pins: homes below the device, and snapshots; 0 on CPUs. Local. */
int64_t sh_pinned_bytes(const struct sh_program *p);

/*   ranks  of the node; each pins what this program does, for chunks and homes are equal
 *   bytes  that the node has for them; 0: not known, and nothing is compared
 *   whose  what has so much, for the message: "this node has free"
 * Local. Errors: SH_E_MEMORY. */
sh_rc sh_pinned_check(const struct sh_program *p, int ranks, int64_t bytes, const char *whose);

#endif
