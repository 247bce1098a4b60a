/* The largest magnitude of what the forward of each block makes in a step: a part of metrics.norms. Rows that are sorted by
 * expert are left out, since some are never written. The same bits on any mesh if the step has them and matrices are not cut:
 * parts of a product's sum are looked at, too.
 *
 * Cost: one more read of the forward's outputs, on a GPU through its host; 8 bytes a block are reduced. */
#ifndef SH_MEASURE_LARGEST_H
#define SH_MEASURE_LARGEST_H

#include "src/base/err.h"

#include <stdint.h>

struct sh_run;

struct sh_largest {
    struct sh_run *r;
    int blocks;
    uint32_t *bits; /* [blocks] of this rank: those of a float without its sign, so NaN is the largest */
    double *value;  /* [blocks] of all ranks */
    char **name;    /* [blocks] "layers.0" */
    char *copy;     /* of an output on a GPU */
    int64_t room;
};

/* Around the micro-steps of a step: local. Then gather over the ranks: collective. */
void sh_largest_begin(struct sh_largest *l, struct sh_run *r);
void sh_largest_end(struct sh_largest *l);
sh_rc sh_largest_gather(struct sh_largest *l);

void sh_largest_close(struct sh_largest *l); /* local */

#endif
