/* Overlap of collectives that exchange rows of the model, a walk of the schedule pass. */
#ifndef SH_PASS_SCHEDULE_ROWS_H
#define SH_PASS_SCHEDULE_ROWS_H

#include "src/program/program.h"

/* Reorder a micro-step: order[n] are places in `ops`, the old section, in which waits_for counts too. Starts and waits
 * of other collectives keep their order. Nothing changes in a section without such collectives. */
void sh_schedule_rows(const struct sh_program *p, const struct sh_op *ops, int *order, int n);

#endif
