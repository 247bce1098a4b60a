/* Chrome trace event file: opens in Perfetto and chrome://tracing. A process per rank; in it a row per stream, one for
 * waits, and above them one for the steps and their sections. Arrows lead from each collective to its wait. Each rank
 * collects its events in memory; sh_trace_text() gives them as text, and the caller joins the ranks' texts between
 * sh_trace_head() and sh_trace_foot. Local.
 *
 * Order: sh_trace_create, sh_trace_clock, sh_trace_program (trace_op.h), events, sh_trace_text, sh_trace_destroy. */
#ifndef SH_METRICS_TRACE_H
#define SH_METRICS_TRACE_H

#include "src/mesh/shape.h"

#include <stdint.h>

struct sh_trace;

/* The row of steps and sections; streams and waits have 0, 1, ... */
enum { SH_TRACE_STEPS = 1000 };

/* Strings are copied, cut if they are longer than given here, with '?' for characters that JSON would have to
 * escape. */
/* clang-format off */
struct sh_trace_event {
    int row;
    const char *name;           /* 63 characters */
    const char *what;           /* 79; what is made, or waited for */
    const char *cat;            /* "forward", "comm": viewers filter by it; not copied: lives as long as the trace */
    int64_t begin_ns, end_ns;   /* sh_now_ns() */
    double flops, bytes;        /* least work; of a collective: bytes received by this rank, no flops. < 0: not known */
    const char *axis;           /* of a collective: its group, 19 characters; NULL: not a collective */
    int ranks;                  /* of that group */
    int64_t ticket;             /* of a collective, and of the wait for it: > 0, its own; 0: none */
};
/* clang-format on */

/* The mesh is lent: the events are those of its rank. */
struct sh_trace *sh_trace_create(const struct sh_mesh_shape *mesh, const char *host);
void sh_trace_destroy(struct sh_trace *t);

/* The moment that is 0 in the file, in this rank's clock; it is the same moment on other ranks, up to the uncertainty.
 * Without a call, times are taken as they are. */
void sh_trace_clock(struct sh_trace *t, int64_t origin_ns, int64_t uncertainty_ns);

const struct sh_mesh_shape *sh_trace_mesh(const struct sh_trace *t);
void sh_trace_row(struct sh_trace *t, int row, const char *name);
void sh_trace_add(struct sh_trace *t, const struct sh_trace_event *e);

/* Add a step that is over: an event on its row, and as a counter the share of the step that its waits took. */
void sh_trace_step(struct sh_trace *t, int64_t step, int64_t begin_ns, int64_t end_ns);

/* Add a counter value: bytes of the arena in use from this time on. */
void sh_trace_arena(struct sh_trace *t, int64_t at_ns, int64_t bytes);

/* The text belongs to `t` and is valid until the next call or sh_trace_destroy. */
const char *sh_trace_text(struct sh_trace *t, int64_t *bytes);

/* What the head of a file says. */
struct sh_trace_about {
    const char *config;  /* sh_config_digest() */
    const char *machine; /* for which the times are predicted; NULL: they were measured */
    int ranks;           /* of the job; the file may have fewer */
};
char *sh_trace_head(const struct sh_trace_about *about); /* freed with free() */
extern const char sh_trace_foot[];

#endif
