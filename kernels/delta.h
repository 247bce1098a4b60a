/* Where the gated delta rule cuts a document into chunks, and where it keeps the states with which they begin. Chunks are
 * counted from the first row of a document, so a document makes the same numbers wherever it lies. Valid C and C++. */
#ifndef SH_KERNELS_DELTA_H
#define SH_KERNELS_DELTA_H

#include "kernels/op.h"

/* Rows of a chunk; the longest head of keys or values, for which kernels have room. Both are also in the shape of the
 * kinds: a sequence of T rows has (T + 63) / 64 slots for states. */
enum { SH_DELTA_CHUNK = 64, SH_DELTA_HEAD = 256 };

/* Added to the sum of squares of a query or key before its root. */
#define SH_DELTA_LEAST 1e-6

/* What a call knows of its operands: x [B,T,2KD+HV], ba [B,T,2H]. */
struct sh_delta {
    int64_t B, T, K, H, D, V, row; /* row: elements of a row of x */
    int64_t slots;
};

static inline struct sh_delta sh_delta_of(const struct sh_op_call *call, const struct sh_operand *x)
{
    struct sh_delta s;
    s.B = x->dim[0];
    s.T = x->dim[1];
    s.K = call->attr->delta.key_heads;
    s.H = call->attr->delta.heads;
    s.D = call->attr->delta.key_dim;
    s.V = call->attr->delta.value_dim;
    s.row = 2 * s.K * s.D + s.H * s.V;
    s.slots = (s.T + SH_DELTA_CHUNK - 1) / SH_DELTA_CHUNK;
    return s;
}

/* The first row of the document of row t of sequence b; docs without data: a sequence is one document. */
static inline int64_t sh_delta_first(const struct sh_operand *docs, int64_t b, int64_t t)
{
    return docs->data ? ((const int32_t *)docs->data)[b * docs->dim[1] + t] : 0;
}

/* The first row of the chunk of row t. The first chunk of a document begins with a state of zeros, which is not kept;
 * others begin at least a chunk after it, so no two of them share the slot t / SH_DELTA_CHUNK. */
static inline int64_t sh_delta_begin(const struct sh_operand *docs, int64_t b, int64_t t)
{
    int64_t first = sh_delta_first(docs, b, t);
    return first + (t - first) / SH_DELTA_CHUNK * SH_DELTA_CHUNK;
}

/* The row behind the chunk that begins at `begin`. */
static inline int64_t sh_delta_end(const struct sh_operand *docs, int64_t b, int64_t begin, int64_t T)
{
    int64_t end = begin + 1;
    while (end < T && sh_delta_begin(docs, b, end) == begin)
        end++;
    return end;
}

/* Where slot `begin` / SH_DELTA_CHUNK of head h is in states [B,slots,H,D,V]. */
static inline int64_t sh_delta_slot(const struct sh_delta *s, int64_t b, int64_t begin, int64_t h)
{
    return ((b * s->slots + begin / SH_DELTA_CHUNK) * s->H + h) * s->D * s->V;
}

#endif
