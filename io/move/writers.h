/* Decides which ranks write, with direct I/O. If the ranges of a rank in the file are long, each rank writes its own.
 * If they are short, as with thousands of ranks, neighbours on a node form a group: they pass their parts through
 * shared memory to the first of them, which writes the longer ranges that they form together. The bytes of the file are
 * the same. */
#ifndef IO_MOVE_WRITERS_H
#define IO_MOVE_WRITERS_H

#include "io/move/ranges.h"
#include "io/move/ring.h"

/* All zero: none chosen. */
struct sh_move_writers {
    struct sh_move_range *range; /* [n_ranges] of the group, in order */
    int n_ranges;
    bool writes;               /* this rank writes for its group */
    struct sh_move_ring *ring; /* NULL: a group of one */
};

/* Choose the writers for the ranges of all ranks.
 *   own             in  [n] this rank's, sorted and joined
 *   per_node        in  writers on each node, or 0: each rank if the mean range in the file has at least 4 MiB, else
 *                       2 per node if that makes the ranges at least twice as long and ranks can share memory
 *   ranks_per_node  in  ranks of a node; these must really be on one node. 0: as MPI reports
 * Collective, not agreed; always free the result. Errors: SH_E_COMM: ranks of a node cannot share memory; SH_E_BUG: two
 * ranks hold the same elements. Cost: a few sums and splits of the job; within a group all learn the ranges of all. */
sh_rc sh_move_writers_choose(struct sh_move_writers *w, const struct sh_move_range *own, int n, int per_node,
                             int ranks_per_node);

/* This rank will pass on no more data: release the others that wait for it. Local. */
void sh_move_writers_give_up(struct sh_move_writers *w);
void sh_move_writers_free(struct sh_move_writers *w); /* local */

#endif
