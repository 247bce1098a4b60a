/* Where a state-space block in its dual form (SCAN) cuts a document into chunks, and where it keeps the states with which
 * they begin. As in kernels/delta.h, chunks are counted from the first row of a document; they are longer, since a
 * chunk has no triangle to solve. Valid C and C++. */
#ifndef SH_KERNELS_SCAN_H
#define SH_KERNELS_SCAN_H

#include "kernels/delta.h"

/* Rows of a chunk: a sequence of T rows has (T + 127) / 128 slots for states. */
enum { SH_SCAN_CHUNK = 128 };

/* x [B,T,HV+2KD]: values of H heads, then what K groups write, then what they read. */
static inline struct sh_delta sh_space_of(const struct sh_op_call *call, const struct sh_operand *x)
{
    struct sh_delta s = sh_delta_of(call, x);

    s.slots = (s.T + SH_SCAN_CHUNK - 1) / SH_SCAN_CHUNK;
    return s;
}

/* The first row of the chunk of row t. */
static inline int64_t sh_space_begin(const struct sh_operand *docs, int64_t b, int64_t t)
{
    int64_t first = sh_delta_first(docs, b, t);
    return first + (t - first) / SH_SCAN_CHUNK * SH_SCAN_CHUNK;
}

/* The row behind the chunk that begins at `begin`. */
static inline int64_t sh_space_end(const struct sh_operand *docs, int64_t b, int64_t begin, int64_t T)
{
    int64_t end = begin + 1;
    while (end < T && sh_space_begin(docs, b, end) == begin)
        end++;
    return end;
}

/* Where slot `begin` / SH_SCAN_CHUNK of head h is in states [B,slots,H,D,V]. */
static inline int64_t sh_space_slot(const struct sh_delta *s, int64_t b, int64_t begin, int64_t h)
{
    return ((b * s->slots + begin / SH_SCAN_CHUNK) * s->H + h) * s->D * s->V;
}

#endif
