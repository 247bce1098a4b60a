/* Inside src/tools/operations: the operations of a step against the reference kernels, which compute in float64. */
#ifndef SH_OPERATIONS_OPERATIONS_H
#define SH_OPERATIONS_OPERATIONS_H

#include "kernels/op.h"
#include "src/base/err.h"

#include <stdint.h>

struct sh_run;

enum { SH_OPERATIONS_TEXT = 256, SH_OPERATIONS_LISTED = 8 };

struct sh_operations {
    struct sh_run *r;
    struct sh_op_call before; /* the call of the operation under way, on copies in the host's memory */
    char *memory[SH_OP_MAX_IN + SH_OP_MAX_OUT];
    sh_rc rc;                                            /* of the references: the first that failed */
    int64_t operations[SH_OP_ROOM];                      /* compared, by kind */
    double share[SH_OP_ROOM];                            /* the largest difference over its bound */
    int64_t wrong;                                       /* operations beyond it; of the first ones ... */
    char text[SH_OPERATIONS_LISTED][SH_OPERATIONS_TEXT]; /* ... what is wrong, and where */
};

/* Turn a configuration into one for made-up data; then write them, on rank 0, once the run is open: training.dataset_path,
 * and objective.teacher_path if the objective has a teacher. Local. Errors: SH_E_USAGE: sequences are too short for answers;
 * SH_E_DATA. */
struct sh_config;
void sh_made_up_prepare(struct sh_config *cfg);
sh_rc sh_made_up_write(const struct sh_run *r);

/* Compare each operation that the executor runs from now on, on what it reads: one after the other, so a wrong result
 * is not the fault of those after it. End before the run is closed. Local. */
void sh_operations_begin(struct sh_operations *c, struct sh_run *r);
void sh_operations_end(struct sh_operations *c);

#endif
