/* The trace of some steps of a run: profiling.trace, trace_first_step (counted from the start of this process, so a
 * resumed run has one too), trace_steps. The ranks write one file, one after the other; ranks beyond the first
 * SH_TRACED_RANKS are left out, because a viewer shows no more. */
#ifndef SH_WATCH_TRACING_H
#define SH_WATCH_TRACING_H

#include "src/base/err.h"
#include <stdint.h>

struct sh_run;

enum { SH_TRACED_RANKS = 16 };

struct sh_tracing {
    struct sh_trace *trace;
    int64_t steps;   /* begun since the start of this process */
    int64_t until;   /* step of the run after which the file is written */
    int64_t step;    /* steps done when the current one began */
    int64_t step_ns; /* when that was */
};

/* Check before any step that the file can be created; rank 0 looks. Local. */
sh_rc sh_tracing_check(const struct sh_run *r);

/* Collective over the job; SH_E_DATA if the file cannot be written. The file gets its name once it is complete. */
void sh_tracing_before_step(struct sh_tracing *t, struct sh_run *r);
sh_rc sh_tracing_after_step(struct sh_tracing *t, struct sh_run *r);
sh_rc sh_tracing_finish(struct sh_tracing *t, struct sh_run *r); /* after the last step: write what there is, or warn */

void sh_tracing_close(struct sh_tracing *t, struct sh_run *r); /* local; a trace not yet written is dropped */

#endif
