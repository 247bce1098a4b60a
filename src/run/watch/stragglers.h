/* How evenly the ranks work. Each rank measures its own time in a step, computing and reading data without waiting for
 * others; now and then rank 0 gathers the means. One late rank makes all others wait, so it is named with its node.
 * Cost: 8 bytes per rank each time, through a tree; 64 bytes per rank at the start. */
#ifndef SH_WATCH_STRAGGLERS_H
#define SH_WATCH_STRAGGLERS_H

#include "src/job/job.h"
#include "src/base/err.h"
#include <stdint.h>
#include "src/metrics/metrics.h"

struct sh_run;

struct sh_stragglers {
    struct sh_job_pace pace; /* rank 0, like the next two */
    char (*host)[64];        /* [world] */
    double *seconds;         /* [world] */
    double sum;              /* seconds of this rank since the last gather */
    int64_t steps;
};

sh_rc sh_stragglers_open(struct sh_stragglers *s, const struct sh_run *r); /* collective */
void sh_stragglers_close(struct sh_stragglers *s);

void sh_stragglers_add(struct sh_stragglers *s, double seconds); /* a step of this rank; local */

/* Gather what was added since the last time; rank 0 fills *out and warns of a straggler. Does nothing if there is only
 * one rank.
 * Collective. */
sh_rc sh_stragglers_gather(struct sh_stragglers *s, const struct sh_run *r, struct sh_pace_metrics *out);

#endif
