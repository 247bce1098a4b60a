/* Visit the state of a run wherever it lives, to look at all of it or to change it, stretch by stretch. A unit whose
 * states are in memory is one stretch. If a unit has slices in a file, each slice is brought to memory, visited, and
 * put back if it was changed. Only between sections, and with no update pending (sh_exec_settle()); else SH_E_BUG.
 * Local. On devices with memory of their own, stretches are at device addresses, or, for slices, in pinned host memory,
 * which kernels of the device reach as well; the visitor must access them through the executor. */
#ifndef SH_RUN_VISIT_H
#define SH_RUN_VISIT_H

#include "src/base/floats.h"
#include "src/layout/layout.h"
#include "src/program/program.h"

struct sh_run;

/* Elements [first, first + n) of this rank's chunk of a unit. */
struct sh_stretch {
    int64_t first, n;
    struct sh_floats state[1 + SH_STATES_MAX]; /* numbered as by sh_shards_states(); only those that were asked for */
};
typedef void sh_visit_look(const struct sh_stretch *s, void *arg);

/* Visit the stretches of `part` of a trained unit's chunk, in order.
 *   states  bit k: state k is read, and with `change` written
 * From any thread; one thread at a time has a slice. Errors: SH_E_DATA of the file. */
sh_rc sh_visit(const struct sh_run *r, const struct sh_unit *u, struct sh_range part, unsigned states, bool change,
               sh_visit_look *look, void *arg);

/* Visit all states of all elements that the rank owns, without padding. A failing file stops the job. */
void sh_visit_all(const struct sh_run *r, const struct sh_unit *u, bool change, sh_visit_look *look, void *arg);

#endif
