/* Element types of files that others wrote, to float32 masters and back.
 *
 * Widening is exact: each float16, subnormals too, and each bfloat16 is a float32. Narrowing to bfloat16 gives the upper
 * half of kernels/floats.h, nearest with ties away from zero: what a run computes with, bit for bit, and what was widened
 * comes back. To float16: nearest, ties to even. Local, no state; the bytes of a file need not be aligned. */
#ifndef IO_MOVE_TYPES_H
#define IO_MOVE_TYPES_H

#include "src/base/floats.h"

enum sh_move_type { SH_MOVE_F32, SH_MOVE_F16, SH_MOVE_BF16, SH_MOVE_TYPES };

int sh_move_type_bytes(enum sh_move_type t);

/* n elements; `to` as sh_floats_put() takes it. Returns the first that is not finite, or n. */
int64_t sh_move_widen(enum sh_move_type t, const void *from, int64_t n, struct sh_floats to);

/* n elements. Returns the first finite one that the type has no finite number for (float16 beyond 65,504), or n. */
int64_t sh_move_narrow(enum sh_move_type t, struct sh_floats from, int64_t n, void *to);

#endif
