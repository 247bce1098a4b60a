/* What the routers of a mixture of experts report in a step (SH_PORT_ROUTERS): the loads of the experts and the losses
 * that even them out. Nothing is reported if the model has no experts. Local; the same on all ranks. */
#ifndef SH_WATCH_ROUTERS_H
#define SH_WATCH_ROUTERS_H

#include "src/metrics/metrics.h"
#include "src/program/port.h"
#include "src/run/tree.h"

struct sh_run;

struct sh_routers {
    int blocks, experts;      /* blocks with experts; 0: none */
    int waves;                /* in which rows travel at most; 0: they do not */
    double *sums;             /* as in the port */
    bool *own;                /* of the port, what this rank's stage writes; NULL without stages */
    double *largest, *spread; /* [blocks] for the metrics */
    struct sh_tree losses[SH_ROUTER_LOSSES];
};

void sh_routers_open(struct sh_routers *s, const struct sh_run *r);
void sh_routers_close(struct sh_routers *s);

/* Before the micro-steps of a step. A stage writes only what its own blocks report: the others' part of the sum is zero. Its
 * own stays until it is written, since a carried update moves biases by the loads of the step before. */
void sh_routers_begin(struct sh_routers *s, struct sh_run *r);

/* If sums are trees: add the losses of the micro-step just done; after the last one, put their sums into the port. */
void sh_routers_add(struct sh_routers *s, struct sh_run *r);
void sh_routers_total(struct sh_routers *s, struct sh_run *r);

/* After NORM. Losses are means over the tokens of the step; *out lends arrays of s until the next step. */
void sh_routers_take(struct sh_routers *s, struct sh_run *r, int64_t tokens, struct sh_router_metrics *out);

#endif
