/* The state of a run wherever it lives: what looks at all of it, or changes it, goes from stretch to stretch. A unit whose
 * states are in memory is one stretch; of one with slices in a file each is brought, looked at, and put back where it was
 * changed. Between sections only, and with no update pending (sh_exec_settle()), which is SH_E_BUG. Local. On devices with
 * memory of their own stretches are at device addresses, or of slices in pinned host memory, which kernels of the device reach
 * as well: what looks at them does so through the executor. */
#ifndef SH_RUN_VISIT_H
#define SH_RUN_VISIT_H

#include "src/base/floats.h"
#include "src/layout/layout.h"
#include "src/program/program.h"

struct sh_run;

/* Elements [first, first + n) of this rank's chunk of a unit. */
struct sh_stretch {
    int64_t first, n;
    struct sh_floats state[1 + SH_STATES_MAX]; /* as sh_shards_states() counts them, those that were asked for */
};
typedef void sh_visit_look(const struct sh_stretch *s, void *arg);

/* Of a trained unit, those of `part` of its chunk, in order.
 *   states  bit k: state k is looked at, and with `change` written
 * Any thread; one looks at a slice at a time. Errors: SH_E_DATA of the file. */
sh_rc sh_visit(const struct sh_run *r, const struct sh_unit *u, struct sh_range part, unsigned states, bool change,
               sh_visit_look *look, void *arg);

/* All states of all that the rank owns, without padding. A file that fails stops the job. */
void sh_visit_all(const struct sh_run *r, const struct sh_unit *u, bool change, sh_visit_look *look, void *arg);

#endif
