/* Whether the programs of all ranks of a job belong together: before it starts, and without starting it. Local: one
 * process looks at one rank after the other. */
#ifndef SH_PLAN_RANKS_H
#define SH_PLAN_RANKS_H

#include "src/pass/build.h"

/* The programs, one at a time. */
struct sh_ranks {
    int world;
    int ranks_per_node; /* at least 1; neighbours */
    int64_t rank_bytes; /* what a rank may take; 0: no limit */
    int64_t node_bytes; /* the same of the ranks of a node together */
    int64_t sequences;  /* of a step, over all ranks */
    int batch;          /* of a micro-step of a rank */
    /* *p and *mesh are lent until the next call. */
    sh_rc (*get)(void *from, int rank, const struct sh_program **p, const struct sh_mesh_shape **mesh);
    void *from;
};

struct sh_ranks_found {
    int collectives;                /* of a step */
    int64_t most_bytes, node_bytes; /* of the largest rank, of the fullest node */
    int largest_rank, fullest_node;
    int64_t state_least, state_most; /* trained elements that a rank owns, and so has of a checkpoint */
};

/* Compares with rank 0: meshes and groups; collectives in their order, with sizes and types on both sides; units and
 * chunks. Then all together: every element that is trained has one owner, who updates it and squares it, and no other is
 * updated; every sequence of a step has one rank; memory.
 * Errors: SH_E_BUG with the rank, and the operation or unit; SH_E_MEMORY; those of get().
 * Cost: some 0.1 ms a rank for 12,000 operations. */
sh_rc sh_ranks_check(const struct sh_ranks *ranks, struct sh_ranks_found *out);

/* The programs of a request, for get(): built once for each place in the group `inner`, and made into those of the others. */
struct sh_ranks_built;
sh_rc sh_ranks_build(const struct sh_build *b, struct sh_ranks_built **out);
void sh_ranks_free(struct sh_ranks_built *b);
sh_rc sh_ranks_get(void *built, int rank, const struct sh_program **p, const struct sh_mesh_shape **mesh);

#endif
