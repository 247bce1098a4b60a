/* Check that the programs of all ranks of a job fit together: before it starts, and without starting it. Local: one
 * process looks at one rank after the other. */
#ifndef SH_PLAN_RANKS_H
#define SH_PLAN_RANKS_H

#include "src/pass/build.h"

/* The programs, one at a time. */
struct sh_ranks {
    int world;
    int ranks_per_node; /* at least 1; neighbours */
    int64_t rank_bytes; /* what a rank may take; 0: no limit */
    int64_t node_bytes; /* the same for the ranks of a node together */
    int64_t sequences;  /* of a step, over all ranks */
    int batch;          /* sequences of a micro-step of a rank */
    int runs;           /* of the rows that it has of each, one after the other; 0: 1 */
    /* *p and *mesh are lent until the next call. */
    sh_rc (*get)(void *from, int rank, const struct sh_program **p, const struct sh_mesh_shape **mesh);
    void *from;
};

struct sh_ranks_found {
    int collectives;                /* of a step */
    int64_t most_bytes, node_bytes; /* of the largest rank, of the fullest node */
    int largest_rank, fullest_node;
    int64_t state_least, state_most; /* trained elements that a rank owns, its part of a checkpoint */
};

/* Compare each rank with the first of its stage, or with rank 0: meshes and groups; collectives in their order, with sizes and types on both sides;
 * units and chunks. Then check all ranks together: every trained element of a saved tensor, whoever holds which
 * bands of it, has one owner, which updates it and squares it, and no other element is updated; the messages of all
 * stages meet, and none waits for another for ever; every sequence of a step has one rank; memory is within the limits.
 * Errors: SH_E_BUG with the rank, and the operation or unit; SH_E_MEMORY; those of get().
 * Cost: about 0.1 ms per rank for 12,000 operations. */
sh_rc sh_ranks_check(const struct sh_ranks *ranks, struct sh_ranks_found *out);

/* The programs of a request, for get(): each is built once for each place on the axes that decide it, and once for the
 * last rank of a shard group, and then adapted for the other ranks. */
struct sh_ranks_built;
sh_rc sh_ranks_build(const struct sh_build *b, struct sh_ranks_built **out);
void sh_ranks_free(struct sh_ranks_built *b);
sh_rc sh_ranks_get(void *built, int rank, const struct sh_program **p, const struct sh_mesh_shape **mesh);

#endif
