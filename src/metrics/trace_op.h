/* A program as a trace has it, whether it ran or was predicted: the same rows, names and fields. Local. */
#ifndef SH_METRICS_TRACE_OP_H
#define SH_METRICS_TRACE_OP_H

#include "src/metrics/trace.h"
#include "src/program/program.h"

/* Where a trace is in a program: sections come one after the other. */
struct sh_trace_place {
    const struct sh_program *p;
    const struct sh_section *section;
    int micro_step; /* of the step, from 1; 0: the section is none */
};

/* Name the rows: the streams, what is waited for, the steps. */
void sh_trace_program(struct sh_trace *t, const struct sh_program *p);

/* Enter a section: the next one of at->p. */
void sh_trace_enter(struct sh_trace_place *at, const struct sh_section *section);

/* Operation i of the program, which is in that section; a marker has no event. Collectives: bytes that this rank received. */
struct sh_trace_timed {
    int op;
    int64_t begin_ns, end_ns, ticket;
    double flops, bytes; /* negative: not told */
};
void sh_trace_op(struct sh_trace *t, const struct sh_trace_place *at, const struct sh_trace_timed *timed);

/* The section itself, on the row of steps. */
void sh_trace_section(struct sh_trace *t, const struct sh_trace_place *at, int64_t begin_ns, int64_t end_ns);

#endif
