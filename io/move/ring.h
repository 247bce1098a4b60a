/* A ring of slots in memory that neighbouring ranks of a node share: they copy their parts of a row of chunks of
 * the file into it, and one of them, the writer, writes a chunk once it is complete. Chunk `job` goes through slot
 * job % SH_MOVE_RING_SLOTS.
 *
 * Each thread: enter, copy, add; the writer then: wait, write, leave. All but create local, by any thread, without MPI.
 * Who waits here is released by give_up of any rank. A rank that is gone releases nobody: the deadline of the stage is
 * for that. */
#ifndef IO_MOVE_RING_H
#define IO_MOVE_RING_H

#include "src/base/err.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

enum { SH_MOVE_CHUNK_BYTES = 8 << 20, SH_MOVE_RING_SLOTS = 8 };

struct sh_move_ring;

/* Memory: 8 slots of 8 MiB for the group, as far as they are used. Collective over the group, ranks of one node; not
 * agreed: it may fail on some of them, and leave *out as it was on others.
 * Errors: SH_E_COMM: these ranks cannot share memory; SH_E_MEMORY. */
sh_rc sh_move_ring_create(MPI_Comm group, struct sh_move_ring **out);
void sh_move_ring_destroy(struct sh_move_ring *ring); /* local; NULL: nothing */

/* The slot of a chunk, aligned to pages, with room for one and two pages; comes back when the chunk before it has left.
 * NULL: given up. */
char *sh_move_ring_enter(struct sh_move_ring *ring, int64_t job);
void sh_move_ring_add(struct sh_move_ring *ring, int64_t job, int64_t bytes); /* so many more of the chunk are in it */

/* Until all its `bytes` are; false: given up. */
bool sh_move_ring_wait(struct sh_move_ring *ring, int64_t job, int64_t bytes);
void sh_move_ring_leave(struct sh_move_ring *ring, int64_t job); /* written: the slot is free */
void sh_move_ring_give_up(struct sh_move_ring *ring);

#endif
