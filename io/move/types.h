/* Converts the element types of foreign files to float32 masters and back.
 *
 * Widening is exact: each float16, subnormals included, and each bfloat16 is a float32. Narrowing to bfloat16 gives the
 * upper half of src/base/number/floats.h, to nearest with ties away from zero: the value that a run computes with, bit
 * for bit, and the original of a widened number. Narrowing to float16: to nearest, ties to even. Local, no state; the
 * bytes of a file need not be aligned. */
#ifndef IO_MOVE_TYPES_H
#define IO_MOVE_TYPES_H

#include "src/base/number/floats.h"
#include "src/config/words.h"

enum sh_move_type {
    SH_MOVE_F32 = SH_EXPORT_FLOAT32, /* these three have the numbers of checkpoint.export_dtype */
    SH_MOVE_F16 = SH_EXPORT_FLOAT16,
    SH_MOVE_BF16 = SH_EXPORT_BFLOAT16,
    SH_MOVE_TYPES,
    /* For weights packed in a file, one element per block of 64: its codes; its scale; the code of its scale. */
    SH_MOVE_CODES = SH_MOVE_TYPES,
    SH_MOVE_SCALES,
    SH_MOVE_NESTED,
    SH_MOVE_ALL_TYPES
};

int sh_move_type_bytes(enum sh_move_type t);

/* Scales that are themselves packed: the scale of block i is map[code] * scale[i / SH_MOVE_NESTED_SCALES] + offset,
 * rounded after each step. */
enum { SH_MOVE_NESTED_SCALES = 256 };
struct sh_move_nested {
    float map[256], *scale, offset;
};

/* Read n blocks of one of the last three types into to.packed; whatever the type does not carry stays unchanged there.
 *   first   number of the first block within its weight
 *   nested  NESTED: the table; otherwise ignored
 * Returns the first block whose scale is not finite, or n. A scale that was packed may be slightly negative. */
int64_t sh_move_join(enum sh_move_type t, const void *from, int64_t first, int64_t n,
                     const struct sh_move_nested *nested, struct sh_floats to);

/* Widen n elements; `to` as for sh_floats_put(). Returns the first element that is not finite, or n. */
int64_t sh_move_widen(enum sh_move_type t, const void *from, int64_t n, struct sh_floats to);

/* Narrow n elements. Returns the first finite one without a finite value in the type (float16 beyond 65,504), or n. */
int64_t sh_move_narrow(enum sh_move_type t, struct sh_floats from, int64_t n, void *to);

#endif
