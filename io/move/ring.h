/* A ring of slots in memory shared by neighbouring ranks of a node: they copy their parts of a sequence of file chunks
 * into it, and one of them, the writer, writes a chunk once it is complete. Chunk `job` goes through slot
 * job % SH_MOVE_RING_SLOTS.
 *
 * Each thread: enter, copy, add; the writer then: wait, write, leave. All except create are local, may be called by any
 * thread and use no MPI. A thread that waits here is released when any rank calls give_up. A rank that died releases
 * nobody: the deadline of the stage covers that case. */
#ifndef IO_MOVE_RING_H
#define IO_MOVE_RING_H

#include "src/base/err.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

enum { SH_MOVE_CHUNK_BYTES = 8 << 20, SH_MOVE_RING_SLOTS = 8 };

struct sh_move_ring;

/* Memory: 8 slots of 8 MiB for the group, of which only used pages count. Collective over the group, ranks of one node;
 * not agreed: it may fail on some of them, and leave *out unchanged on others.
 * Errors: SH_E_COMM: these ranks cannot share memory; SH_E_MEMORY. */
sh_rc sh_move_ring_create(MPI_Comm group, struct sh_move_ring **out);
void sh_move_ring_destroy(struct sh_move_ring *ring); /* local; NULL: nothing */

/* Return the slot of a chunk, aligned to pages, with room for a chunk and two pages; waits until the previous chunk in
 * this slot has been written. NULL: given up. */
char *sh_move_ring_enter(struct sh_move_ring *ring, int64_t job);
void sh_move_ring_add(struct sh_move_ring *ring, int64_t job, int64_t bytes); /* that many more bytes are in */

/* Wait until all `bytes` of the chunk are in the slot; false: given up. */
bool sh_move_ring_wait(struct sh_move_ring *ring, int64_t job, int64_t bytes);
void sh_move_ring_leave(struct sh_move_ring *ring, int64_t job); /* written: the slot is free */
void sh_move_ring_give_up(struct sh_move_ring *ring);

#endif
