/* A machine from runs that exist: what they took beats any preset. Local, pure. */
#ifndef SH_COST_FIT_H
#define SH_COST_FIT_H

#include "src/cost/step.h"

struct sh_cost_run {
    const struct sh_program *p;
    const struct sh_mesh_shape *mesh;
    int ranks_per_node;
    double seconds;       /* measured, of a step */
    double before, after; /* out: predicted by the machine as it was, and as it is fitted */
};

/* What is found: factors on the machine's figures, but for the host's seconds. */
struct sh_cost_fitted {
    double computation; /* of all computation */
    double host_seconds;
    double hops;  /* of the latencies, inside and between nodes */
    double share; /* of the network that collectives reach */
    double crowding;
    double error; /* mean, of the runs themselves */
};

/* Least sum of Huber losses of log(predicted / measured), quadratic to 12 %, with priors in the logarithm around the machine
 * as it is: 0.15 for computation, 0.5 for the host, 0.4 for latencies, 0.1 and 0.2 for the network. One run says how fast
 * computation is, and no more. Of several, what is left of runs of one work (prices.h) then becomes a factor on the
 * computation of that work: errors of the formulas belong to shapes, and come again on more ranks. It is the mean, of errors
 * up to 12 %, times n / (n + 1) for n runs, as if an error of the formula and the scatter of a run were of one size; a point
 * "step" of *m holds it, and those that *m had are dropped. *m becomes the machine that was found.
 * Errors: those of sh_cost_step(). Cost: some 1,000 predictions of each run. */
sh_rc sh_cost_fit(struct sh_cost_run *runs, int n, struct sh_machine *m, struct sh_cost_fitted *out);

#endif
