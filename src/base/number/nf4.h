/* Matrices in four bits per element, NF4: 64 elements share a scale, and each element is one of 16 numbers times the
 * scale. The numbers are the means of equal parts of a normal distribution, since weights are nearly normally
 * distributed.
 *
 * A block is 64 neighbours of the flat matrix, across rows, in 36 bytes: 32 bytes of codes, two per byte, the first
 * element in the upper half; then the largest magnitude, f32. That is 4.5 bits per element. Blocks lie end to end, so
 * any run of whole blocks is itself a packed matrix: when the ranks' packed chunks are gathered, they form the packed
 * unit.
 *
 *     code    = how many of the 15 midpoints between neighbours are below x * (1 / largest)
 *     element = number[code] * largest
 *
 * Both are computed in float32, rounded after each step: the bits are those of bitsandbytes. Numbers must be finite.
 * Source: Dettmers et al., QLoRA, arXiv:2305.14314, appendix E; codes as in bitsandbytes 0.50.
 *
 * Local, no failure. The table is valid C, C++ and CUDA; the loops are for host memory. */
#ifndef SH_BASE_NF4_H
#define SH_BASE_NF4_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SH_NF4_ELEMS = 64, SH_NF4_CODE_BYTES = SH_NF4_ELEMS / 2, SH_NF4_BLOCK_BYTES = SH_NF4_CODE_BYTES + 4 };

/* clang-format off */
#define SH_NF4_NUMBERS                                                                                                  \
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,                                          \
     -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,                                         \
     0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,                            \
     0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f}
/* clang-format on */

/* The packed size of elements that fill whole blocks. */
static inline int64_t sh_nf4_bytes(int64_t elems)
{
    return elems / SH_NF4_ELEMS * SH_NF4_BLOCK_BYTES;
}

/* Convert floats to blocks and back: `packed` [blocks,36], of any alignment. */
void sh_nf4_pack(const float *from, int64_t blocks, void *packed);
void sh_nf4_unpack(const void *packed, int64_t blocks, float *to);

/* Join codes [blocks,32] and scales [blocks], which other programs keep apart, into `packed`. If one of them is NULL,
 * that part of `packed` is left as it is. */
void sh_nf4_join(const void *codes, const float *scales, int64_t blocks, void *packed);

#ifdef __cplusplus
}
#endif

#endif
