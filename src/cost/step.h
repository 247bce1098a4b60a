/* The seconds of a training step: its program as events over the streams of one rank. All ranks run the same program, so
 * one is enough; what differs between them is a factor. Local, pure: no clock, no MPI. */
#ifndef SH_COST_STEP_H
#define SH_COST_STEP_H

#include "src/cost/price.h"

struct sh_trace; /* src/metrics/trace.h */

struct sh_cost_request {
    const struct sh_program *p;
    const struct sh_mesh_shape *mesh;
    const struct sh_machine *machine;
    int ranks_per_node;           /* at least 1 */
    bool shares;                  /* those of a node can share memory (src/plan/topology.h) */
    struct sh_cost_faster faster; /* sh_cost_as_is */
    struct sh_trace *trace;       /* (optional) gets the events of a step, from 0 on; rows as those of a real trace */
};

/* In seconds of a step, but for the counts. Of a collective, `alone` is what it takes by itself, beside whatever goes on. */
struct sh_cost_row {
    double alone;   /* without collectives beside it */
    double slowed;  /* what those add, of computation; shared out by time */
    double exposed; /* computation waits for it */
    double flops, bytes, latency;
    int64_t calls;
    bool first, last; /* of what is exposed, more than half is of the first one of the step; of the last one */
};
struct sh_cost_step {
    double seconds; /* all of it */
    double spread, host;
    struct sh_cost_row row[SH_COST_CLASSES];
};

/* Errors: those of sh_cost_check_network(). Cost: about 0.2 us an operation. */
sh_rc sh_cost_step(const struct sh_cost_request *r, struct sh_cost_step *out);

/* Errors: SH_E_USAGE: the job spans nodes and the machine has no network. */
sh_rc sh_cost_check_network(const struct sh_machine *m, int ranks, int ranks_per_node);

/* How much slower than the mean the slowest of k is, in standard deviations; k >= 1, 0 for one. */
double sh_cost_slowest(double k);

/* Computation without collectives, launches included: what no schedule and no network can beat. */
double sh_cost_floor(const struct sh_cost_request *r);

#endif
