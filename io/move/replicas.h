/* Ranks that want the same parts of a file, like the replicas of a shard. Each reads a share and hands it to the
 * others: the file is read once by all nodes together, however many replicas there are. */
#ifndef IO_MOVE_REPLICAS_H
#define IO_MOVE_REPLICAS_H

#include "src/base/number/floats.h"
#include "src/base/err.h"

#include <mpi.h>
#include <stdint.h>

struct sh_move_replicas {
    MPI_Comm comm;  /* MPI_COMM_NULL for a single rank */
    int rank, size; /* in comm; 0 of 1 for a single rank */
};

/* A rank that reads for itself. Local. */
struct sh_move_replicas sh_move_replicas_alone(void);

/* Find the ranks that gave the same `wanted`, a hash of what they want in order. Collective over the job. Errors:
 * SH_E_COMM. */
sh_rc sh_move_replicas_find(uint64_t wanted, struct sh_move_replicas *out);
void sh_move_replicas_free(struct sh_move_replicas *r); /* collective over them */

/* Send `elems` floats, at most a block, from replica `root` to all; all hold them in the same form. Collective over r.
 * Errors: SH_E_COMM. */
sh_rc sh_move_replicas_broadcast(const struct sh_move_replicas *r, int root, struct sh_floats data, int64_t elems);

/* Read items [0, n) in rounds, `turn` of them by each replica: `read` reads items [first, first + n) of this rank's
 * turn, `hand` sends item i from replica `root` to all. A rank that has failed keeps taking part, since all agree on
 * the outcome at the end. Collective over r. Errors: those of this rank's `read`; those of `hand`, at once. */
sh_rc sh_move_replicas_read(const struct sh_move_replicas *r, int n, int turn,
                            sh_rc (*read)(void *arg, int first, int n), sh_rc (*hand)(void *arg, int i, int root),
                            void *arg);

/* Whether one of the replicas has failed. Collective over r. Errors: SH_E_COMM. */
sh_rc sh_move_replicas_any(const struct sh_move_replicas *r, int failed, int *any);

#endif
