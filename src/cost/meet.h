/* Where stages of a pipeline meet: messages between two stages, and collectives of all. A meeting begins once each
 * side has started it and the one before on the same way has ended. Inside src/cost; local. */
#ifndef SH_COST_MEET_H
#define SH_COST_MEET_H

#include "src/mesh/shape.h"
#include "src/program/program.h"

struct sh_meets;
struct sh_meets *sh_meets_create(int stages);
void sh_meets_free(struct sh_meets *m);

/* Whether ranks of other stages take part. */
bool sh_meets_at(const struct sh_mesh_shape *mesh, const struct sh_op *op);

/* A stage starts its next meeting of that kind at `now`; it takes `seconds`. Returns its number. Each stage counts alike,
 * so both sides of a message get the same number. */
int sh_meets_start(struct sh_meets *m, int stage, const struct sh_op *op, double now, double seconds);

/* When it ends; false: some side has not started it yet. */
bool sh_meets_end(const struct sh_meets *m, int stage, const struct sh_op *op, int number, double *end);

#endif
