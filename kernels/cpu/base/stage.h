/* Tensors of the compute type as f32, piece by piece. A loop is written once, on f32. If the tensor is f32 already,
 * the loop works in place; otherwise it works on a piece that is converted in the L1 cache and costs no memory
 * traffic.
 *
 *     const float *x = sh_cpu_stage_in(&call->in[0], at, n, x_room);
 *     float *y = sh_cpu_stage_out(&call->out[0], at, n, y_room);
 *     ... y[0..n) from x[0..n) ...
 *     sh_cpu_stage_put(&call->out[0], at, n, y);
 *
 * For one thread, no failure. */
#ifndef SH_KERNELS_CPU_STAGE_H
#define SH_KERNELS_CPU_STAGE_H

#include "kernels/cpu/base/block.h"
#include "kernels/op.h"

/* Elements of a piece, if the caller is free to choose: 4 KiB of f32, so that four of them fit in an L1 cache. Loops
 * over threads are also cut at pieces: always at the same elements, however many threads there are. */
enum { SH_CPU_PIECE = 1024 };

/* Prefetch memory that is used soon. Converting in bursts leaves the memory idle while a piece is worked on, and
 * hardware does not look far enough ahead by itself: with this, bf16 tensors in memory are processed 20 to 35 %
 * faster. Addresses past the end of a tensor do no harm; as they are not pointers into it, they are numbers here.
 *   at  bytes from p */
static inline void sh_cpu_prefetch(const void *p, int64_t at, int64_t bytes)
{
    for (int64_t i = at; i < at + bytes; i += 64)
        __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)i));
}

/* The same for n elements of a tensor from element `at` on. */
static inline void sh_cpu_prefetch_elems(const struct sh_operand *t, int64_t at, int64_t n)
{
    sh_cpu_prefetch(t->data, at * sh_dtype_bytes(t->dtype), n * sh_dtype_bytes(t->dtype));
}

/* How many elements ahead a loop over long vectors prefetches, and how many it processes between two prefetches.
 * Measured from memory on one core: AdamW takes 15 % less time, equally for 128 to 2048 ahead. */
enum { SH_CPU_AHEAD = 512, SH_CPU_STRIDE = 128 };

/* Elements [at, at + n) for reading: the tensor's own, or converted into room [n]. */
static inline const float *sh_cpu_stage_in(const struct sh_operand *t, int64_t at, int64_t n, float *room)
{
    if (t->dtype == SH_F32)
        return (const float *)t->data + at;
    sh_cpu_prefetch_elems(t, at + n, n);
    sh_cpu_block_load((struct sh_cpu_block){1, n}, room, n, sh_cpu_at(t->data, t->dtype, at), n, t->dtype);
    return room;
}

/* Where to write elements [at, at + n): the tensor itself, or `room`. */
static inline float *sh_cpu_stage_out(const struct sh_operand *t, int64_t at, int64_t n, float *room)
{
    if (t->dtype == SH_F32)
        return (float *)t->data + at;
    sh_cpu_prefetch_elems(t, at, n);
    return room;
}

/* Store what was written there into the tensor. */
static inline void sh_cpu_stage_put(const struct sh_operand *t, int64_t at, int64_t n, const float *from)
{
    if (t->dtype != SH_F32)
        sh_cpu_block_store((struct sh_cpu_block){1, n}, sh_cpu_at(t->data, t->dtype, at), n, t->dtype, from, n);
}

static inline int64_t sh_cpu_elems(const struct sh_operand *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

static inline int64_t sh_cpu_pieces(int64_t n)
{
    return (n + SH_CPU_PIECE - 1) / SH_CPU_PIECE;
}

/* Elements in piece `piece` of n. */
static inline int64_t sh_cpu_piece_elems(int64_t n, int64_t piece)
{
    int64_t left = n - piece * SH_CPU_PIECE;
    return left < SH_CPU_PIECE ? left : SH_CPU_PIECE;
}

#endif
