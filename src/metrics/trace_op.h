/* How a program appears in a trace, whether it ran or was predicted: with the same rows, names and fields. Local. */
#ifndef SH_METRICS_TRACE_OP_H
#define SH_METRICS_TRACE_OP_H

#include "src/metrics/trace.h"
#include "src/program/program.h"

/* Where a trace is in a program: sections come one after the other. */
struct sh_trace_place {
    const struct sh_program *p;
    const struct sh_section *section;
    int micro_step; /* of the step, from 1; 0: the section is not one */
};

/* Name the rows: the streams, the waits, the steps. */
void sh_trace_program(struct sh_trace *t, const struct sh_program *p);

/* Enter a section: the next one of at->p. */
void sh_trace_enter(struct sh_trace_place *at, const struct sh_section *section);

/* Add operation `op` of the program, which is in that section; a marker has no event. For a collective, `bytes` are
 * those that this rank received. */
struct sh_trace_timed {
    int op;
    int64_t begin_ns, end_ns, ticket;
    double flops, bytes; /* negative: not known */
};
void sh_trace_op(struct sh_trace *t, const struct sh_trace_place *at, const struct sh_trace_timed *timed);

/* Add the section itself, on the row of steps. */
void sh_trace_section(struct sh_trace *t, const struct sh_trace_place *at, int64_t begin_ns, int64_t end_ns);

#endif
