/* Fit a machine to measured runs: their times beat any preset. Local, pure. */
#ifndef SH_PREDICT_FIT_H
#define SH_PREDICT_FIT_H

#include "src/cost/step.h"

struct sh_predict_run {
    const struct sh_program *p;
    const struct sh_mesh_shape *mesh;
    int ranks_per_node;
    bool shares;          /* as in struct sh_cost_request */
    double seconds;       /* measured, of a step */
    double before, after; /* out: predicted with the machine before the fit, and after it */
};

/* The result: factors on the figures of the machine, except host_seconds. */
struct sh_predict_fitted {
    double computation; /* on all computation */
    double host_seconds;
    double hops;  /* on the latencies, inside and between nodes */
    double share; /* on the share of the network that collectives reach */
    double crowding;
    double error; /* mean error over these runs */
};

/* Minimise the sum of Huber losses of log(predicted / measured), quadratic up to 12 %, with priors in the logarithm
 * around the given machine: 0.15 for computation, 0.5 for the host, 0.4 for latencies, 0.1 and 0.2 for the network. A
 * single run fits only the speed of computation. With several runs, the remaining error of runs of the same work
 * (prices.h) becomes a factor on the computation of that work: errors of the formulas belong to shapes, and recur on
 * more ranks. The factor is the mean of errors, capped at 12 %, times n / (n + 1) for n runs, as if the error of the
 * formula and the scatter of a run had the same size. A "step" point of *m holds it; earlier "step" points of *m are
 * dropped. *m becomes the fitted machine.
 * Errors: those of sh_cost_step(). Cost: about 1,000 predictions of each run. */
sh_rc sh_predict_fit(struct sh_predict_run *runs, int n, struct sh_machine *m, struct sh_predict_fitted *out);

#endif
