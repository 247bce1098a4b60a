/* What those who look at the operations of a section have to know of them: where one would stand in a step of one stage, and
 * how many rows of what it makes are written. Local. */
#ifndef SH_MEASURE_WALK_H
#define SH_MEASURE_WALK_H

#include "src/program/program.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_run;

/* Where an operation would stand if one stage had all layers and made one micro-step after the other. What an operation
 * reads of other ranks comes before it. At most 2^52.
 *   micro  its micro-step */
int64_t sh_walk_place(const struct sh_run *r, int op, int micro);

/* Rows that travel to experts on other ranks have room for more than may come (ROUTE_WAVE in kernels/op.h). */
struct sh_walk_rows {
    const struct sh_run *r;
    int *wave; /* [n_tensors] of a root: the end of the rows of this tensor, groups of a wave, is that of its rows;
                  SH_NONE: it has no such rows; SCATTERED (walk.c): some of its rows lie elsewhere */
    int *live; /* [n_tensors] of groups: their rows in the section that is running */
};

void sh_walk_rows_make(struct sh_walk_rows *w, const struct sh_run *r);
void sh_walk_rows_free(struct sh_walk_rows *w);

/* Call it after each operation of a section. */
void sh_walk_rows_note(struct sh_walk_rows *w, int op);

/* The elements of a tensor, in up to two parts, that an operation which has just run has written, or may have read. */
struct sh_walk_part {
    int64_t begin, end;
};
void sh_walk_rows_parts(const struct sh_walk_rows *w, const struct sh_op *op, int tensor, struct sh_walk_part part[2]);

#endif
