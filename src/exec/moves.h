/* The file tier of a program while it runs: the moves of its sections, and its slices between sections. Inside
 * src/exec.
 *
 * Between sections nothing lives in the part of the arena that sections share, so slices that the host looks at are
 * brought there, as many as fit; at least one fits, since the update needs the same room. Local. Only if the device is
 * the host. */
#ifndef SH_EXEC_MOVES_H
#define SH_EXEC_MOVES_H

#include "src/program/program.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_moves;

/* Open the scratch file of a program with a file tier.
 *   arena  [own_bytes], of the device
 * Errors: those of sh_tier_open(). */
sh_rc sh_moves_open(const struct sh_program *p, char *arena, const char *folder, bool verify, struct sh_moves **out);
void sh_moves_close(struct sh_moves *m); /* NULL: nothing */

/* Start a FETCH or EVICT of the program, and wait for one. Errors: SH_E_BUG; of the wait SH_E_DATA. */
sh_rc sh_moves_start(struct sh_moves *m, const struct sh_op *op, int64_t *ticket);
sh_rc sh_moves_wait(struct sh_moves *m, int64_t ticket);

/* Bytes of the moves started since the last call. */
void sh_moves_take(struct sh_moves *m, int64_t *in_bytes, int64_t *out_bytes);

/* As in exec.h. */
sh_rc sh_moves_lend(struct sh_moves *m, int slice, bool change, char **extent);
void sh_moves_give_back(struct sh_moves *m);
sh_rc sh_moves_settle(struct sh_moves *m);

/* Write zeros to slices that were never written; forget: treat all slices as never written. Nothing may be lent. */
sh_rc sh_moves_fill(struct sh_moves *m);
void sh_moves_forget(struct sh_moves *m);

#endif
