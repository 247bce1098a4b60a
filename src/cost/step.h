/* The predicted seconds of a training step: its program is simulated as events on the streams of one rank. All ranks
 * of a stage run the same program, so one is enough; differences between them are a factor. Stages are simulated
 * together. Local, pure: no clock, no MPI. */
#ifndef SH_COST_STEP_H
#define SH_COST_STEP_H

#include "src/cost/price.h"

struct sh_pipe_stages; /* src/pass/pipeline/stages.h */
struct sh_trace;       /* src/metrics/trace.h */

struct sh_cost_request {
    const struct sh_program *p;
    const struct sh_mesh_shape *mesh;
    const struct sh_pipe_stages *stages; /* of a pipeline, of which p is one; NULL: p is the program of all ranks */
    const struct sh_machine *machine;
    int ranks_per_node;           /* at least 1 */
    bool shares;                  /* ranks of a node can share memory (src/plan/topology.h) */
    struct sh_cost_faster faster; /* sh_cost_as_is */
    struct sh_trace *trace;       /* (optional) gets the events of a step, from time 0 on; rows as in a real trace */
};

/* In seconds per step, except the counts. For a collective, `alone` is the time that it takes by itself, whatever it
 * overlaps with. */
struct sh_cost_row {
    double alone;   /* without concurrent collectives */
    double slowed;  /* of computation: what concurrent collectives add; attributed by time */
    double exposed; /* computation waits for it */
    double flops, bytes, latency;
    int64_t calls;
    bool first, last; /* more than half of the exposed time belongs to the first call of the step; to the last */
};
struct sh_cost_step {
    double seconds; /* all of it */
    double spread, host;
    double bubble; /* this stage has nothing to do until another one comes as far; without the messages themselves */
    struct sh_cost_row row[SH_COST_CLASSES];
};

/* *out is that of the rank of r->mesh. Errors: those of sh_cost_check_network(). Cost: about 0.2 us an operation. */
sh_rc sh_cost_step(const struct sh_cost_request *r, struct sh_cost_step *out);
/* The same for all stages: r->stages->n steps of equal length. */
sh_rc sh_cost_stages(const struct sh_cost_request *r, struct sh_cost_step *out);

/* Errors: SH_E_USAGE: the job spans nodes and the machine has no network. */
sh_rc sh_cost_check_network(const struct sh_machine *m, int ranks, int ranks_per_node);

/* How much slower than the mean the slowest of k is, in standard deviations; k >= 1; 0 if k is 1. */
double sh_cost_slowest(double k);

#endif
