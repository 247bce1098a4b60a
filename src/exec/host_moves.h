/* The host tier of a program that runs on a device with memory of its own: moves between that memory and pinned host
 * memory, in separate queues alongside the operations. Inside src/exec.
 *
 * A move begins after everything that the operations' queue was given before it, and what follows the move's wait in
 * that queue runs after the move; so all moves are over when the section is. Local. A failing device stops the job. */
#ifndef SH_EXEC_HOST_MOVES_H
#define SH_EXEC_HOST_MOVES_H

#include "src/device/device.h"
#include "src/program/program.h"

#include <stdint.h>

struct sh_host_moves;

/* Everything is lent until the end; the homes of slices and parameters become zeros.
 *   queue  of the operations */
struct sh_host_moves *sh_host_moves_open(const struct sh_program *p, const struct sh_device *device,
                                         const struct sh_bases *at, void *queue);
void sh_host_moves_close(struct sh_host_moves *m); /* NULL: nothing; waits for moves under way */

/* Start operation `op` of the program, a FETCH or EVICT; and make the operations' queue wait for it. */
void sh_host_moves_start(struct sh_host_moves *m, int op);
void sh_host_moves_join(struct sh_host_moves *m, int op);

/* Bytes of the moves started since the last call. */
void sh_host_moves_take(struct sh_host_moves *m, int64_t *in_bytes, int64_t *out_bytes);

/* Set the slices to zeros again. Between sections. */
void sh_host_moves_forget(struct sh_host_moves *m);

#endif
